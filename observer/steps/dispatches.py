"""Count the iterations of a job's own loop by its dispatches of compiled functions to its library (JAX). Pure.

A thread that runs ahead of its library waits for it once for several iterations, and one that
dispatches ten updates in one compiled call waits once for one: the collectives alone look the same.
But the loop dispatches its update from one call site, once per iteration. Of the call sites that
are passed at least as often as the thread waits, it is the one passed least often, unless
collectives are seen between the calls from another one: that one is no loop inside an iteration,
and the first reads a loss occasionally.

A thread may wait more often than it dispatches, in that call as well as in the read. But no loop
turns more often than its most frequent call site.
"""

from __future__ import annotations

import numpy as np

from rankscope.observer.steps.markers import Markers
from rankscope.probes.base.arrays import Floats

AGREEMENT = 0.9
AS_OFTEN = 1.5  # halfway to twice as often


def multiple(markers: Markers, base: int) -> int:
    """Return how many periods of `base` markers make one iteration, by the call sites of dispatches; 0 if unknown."""
    if not len(markers.dispatch_s) or markers.absence is None:
        return 0
    repetitions = len(markers) / base
    waits = len(np.unique(markers.absence[markers.absence > 0]))
    # At most so many were dispatched before the first marker, or are not done at the last.
    ahead = repetitions / max(waits, 1)
    found: dict[int, Floats] = {}
    places = _by_place(markers)
    most = max(map(len, places), default=0)
    for calls_s in places:
        each = max(round(repetitions / len(calls_s)), 1)
        off = abs(repetitions - each * len(calls_s))
        if off <= (1 - AGREEMENT) * repetitions + ahead and (each <= AS_OFTEN * ahead or len(calls_s) == most):
            found[each] = calls_s
    for each in sorted(found, reverse=True):
        often = AS_OFTEN * len(found[each])
        if all(_passages(markers, found[less]) <= often for less in found if less < each):
            return each
    return 0


def _by_place(markers: Markers) -> list[Floats]:
    """Return the times (s) of dispatches while the markers last, one array per call site."""
    inside = (markers.dispatch_s >= markers.start_s[0]) & (markers.dispatch_s <= markers.end_s[-1])
    place, at_s = markers.dispatch_site[inside], markers.dispatch_s[inside]
    return [at_s[place == one] for one in np.unique(place).tolist()]


def _passages(markers: Markers, calls_s: Floats) -> int:
    """Count the gaps between the calls of one site (before the first and after the last too) in which a marker ends."""
    return len(np.unique(np.searchsorted(calls_s, markers.end_s)))
