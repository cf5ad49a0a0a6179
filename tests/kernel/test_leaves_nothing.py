"""Whatever ends the observer, nothing of it stays: no program, no probe, no half-written window."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import left_after, loaded, programs_of

from rankscope.observer.live import kernel_probes

pytestmark = pytest.mark.beside(ranks=False)

Start = Callable[..., "subprocess.Popen[str]"]

# Two processes with a rank's environment that hold a TCP connection: enough to be found, and no torch to wait for.
OBSERVE = """
import sys, time
from pathlib import Path
from rankscope.observer.live import kernel_probes, process_watch
from rankscope.observer.live.process_watch import TRAINING
probes = kernel_probes.load(hz=99)
process_watch.watch(int(sys.argv[1]), int(sys.argv[1]), TRAINING, probes)
print("observing", flush=True)
time.sleep(60)
"""
SLEEPER = """
    import sys, time
    print("ready", flush=True)
    while True: time.sleep(0.01)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_observer_that_is_killed_leaves_no_program_behind(program: Start, number: signal.Signals) -> None:
    target = program(SLEEPER)
    observer = subprocess.Popen(
        [sys.executable, "-c", OBSERVE, str(target.pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert observer.stdout is not None
    assert observer.stdout.readline().strip() == "observing"
    programs = programs_of(observer.pid)
    assert len(loaded(programs)) > 20
    observer.send_signal(number)
    observer.wait(timeout=30)
    assert left_after(programs) == set()
    assert target.poll() is None
    uprobes = Path("/sys/kernel/tracing/uprobe_events")
    assert not uprobes.exists() or uprobes.read_text() == ""


def test_closing_is_quick_and_complete(program: Start) -> None:
    target = program(SLEEPER)
    closing = "sys.stdin.readline(); began = time.monotonic(); probes.close(); print(time.monotonic() - began)"
    observer = subprocess.Popen(
        [sys.executable, "-c", OBSERVE.replace("time.sleep(60)", closing), str(target.pid)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert observer.stdout is not None
    assert observer.stdout.readline().strip() == "observing"
    programs = programs_of(observer.pid)
    said, _ = observer.communicate("close\n", timeout=60)
    assert float(said) < 1.0
    assert left_after(programs) == set()
    os.kill(target.pid, 0)


def test_each_window_leaves_little_that_only_a_collection_of_garbage_would_find() -> None:
    # Some hundred classes of ctypes for each window were 3 MB in an hour.
    left = []
    for _ in range(3):
        kernel_probes.load(hz=99).close()
        left.append(gc.collect())
    assert left[-1] < 150  # 540 with classes that are made anew
