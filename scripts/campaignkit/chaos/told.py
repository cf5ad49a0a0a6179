"""What a command has told of a fault: losses and processes, in its windows or in its words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from campaignkit.chaos.command import Ended
from rankscope.observer.window.folder import Window, is_window, read_window

_WORKERS = "cpu.workers_run_s"
_LOST = re.compile(r"\(\w+,\s+(\w+)\)")  # a verdict's words (diagnose/infer/fleet/gather.py)


def windows(place: Path) -> Iterator[Window]:
    """Those that a record, or a diagnose of a healthy job, has left."""
    for out in (place / "out", place / "history/windows"):
        if out.is_dir():
            yield from (read_window(path) for path in sorted(out.iterdir()) if is_window(path))


def lost(place: Path, ended: Ended) -> set[str]:
    """Names of what was lost."""
    return {loss.name for window in windows(place) for loss in window.manifest.losses if loss.count} | set(
        _LOST.findall(ended.said)
    )


def workers(window: Window) -> bool:
    """Whether it tells of processes that a rank has started: they were watched."""
    return _WORKERS in window.counters.column("name").to_pylist()
