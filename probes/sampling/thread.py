"""A thread that samples hardware and that can be abandoned when it hangs.

A read of sysfs or a call of NVML can hang for minutes when the device behind it is faulty: exactly
then the observer must live. So whatever may hang runs on a daemon thread, and its owner takes the
data recorded so far when the time is up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from rankscope.probes.host.procfs import reason

_Result = TypeVar("_Result")
# A thread that wakes more than this late has missed ticks; they are skipped, not made up for.
_LATE_NS = 50_000_000
# Shorter pauses use sleep: waiting for an event costs several times as much, and stopping may take
# so long.
_PLAIN_S = 0.12


class Sampler:
    """Calls `_tick` repeatedly on its own thread: `_begin` first, `_end` last, all three there.

    A subclass sets `_doing` before anything that may hang, so that a timeout can be reported with
    its cause.
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
        """Start sampling. Returns at once."""
        if not self._began:
            self._began = True
            self._thread.start()

    @property
    def stuck(self) -> bool:
        """Tell whether the thread was stopped and has not ended."""
        return self._stopping.is_set() and self._thread.is_alive()

    def _finish(self, timeout_s: float) -> bool:
        """Tell the thread to end and wait at most `timeout_s`; return False, with a note, if it
        hangs.
        """
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
        """Call `_begin`, `_tick` whenever it is due until stopped, and `_end`; an error ends this and is noted."""
        try:
            self._begin()
            due = time.monotonic_ns()
            while not self._stopping.is_set():
                due = max(self._tick(due), time.monotonic_ns() - _LATE_NS)
                self._cpu_s = time.thread_time()
                self._sleep_until(due)
            self._end()
        except Exception as error:  # an error must not end the observer, and must be reported
            self._missing.append(f"{self._thread.name}: {reason(error)}")
        self._cpu_s = time.thread_time()

    def _sleep_until(self, due_ns: int) -> None:
        """Wait until `due_ns` (CLOCK_MONOTONIC); a wait beyond `_PLAIN_S` ends early when stopped."""
        rest_s = (due_ns - time.monotonic_ns()) / 1e9
        if rest_s > _PLAIN_S:
            self._wake.wait(rest_s)
            self._wake.clear()
        elif rest_s > 0:
            time.sleep(rest_s)

    def _begin(self) -> None:
        """Open the sources (overridden by subclasses)."""

    def _tick(self, due_ns: int) -> int:
        """Sample once; return when to be called next. `due_ns`: when this call was due (both CLOCK_MONOTONIC, ns)."""
        raise NotImplementedError

    def _end(self) -> None:
        """Read once more and close (overridden by subclasses)."""


class _Call(threading.Thread, Generic[_Result]):
    """A thread that calls a function once and stores its result or exception."""

    def __init__(self, function: Callable[[], _Result], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._function = function
        self.results: list[_Result] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Call the function; add its result to `results`, or set `error` to its exception."""
        try:
            self.results.append(self._function())
        except Exception as error:
            self.error = error


def within(seconds: float, function: Callable[[], _Result], name: str = "bounded-read") -> _Result:
    """Run a function that may hang on a thread; return its result.

    Raises TimeoutError after `seconds` (the thread is abandoned), and whatever the function raises.
    """
    call = _Call(function, name)
    call.start()
    call.join(seconds)
    if call.error is not None:
        raise call.error
    if not call.results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return call.results[0]
