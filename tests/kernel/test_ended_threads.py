"""Python threads that end while they are observed: what they did counts as a Python thread's."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from watching import Watched

from rankscope.observer.finish.raw import python_threads
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.probes.bpf import ring

pytestmark = pytest.mark.beside

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
