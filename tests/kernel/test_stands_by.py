"""Who stands by is attached to nothing, and begins a window as soon as one is ordered, again and again."""

from __future__ import annotations

import time
from pathlib import Path

from small_rank import running

from rankscope.observer.recorder import Order, RecordOptions, stand_by
from rankscope.observer.window.folder import Window


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

    def orders() -> Order:
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
