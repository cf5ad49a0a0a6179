"""Run-queue wait that ranks cause themselves: a rank that wants more CPU than before queues for
longer.

w(r)   CPU seconds per step that a rank wants: of its process and its loaders
q(r) = min(before(r) · max(w(r) / w(r) before - 1, 0), max(now(r) - before(r), 0))
       before, now: run-queue wait, seconds per step

Growth in proportion is a lower bound: ranks that fill their cores queue for longer than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import queued_s
from rankscope.diagnose.stats.robust import median_of_each, trimmed_mean
from rankscope.probes.base.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Demand:
    """CPU demand and run-queue wait by rank number: medians over windows, seconds per step."""

    wanted: dict[int, float]
    queued: dict[int, float]


NO_DEMAND = Demand({}, {})


def demand_of(fleets: Sequence[Fleet]) -> Demand:
    """Demand from windows of one job; a rank missing in some is described by the others."""
    told = [(fleet.ranks.number.tolist(), _of_each(fleet)) for fleet in fleets]
    wanted, queued = (
        median_of_each([dict(zip(numbers, each[kind].tolist(), strict=True)) for numbers, each in told])
        for kind in range(2)
    )
    return Demand(wanted, queued)


def wanted_s(fleet: Fleet, ranks: Ints) -> Floats:
    """CPU seconds of each rank (row) with its loaders, in the window; NaN where not counted."""
    counters = fleet.counters
    return counters.total("cpu.process_run_s", ranks) + np.nan_to_num(counters.total("cpu.workers_run_s", ranks))


def queue_of_demand_s(fleet: Fleet, before: Demand) -> Floats:
    """Run-queue wait by rank that its growth in CPU demand since `before` explains, seconds per step.

    0 where not counted, or unknown before.
    """
    numbers = fleet.ranks.number.tolist()
    wanted, stood = (np.array([of.get(number, np.nan) for number in numbers]) for of in (before.wanted, before.queued))
    if not np.isfinite(wanted).any():
        return np.zeros(len(numbers))
    wants, queued = _of_each(fleet)
    more = np.divide(wants, wanted, out=np.full(len(numbers), np.nan), where=wanted > 0) - 1
    found = np.minimum(stood * np.maximum(more, 0.0), np.maximum(queued - stood, 0.0))
    return np.asarray(np.nan_to_num(found), dtype=np.float64)


def _of_each(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return, by rank, (CPU seconds that it wants, with its loaders; run-queue wait), both per step."""
    return wanted_s(fleet, np.arange(len(fleet.ranks))) / fleet.steps.of_each, trimmed_mean(queued_s(fleet))
