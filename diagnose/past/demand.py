"""The queue for a CPU that ranks make for themselves: who wants more CPU than before stands in it for longer, and nobody took it.

w(r)   CPU seconds per step that a rank wants: of its process and its loaders
q(r) = min(before(r) · max(w(r) / w(r) before - 1, 0), max(now(r) - before(r), 0))       before, now: seconds per step in the queue

That it grows in proportion is the least it does: ranks that fill their cores stand there for longer than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.busy_host import queued_s
from rankscope.diagnose.model.demand import wanted_s
from rankscope.diagnose.stats.robust import nan_median, trimmed_mean
from rankscope.probes.arrays import Floats


def queue_of_demand_s(fleet: Fleet, past: Sequence[Fleet]) -> Floats:
    """q of each rank of the fleet (its rows), seconds per step; 0 where nobody counted, or knows how it was."""
    ranks = np.arange(len(fleet.ranks))
    if not len(past):
        return np.zeros(len(ranks))
    wants, queued = _of_each(fleet)
    before = np.full((2, len(past), len(ranks)), np.nan)
    for moment, earlier in enumerate(past):
        row = {int(number): at for at, number in enumerate(earlier.ranks.number)}
        at = np.array([row.get(int(number), -1) for number in fleet.ranks.number], dtype=np.int64)
        for kind, values in enumerate(_of_each(earlier)):
            before[kind, moment] = np.where(at >= 0, values[at], np.nan)
    wanted, stood = nan_median(before[0], 0), nan_median(before[1], 0)
    more = np.divide(wants, wanted, out=np.full(len(ranks), np.nan), where=wanted > 0) - 1
    found = np.minimum(stood * np.maximum(more, 0.0), np.maximum(queued - stood, 0.0))
    return np.asarray(np.nan_to_num(found), dtype=np.float64)


def _of_each(fleet: Fleet) -> tuple[Floats, Floats]:
    """Of each rank the CPU that it wants, and how long it stands in the queue, seconds per step."""
    return wanted_s(fleet, np.arange(len(fleet.ranks))) / fleet.steps.of_each, trimmed_mean(queued_s(fleet))
