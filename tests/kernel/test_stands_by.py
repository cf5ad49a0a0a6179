"""Who stands by is attached to nothing, and begins a window as soon as one is ordered, again and again."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bare_probes import load
from small_rank import running

from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.recorder import Order, RecordOptions, stand_by
from rankscope.observer.window.folder import Window
from rankscope.probes.bpf import ring
from rankscope.probes.calls.probe import CallProbe


def _attached() -> int:
    """Probes that this process holds: who has the rights holds them for who observes."""
    held = [path.read_text() for path in Path("/proc/self/fdinfo").iterdir() if path.exists()]
    links = [
        path for path in Path("/proc/self/fd").iterdir() if path.is_symlink() and "perf_event" in str(path.readlink())
    ]
    return len(links) + sum("link_type" in text for text in held)


def test_two_windows_of_probes_that_are_loaded_once_and_nothing_is_attached_before_them(tmp_path: Path) -> None:
    windows: list[Window] = []
    ordered: list[float] = []
    attached: list[int] = []
    during: list[int] = []

    def orders(_: int) -> Order:
        attached.append(_attached())
        ordered.append(time.time())
        return Order(0.5, last=len(ordered) == 2)

    def say(text: str) -> None:
        if text.startswith("observing 0.5 s"):
            during.append(_attached())

    with running(tmp_path) as pid:
        stand_by(RecordOptions(pids=(pid,)), orders, windows.append, say)

    assert attached == [0, 0]
    assert min(during) > 10
    assert len(windows) == 2
    for asked, window in zip(ordered, windows, strict=True):
        assert 0 <= window.manifest.start - asked < 2.0  # 0.15 s; whoever computes beside it may take its turn
        (rank,) = window.ranks.to_pylist()
        assert rank["samples"] > 5
        assert {one.source for one in window.manifest.losses} <= {"bpf"}
        # Nothing of the time between the windows lies in one.
        assert all(row["seconds"] < 0.5 for row in window.steps.to_pylist())


def test_what_threads_were_in_the_middle_of_before_a_rest_is_forgotten(
    program: Callable[..., subprocess.Popen[str]],
) -> None:
    observed = load()
    probes = KernelProbes(observed.module, CallProbe(observed.module), observed.ring)
    process = program(
        """
        import os, sys, threading, time
        reads, writes = os.pipe()
        print("ready", flush=True); sys.stdin.readline()
        threading.Thread(target=os.read, args=(reads, 1), daemon=True).start()
        end = time.monotonic() + 0.5
        while time.monotonic() < end: pass
        print("sleeps", flush=True)
        while True: time.sleep(0.004)
        """
    )
    observed.watch(process.pid)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    time.sleep(0.25)
    probes.rest()  # one thread runs, another is in a call
    assert _pending(probes)
    assert process.stdout.readline() == "sleeps\n"
    probes.wake()
    assert not _pending(probes)
    time.sleep(0.5)
    events = observed.ring.drain()
    assert ((events["type"] == ring.IDLE) & (events["tgid"] == process.pid)).sum() > 3, "that all sleep is seen"


def _pending(probes: KernelProbes) -> int:
    return sum(int(number.value) for _, number in probes.maps["rs_file_pending"].items())
