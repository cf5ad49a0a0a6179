"""Python threads that end while they are observed: what they did counts as a Python thread's."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Callable

import pytest
from bare_probes import Observed, load
from watching import Watched

from rankscope.observer.finish.raw import python_threads
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.counters import COUNTERS
from rankscope.probes.sched import probe as sched

pytestmark = pytest.mark.beside(ranks=False)

CLOCK_NANOSLEEP = 230


def test_a_python_thread_that_ended_is_still_known_for_one(
    probes: KernelProbes, program: Callable[..., subprocess.Popen[str]]
) -> None:
    process = program(
        """
        import sys, threading, time
        print("ready", flush=True); sys.stdin.readline()
        def work():
            for _ in range(14): time.sleep(0.05)
        for _ in range(2):
            one = threading.Thread(target=work)
            one.start(); one.join()
        print("over", flush=True); sys.stdin.readline()
        """
    )
    watched = Watched(probes, process)
    watched.go()
    events = watched.observe(2.0)
    sleeps = events[
        (events["type"] == ring.OFFCPU) & (events["what"] == CLOCK_NANOSLEEP) & (events["dur_ns"] > 40_000_000)
    ]
    tids = set(sleeps["tid"].tolist())
    assert len(tids) == 2 and not tids & watched.watch.threads.keys()
    assert python_threads(watched.watch, events) == {process.pid, *tids}
    assert python_threads(watched.watch, events[:0]) == {process.pid}
    watched.close()


SLEEPING = """
    import os, sys, threading, time
    def sleep():
        while True: time.sleep(0.01)
    print("ready", flush=True); sys.stdin.readline()
    for _ in range(int(sys.argv[1])): threading.Thread(target=sleep, daemon=True).start()
    print(*sorted(map(int, os.listdir("/proc/self/task"))), flush=True)
    sys.stdin.readline()
    time.sleep(0.1)
    os._exit(0)
"""


def _threads(observed: Observed, pid: int) -> set[int]:
    return {int(tid.value) for tid, row in observed.module.maps["rs_threads"].items() if row.tgid == pid}


def _told(process: subprocess.Popen[str], word: str = "go") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_thousands_of_threads_of_one_process_keep_no_others_threads_out(
    program: Callable[..., subprocess.Popen[str]],
) -> None:
    observed = load(entries={"rs_threads": 64, "rs_targets": 8})
    sched.share_threads(observed.module)
    room = observed.module.maps["rs_thread_room"]
    crowd, others = program(SLEEPING, "90"), [program(SLEEPING, "2") for _ in range(3)]
    observed.watch(crowd.pid)
    _told(crowd)
    time.sleep(0.2)
    assert len(_threads(observed, crowd.pid)) == 32, "half of the room"
    for other in others:
        observed.watch(other.pid)
        tids = {int(word) for word in _told(other).split()}
        time.sleep(0.2)
        assert len(tids) == 3 and _threads(observed, other.pid) == tids
    counted = dict(observed.module.counters(COUNTERS))
    assert counted["thread_share_full"] > 0 and counted["thread_map_full"] == 0
    assert int(room[ctypes.c_int(0)].value) == len(observed.module.maps["rs_threads"].items()) == 32 + 9
    for one in (crowd, *others):
        one.communicate("end\n", timeout=60)
    assert int(room[ctypes.c_int(0)].value) == len(observed.module.maps["rs_threads"].items()) == 0
    observed.close()
