"""The lab's file that makes one Python function of the job slow: looked at once a step, one stat call."""

from __future__ import annotations

import functools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

_CALIBRATION = 1_000_000

# What the fault adds to each function: a call into C, so that the leaf Python frame stays the function itself.
slow: defaultdict[str, Callable[[], object]] = defaultdict(lambda: bool)


class Control:
    """DIR/rank<N>.control, JSON {"function": …, "manner": "busy" | "sleep", "seconds": …}; without the file nothing is slow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0

    def poll(self) -> None:
        try:
            changed = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            changed = 0
        if changed == self._seen:
            return
        self._seen = changed
        slow.clear()
        if changed:
            order = json.loads(self._path.read_text())
            slow[order["function"]] = _slowness(order["manner"], order["seconds"])


def _slowness(manner: str, seconds: float) -> Callable[[], object]:
    """A C callable that takes `seconds`: asleep, or adding numbers (calibrated here, holding the GIL as Python code does)."""
    if manner == "sleep":
        return functools.partial(time.sleep, seconds)
    best = min(_cpu_seconds(functools.partial(sum, range(_CALIBRATION))) for _ in range(3))
    return functools.partial(sum, range(int(_CALIBRATION * seconds / best)))


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
