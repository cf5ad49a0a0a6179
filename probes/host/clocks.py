"""The host's clocks read together, and whether one was set, or the host slept, between two readings.

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


def clock_notes(before: Clocks, after: Clocks) -> tuple[str, ...]:
    """What happened to the clocks in between, in words."""
    passed_ns = after.monotonic_ns - before.monotonic_ns
    slept_s = (after.boottime_ns - before.boottime_ns - passed_ns) / 1e9
    # While the host sleeps the wall clock goes on.
    stepped_s = (after.realtime_ns - before.realtime_ns - passed_ns) / 1e9 - slept_s
    notes = []
    if abs(stepped_s) >= _LEAST_S:
        notes.append(
            f"the clock of this host was set by {stepped_s:+.3f} s while it was observed: its window is aligned with those of "
            "other hosts only as its clock was before"
        )
    if slept_s >= _LEAST_S:
        notes.append(
            f"this host was suspended for {slept_s:.3f} s while it was observed: its steps took that much longer than is seen"
        )
    return tuple(notes)
