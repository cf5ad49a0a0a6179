"""Whatever ends the observer, nothing of it stays: no program, no probe, no half-written window."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from probes import bpfsys

Start = Callable[..., "subprocess.Popen[str]"]

# Two processes with a rank's environment that hold a TCP connection: enough to be found, and no torch to wait for.
OBSERVE = """
import sys, time
from pathlib import Path
from observer import kernel_probes, process_watch
from observer.process_watch import TRAINING
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


def programs_of_ours() -> set[int]:
    """Ids of loaded BPF programs whose name begins with rs_."""
    return {info.identity for info in bpfsys.loaded_programs() if info.name.startswith("rs_")}


def wait_until_gone(before: set[int], seconds: float = 20.0) -> set[int]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        left = programs_of_ours() - before
        if not left:
            return left
        time.sleep(0.2)
    return left


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_observer_that_is_killed_leaves_no_program_behind(program: Start, number: signal.Signals) -> None:
    target = program(SLEEPER)
    before = programs_of_ours()
    observer = subprocess.Popen(
        [sys.executable, "-c", OBSERVE, str(target.pid)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert observer.stdout is not None
    assert observer.stdout.readline().strip() == "observing"
    assert len(programs_of_ours() - before) > 20
    observer.send_signal(number)
    observer.wait(timeout=30)
    assert wait_until_gone(before) == set()
    assert target.poll() is None
    uprobes = Path("/sys/kernel/tracing/uprobe_events")
    assert not uprobes.exists() or uprobes.read_text() == ""


def test_closing_is_quick_and_complete(program: Start) -> None:
    target = program(SLEEPER)
    before = programs_of_ours()
    code = OBSERVE.replace("time.sleep(60)", "began = time.monotonic(); probes.close(); print(time.monotonic() - began)")
    done = subprocess.run(
        [sys.executable, "-c", code, str(target.pid)], capture_output=True, text=True, timeout=60, check=True
    )
    assert float(done.stdout.split()[-1]) < 1.0
    assert wait_until_gone(before) == set()
    os.kill(target.pid, 0)
