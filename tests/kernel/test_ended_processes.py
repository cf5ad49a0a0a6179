"""What has ended is observed no more: its numbers may be another's tomorrow."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from rankscope.observer.live import process_watch
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.live.process_watch import TRAINING
from rankscope.probes.sched import probe as sched

pytestmark = pytest.mark.beside(ranks=False)

TABLES = ("rs_targets", "rs_interpreters", "rs_gils", "rs_pythreads")
THREADS = """
    import sys, threading, time
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.readline()
"""

# Each time it is told so, a thread computes 0.3 s by its own clock, and ends.
BUSY_THREAD = """
    import os, sys, threading, time
    def compute():
        end = time.thread_time() + 0.3
        while time.thread_time() < end: pass
    print("ready", flush=True)
    for _ in range(2):
        sys.stdin.readline()
        one = threading.Thread(target=compute)
        one.start()
        one.join()
        while len(os.listdir("/proc/self/task")) > 1:  # the kernel's thread ends after Python's
            time.sleep(0.01)
        print("done", flush=True)
    sys.stdin.readline()
"""


def known(probes: KernelProbes) -> dict[str, set[int]]:
    """The keys of every map that says whom to observe."""
    return {name: {int(key.value) for key in probes.maps[name].keys()} for name in TABLES}  # noqa: SIM118 - bcc's table


@pytest.mark.parametrize("python", [True, False])
def test_the_maps_do_not_keep_the_dead(
    probes: KernelProbes, program: Callable[..., subprocess.Popen[str]], python: bool
) -> None:
    before = known(probes)
    shell = ["sh", "-c", "read line"]
    process = program(THREADS) if python else subprocess.Popen(shell, stdin=subprocess.PIPE, text=True)
    watch = process_watch.watch(process.pid, process.pid, TRAINING, probes)
    watch.refresh(probes)
    during = known(probes)
    assert process.pid in during["rs_targets"] - before["rs_targets"]
    assert len(during["rs_pythreads"] - before["rs_pythreads"]) == (4 if python else 1)
    process.communicate("\n", timeout=60)
    watch.refresh(probes)
    watch.close()
    assert watch.gone
    assert known(probes) == before


def test_a_thread_that_got_the_number_of_one_that_ended_stays(probes: KernelProbes) -> None:
    probes.set_thread(4_000_001, 17, 19)
    probes.forget_thread(4_000_001, 23)
    assert 4_000_001 in known(probes)["rs_pythreads"]
    probes.forget_thread(4_000_001, 17)
    assert 4_000_001 not in known(probes)["rs_pythreads"]


def test_what_an_ended_thread_used_stays_in_the_time_of_its_process(
    probes: KernelProbes, program: Callable[..., subprocess.Popen[str]]
) -> None:
    process = program(BUSY_THREAD)
    watch = process_watch.watch(process.pid, process.pid, TRAINING, probes)
    try:
        assert process.stdin is not None and process.stdout is not None
        seen = []
        for _ in range(2):
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            seen.append(sched.process_times(probes.module)[process.pid].run_s)
            threads = [times for times in sched.thread_times(probes.module) if times.tgid == process.pid]
            assert sum(times.run_s for times in threads) < 0.2
        process.communicate("\n", timeout=60)
        seen.append(sched.process_times(probes.module)[process.pid].run_s)
    finally:
        watch.close()
    assert seen[0] >= 0.25 and seen[1] >= seen[0] + 0.25 and seen[2] >= seen[1]
