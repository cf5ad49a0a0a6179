"""Determine where steps end, given when the iterations were done. Pure.

The end of a call that is made once in nearly every iteration, after which the ranks are
synchronised with each other and, where there is one, with the GPU; of several the one before the
longest stretch without markers.
"""

from __future__ import annotations

import numpy as np

from rankscope.observer.steps.found import LEAST_STAY_S
from rankscope.observer.steps.markers import Markers
from rankscope.probes.base.arrays import Bools, Floats

_AGREEMENT = 0.9


def follows_s(markers: Markers) -> Floats:
    """Return the seconds without a marker after each marker; 0 after the last."""
    reach = np.maximum.accumulate(markers.end_s)
    return np.append(np.maximum(markers.start_s[1:] - reach[:-1], 0.0), 0.0)


def of(markers: Markers, done_s: Floats) -> Floats:
    """Return the step edges (s): in each iteration the end of the same call.

    `done_s`: when each iteration was done. Calls that wait for the GPU are preferred. Returns
    `done_s` itself where no call is made once in nearly every iteration.
    """
    pairs, key = markers.keys()
    # it ends with update number `iteration`
    iteration = np.searchsorted(done_s, markers.end_s, side="left")
    inside = (iteration > 0) & (iteration < len(done_s))
    follows, stay = follows_s(markers), markers.end_s - markers.start_s
    waited = markers.of(markers.level) & (stay >= LEAST_STAY_S)
    best: tuple[bool, float, Bools] | None = None
    for one in range(len(pairs)):
        mine = key == one
        per = np.bincount(iteration[mine & inside], minlength=len(done_s))[1:]
        if np.mean(per == 1) < _AGREEMENT:
            continue
        level = bool(np.mean(waited[mine]) >= 0.5)
        score = float(np.median(follows[mine]))
        if best is None or (level, score) > best[:2]:
            best = (level, score, mine)
    if (best is None or not best[0]) and waited.any():
        return _shared(markers.end_s[waited], done_s)
    if best is None:
        return done_s
    _, _, mine = best
    # one per iteration, even where a call was made twice
    first = np.unique(iteration[mine], return_index=True)[1]
    return np.maximum.accumulate(markers.end_s[mine][first])


def _shared(level_s: Floats, done_s: Floats) -> Floats:
    """Return edges (s) where the host waits for its GPU in some iterations only, others spaced evenly between.

    `level_s`: ends of the calls that waited for the GPU; `done_s`: when each iteration was done,
    returned unchanged where fewer than two iterations have such a call.
    """
    at = np.searchsorted(done_s, level_s, side="right")  # iterations done by then
    at, first = np.unique(at, return_index=True)
    level_s = level_s[first]
    if len(level_s) < 2:
        return done_s
    return np.interp(np.arange(at[0], at[-1] + 1), at, level_s)
