"""The lab's file of orders, looked at once a step, and what makes one Python function of a job slow. Of this job, and of the GPU lab's."""

from __future__ import annotations

import collections
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What the fault adds to each function: a call into C, so that the leaf Python frame stays the function itself.
slow: dict[str, Callable[[], object]] = collections.defaultdict(lambda: bool)


class Control:
    """The lab's file of orders; one stat call a step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.orders: dict[str, Any] = {}
        self._seen = 0

    def poll(self, step: int = 0) -> bool:
        """Follow the file; whether its orders are new."""
        try:
            changed = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            changed = 0
        is_new = changed != self._seen
        if is_new:
            self._seen = changed
            self.orders = json.loads(self.path.read_text()) if changed else {}
            slow.clear()
            if "function" in self.orders:
                self._slowness = slowness(self.orders["manner"], self.orders["seconds"])
        if "function" in self.orders:
            strikes = step % self.orders.get("every", 1) == 0
            slow[self.orders["function"]] = self._slowness if strikes else bool
        return is_new


def slowness(manner: str, seconds: float) -> Callable[[], object]:
    """A C callable that takes `seconds`: asleep, or adding numbers (calibrated here, holding the GIL as Python code does)."""
    if manner == "sleep":
        return functools.partial(time.sleep, seconds)
    numbers = 2_000_000
    best = min(_cpu_seconds(functools.partial(sum, range(numbers))) for _ in range(3))
    return functools.partial(sum, range(int(numbers * seconds / best)))


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
