"""The host's clocks read together, whether one was set, or the host slept, between two readings; and moments of earlier clocks.

CLOCK_REALTIME is what hosts share and what somebody can set; CLOCK_MONOTONIC only runs, and stands still while the host is suspended;
CLOCK_BOOTTIME goes on then. NTP slews the first two alike, so between them only a step shows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

_TRIES = 5
# Without a sweep of a host, or a window in a store that is in use; clocks that lost their time are off by decades.
NEVER_SO_LONG_S = 365 * 86_400.0
_LEAST_S = 0.010  # windows of different hosts are not aligned any better
_AHEAD_S = 60.0  # a file server's clock may be so much ahead, or one that is being set


@dataclass(frozen=True, slots=True)
class Clocks:
    """One instant by each clock, ns."""

    realtime_ns: int
    monotonic_ns: int
    boottime_ns: int


def read_clocks() -> Clocks:
    """All three at one instant: of some tries the one in which the least time passed. Some microseconds apart at most."""
    tries = []
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        realtime = time.clock_gettime_ns(time.CLOCK_REALTIME)
        boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        tries.append((after - before, Clocks(realtime, (before + after) // 2, boottime)))
    return min(tries, key=lambda each: each[0])[1]


def slept_s(before: Clocks, after: Clocks) -> float:
    """For how long the host was suspended in between."""
    return (after.boottime_ns - before.boottime_ns - after.monotonic_ns + before.monotonic_ns) / 1e9


def stepped_s(before: Clocks, after: Clocks) -> float:
    """By how much somebody set CLOCK_REALTIME in between."""
    # While the host sleeps the wall clock goes on.
    return (after.realtime_ns - before.realtime_ns - after.boottime_ns + before.boottime_ns) / 1e9


def is_ahead(at_s: float, now_s: float) -> bool:
    """Whether a moment that was written down is to come: a clock was ahead then, or is behind now, and how old it is nobody knows."""
    return at_s > now_s + _AHEAD_S


def age_order(at_s: float, now_s: float) -> tuple[bool, float]:
    """What to sort by that the oldest comes first, of moments that were written down. Those to come are before all others: else they would
    be the newest until they have come, and drive out what is."""
    return not is_ahead(at_s, now_s), at_s


def is_older(at_s: float, than_s: float, now_s: float) -> bool:
    """Whether what a moment was written down of is older than that; if it is to come, as well: it must not be fresh until then."""
    return now_s - at_s > than_s or at_s - now_s > max(than_s, _AHEAD_S)


def clock_notes(before: Clocks, after: Clocks) -> tuple[str, ...]:
    """What happened to the clocks in between, in words."""
    set_s, suspended_s = stepped_s(before, after), slept_s(before, after)
    notes = []
    if abs(set_s) >= _LEAST_S:
        notes.append(
            f"the clock of this host was set by {set_s:+.3f} s while it was observed: its window is aligned with those of "
            "other hosts only as its clock was before"
        )
    if suspended_s >= _LEAST_S:
        notes.append(
            f"this host was suspended for {suspended_s:.3f} s while it was observed: its steps took that much longer than is seen"
        )
    return tuple(notes)
