"""A thread that samples hardware, and that nobody ever waits for without a limit.

A read of sysfs or a call of NVML can hang for minutes when the device behind it is sick: exactly then the observer must
live. So whatever may hang runs on a daemon thread, and its owner takes what is there when the time is up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from rankscope.probes.host.procfs import reason

_Result = TypeVar("_Result")
# A thread that wakes more than this late has missed ticks; they are left out, not made up for.
_LATE_NS = 50_000_000
# Shorter rests are slept through: waiting for an event costs several times as much, and ending may take so long.
_PLAIN_S = 0.12


class Sampler:
    """Calls `_tick` again and again on its own thread: `_begin` first, `_end` last, all three there.

    A subclass sets `_doing` before anything that may hang, so that the one who gives up waiting can say what hung.
    """

    def __init__(self, name: str) -> None:
        self._missing: list[str] = []
        self._doing = ""
        self._cpu_s = 0.0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._began = False

    def start(self) -> None:
        """Begin to sample. Returns at once."""
        if not self._began:
            self._began = True
            self._thread.start()

    @property
    def stuck(self) -> bool:
        """It was told to stop and has not."""
        return self._stopping.is_set() and self._thread.is_alive()

    def _finish(self, timeout_s: float) -> bool:
        """Tells the thread to end and waits for it at most so long; False if it hangs."""
        self._stopping.set()
        self._wake.set()
        if not self._began:
            return True
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        self._missing.append(
            f"{self._thread.name}: no answer within {timeout_s:g} s from {self._doing or 'the system'}"
        )
        return False

    def _run(self) -> None:
        try:
            self._begin()
            due = time.monotonic_ns()
            while not self._stopping.is_set():
                due = max(self._tick(due), time.monotonic_ns() - _LATE_NS)
                self._cpu_s = time.thread_time()
                self._sleep_until(due)
            self._end()
        except Exception as error:  # whatever happens here must not end the observer, and must be seen
            self._missing.append(f"{self._thread.name}: {reason(error)}")
        self._cpu_s = time.thread_time()

    def _sleep_until(self, due_ns: int) -> None:
        rest_s = (due_ns - time.monotonic_ns()) / 1e9
        if rest_s > _PLAIN_S:
            self._wake.wait(rest_s)
            self._wake.clear()
        elif rest_s > 0:
            time.sleep(rest_s)

    def _begin(self) -> None:
        """Open what is to be read."""

    def _tick(self, due_ns: int) -> int:
        """Sample once; returns when to be called next (CLOCK_MONOTONIC)."""
        raise NotImplementedError

    def _end(self) -> None:
        """Read once more and close."""


class _Call(threading.Thread, Generic[_Result]):
    def __init__(self, function: Callable[[], _Result], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._function = function
        self.results: list[_Result] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.results.append(self._function())
        except Exception as error:
            self.error = error


def within(seconds: float, function: Callable[[], _Result], name: str = "bounded-read") -> _Result:
    """The result of a function that may hang. Raises TimeoutError when the time is up (the thread is left behind), and
    whatever the function raises."""
    call = _Call(function, name)
    call.start()
    call.join(seconds)
    if call.error is not None:
        raise call.error
    if not call.results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return call.results[0]
