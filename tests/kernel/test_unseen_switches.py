"""Edges that the kernel ran no program for: what is known is told all the same, and counted.

Why the kernel leaves one out is not ours to bring about (another program runs on that CPU, a thread that reads a map was pushed
aside there). That it does is: the program is detached meanwhile.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

import numpy as np
import pytest
from bare_probes import CLOCK_NANOSLEEP, Observed, load

from rankscope.probes.bpf import ring
from rankscope.probes.bpf.counters import COUNTERS
from rankscope.probes.sched import probe as sched

pytestmark = pytest.mark.beside(ranks=False)

Start = Callable[..., "subprocess.Popen[str]"]
SWITCH, WAKE, _ = sched.TRACEPOINTS
# With a first argument the thread is never pushed aside: no other switch comes between those that are meant.
# Its sleep is longer than the second that is asked for of it: the timer runs from before the thread leaves.
SLEEPS_THEN_RUNS = """
    import os, sys, time
    if len(sys.argv) > 1: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("ready", flush=True); sys.stdin.readline()
    time.sleep(0.05)
    print("sleeps", flush=True)
    time.sleep(1.01)
    print("runs", flush=True)
    end = time.monotonic() + 0.5
    while time.monotonic() < end: pass
    time.sleep(0.3)
    """


def go(observed: Observed, process: subprocess.Popen[str]) -> None:
    """Watched from now on, until it says that it sleeps."""
    observed.watch(process.pid)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "sleeps\n"
    time.sleep(0.2)


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == line + "\n"


def sleeps_of(events: ring.Events, pid: int) -> ring.Events:
    return events[(events["type"] == ring.OFFCPU) & (events["what"] == CLOCK_NANOSLEEP) & (events["tid"] == pid)]


def counted(observed: Observed) -> dict[str, int]:
    return dict(observed.module.counters(COUNTERS))


def test_a_sleep_whose_end_nobody_saw_is_told_with_its_length_when_the_thread_leaves_again(
    program: Start, observed: Observed
) -> None:
    told = 0
    for _ in range(20):  # until it was not pushed aside before it is observed again
        process = program(SLEEPS_THEN_RUNS)
        go(observed, process)
        with observed.without(SWITCH, WAKE):
            wait_for(process, "runs")
        process.communicate(timeout=30)
        sleeps = sleeps_of(observed.ring.drain(), process.pid)
        assert len(sleeps) == 3
        assert (np.diff(sleeps["ts_ns"].astype(np.int64)) > 0).all()
        told = counted(observed)["arrival_unseen"]
        if told:
            break
    assert told  # others may have come unseen beside it: the kernel skips programs
    assert 1.0 <= sleeps["dur_ns"][1] / 1e9 < 1.2


def test_without_type_information_such_a_sleep_lasts_until_the_wake_up(program: Start) -> None:
    observed = load(numbers={"RS_TASK_RAN": 0, "RS_TASK_RAN_BEFORE": 0})
    process = program(SLEEPS_THEN_RUNS, "first")
    go(observed, process)
    with observed.without(SWITCH):
        wait_for(process, "runs")
    process.communicate(timeout=30)
    sleeps = sleeps_of(observed.ring.drain(), process.pid)
    assert counted(observed)["arrival_unseen"] == 1
    assert 1.0 <= sleeps["dur_ns"][1] / 1e9 < 1.1
    observed.close()


def test_a_wake_up_that_nobody_saw_is_counted_and_all_was_blocked(program: Start, observed: Observed) -> None:
    process = program(SLEEPS_THEN_RUNS, "first")
    go(observed, process)
    before = counted(observed)["wake_unseen"]
    with observed.without(WAKE):
        wait_for(process, "runs")
    process.communicate(timeout=30)
    sleeps = sleeps_of(observed.ring.drain(), process.pid)
    assert counted(observed)["wake_unseen"] > before
    assert len(sleeps) == 3
    assert sleeps["ready_ns"][1] == 0


def test_a_thread_that_comes_though_nobody_saw_it_leave_is_counted(program: Start, observed: Observed) -> None:
    process = program(
        """
        import os, sys, time
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        print("ready", flush=True); sys.stdin.readline()
        time.sleep(0.05)
        print("sleeps", flush=True)
        end = time.monotonic() + 0.7
        while time.monotonic() < end: pass
        time.sleep(1.0)
        """
    )
    go(observed, process)
    with observed.without(SWITCH):
        time.sleep(0.9)
    process.communicate(timeout=30)
    assert counted(observed)["leaving_unseen"] >= 1


def test_a_sleep_that_does_not_count_as_load_is_no_death(program: Start, observed: Observed) -> None:
    """TASK_IDLE, as Lustre sleeps; here a thread that waits until the core of its process is written."""
    process = program(
        """
        import os, resource, sys, threading, time
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ballast = bytearray(b"x") * (300 << 20)
        other = threading.Thread(target=lambda: [sum(range(1000)) for _ in range(10**9)], daemon=True)
        other.start()
        print("ready", flush=True); sys.stdin.readline()
        time.sleep(0.1)
        os.abort()
        """
    )
    events = observed.run(process)
    idle = events[(events["type"] == ring.OFFCPU) & (events["aux"] & sched.IDLE > 0)]
    assert len(idle) >= 1
    assert idle["dur_ns"].max() > 10_000_000
    assert (idle["tid"] != process.pid).all()
