"""Read the host's clocks together; detect clock steps and suspends, and compare recorded times safely.

CLOCK_REALTIME is shared between hosts and can be set; CLOCK_MONOTONIC only runs, and stops while
the host is suspended; CLOCK_BOOTTIME goes on then. NTP slews the first two alike, so only a step
changes their difference.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

_TRIES = 5
# Seconds without a sweep of a host, or a window in a store that is in use; clocks that lost their
# time are off by decades.
NEVER_SO_LONG_S = 365 * 86_400.0
_LEAST_S = 0.010  # seconds; windows of different hosts are not aligned any better
_AHEAD_S = 60.0  # seconds that a file server's clock may be ahead, or one that is being set


@dataclass(frozen=True, slots=True)
class Clocks:
    """One instant on each clock, in ns."""

    realtime_ns: int
    monotonic_ns: int
    boottime_ns: int


def read_clocks() -> Clocks:
    """Read all three clocks at one instant, within some microseconds.

    Of several tries the one with the shortest duration counts.
    """
    tries = []
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        realtime = time.clock_gettime_ns(time.CLOCK_REALTIME)
        boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        tries.append((after - before, Clocks(realtime, (before + after) // 2, boottime)))
    return min(tries, key=lambda each: each[0])[1]


def slept_s(before: Clocks, after: Clocks) -> float:
    """Return the seconds that the host was suspended between two readings."""
    return (after.boottime_ns - before.boottime_ns - after.monotonic_ns + before.monotonic_ns) / 1e9


def stepped_s(before: Clocks, after: Clocks) -> float:
    """Return the seconds by which CLOCK_REALTIME was set between two readings."""
    # While the host sleeps the wall clock goes on.
    return (after.realtime_ns - before.realtime_ns - after.boottime_ns + before.boottime_ns) / 1e9


def is_ahead(at_s: float, now_s: float) -> bool:
    """Tell whether a recorded time is more than `_AHEAD_S` seconds in the future.

    The clock was ahead then, or is behind now, so its age is unknown.
    """
    return at_s > now_s + _AHEAD_S


def age_order(at_s: float, now_s: float) -> tuple[bool, float]:
    """Sort key for recorded times, oldest first; times in the future sort before all others.

    Else they would be the newest until then, and evict what is valid.
    """
    return not is_ahead(at_s, now_s), at_s


def is_older(at_s: float, than_s: float, now_s: float) -> bool:
    """Tell whether a recorded time is more than `than_s` seconds old, or as far (`_AHEAD_S` at least) in the future.

    Data dated in the future must not count as fresh until then.
    """
    return now_s - at_s > than_s or at_s - now_s > max(than_s, _AHEAD_S)


def clock_notes(before: Clocks, after: Clocks) -> tuple[str, ...]:
    """Describe clock steps and suspends of 10 ms or more between two readings, in a sentence each."""
    set_s, suspended_s = stepped_s(before, after), slept_s(before, after)
    notes = []
    if abs(set_s) >= _LEAST_S:
        notes.append(
            f"the clock of this host was set by {set_s:+.3f} s during the window: the window is aligned with those of "
            "other hosts by the clock as it was before"
        )
    if suspended_s >= _LEAST_S:
        notes.append(
            f"this host was suspended for {suspended_s:.3f} s during the window: its steps took that much longer than measured"
        )
    return tuple(notes)
