"""Rows of waste: which ranks it touches, what it took, and how it recurs, in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import Hypothesis, common_host
from rankscope.diagnose.infer.causes.rows import Clear, Floor, Row, of_ranks
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.rhythm import find_period
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import ordinal, seconds
from rankscope.probes.base.arrays import Bools, Floats, Ints

# Of the mean step: what costs less than any fault may cost is nobody's problem either.
FLOOR = limits.EFFECT_SHARE
# Of work that has to be done at some time, as a checkpoint or an evaluation.
FLOOR_OF_WORK = limits.FEW


@dataclass(frozen=True, slots=True)
class Waste:
    """One kind of waste: its cause, what shows it, what to do, and the least share that counts.

    `support`: of its evidence (hypothesis.py); `floor`: the least share of the mean step.
    """

    component: str
    cause: str
    support: float
    evidence: tuple[Evidence, ...]
    action: str
    function: Function | None = None
    floor: float = FLOOR
    instance: str = ""
    says: str = ""


def row_of(spending: Spending, waste: Waste, taken: Floats, named: Bools | None = None) -> list[Row]:
    """Return the row of one kind of waste, or none where it is too little to be measured.

    `taken`: seconds that it took from own times, ranks x judged steps. `named`: mask of the ranks
    that are named; None: those that lose a tenth of what the largest loser loses.
    """
    fleet, lost = spending.fleet, taken.sum(axis=1)
    # As many samples as make a share clear: their number has a spread of its root.
    if lost.sum() < limits.Z_CLEAR**2 * fleet.sampling_s:
        return []
    losers: Bools = lost >= limits.FEW * lost.max() if named is None else named
    rows = tuple(np.flatnonzero(losers).tolist())
    everyone = 1 < len(rows) >= limits.NEARLY_ALWAYS * len(fleet.ranks)
    found = Hypothesis(
        scope="all" if everyone else "rank",
        component=waste.component,
        cause=waste.cause,
        rows=rows,
        lost_s=float("nan"),
        support=waste.support,
        evidence=waste.evidence,
        action=waste.action,
        host=common_host(fleet, rows),
        function=waste.function,
        instance=waste.instance,
        says=waste.says,
    )
    return [Row(found, of_ranks(rows, taken[losers]), Clear(limits.Z_CLEAR), Floor(waste.floor))]


def by_turns(taken: Floats) -> bool:
    """Return whether ranks lose time in steps of their own: together half as much again as any of them.

    `taken`: seconds, ranks x steps.
    """
    return bool(taken.max(axis=0).sum() >= (1 + limits.HOLDS_LEAST) * taken.sum(axis=1).max(initial=0.0) > 0)


def often(spending: Spending, columns: Ints) -> str:
    """Return how these judged steps recur, in words: 'in every 25th step', 'in 9 of 151 steps, every 2.8 s'."""
    period = find_period(columns.astype(np.float64))
    if period is not None:
        return f"in every {ordinal(round(period))} step"
    count = f"in {len(columns)} of {spending.columns} steps"
    starts = spending.fleet.steps.start_s[-spending.columns :][columns]
    if len(columns) < limits.SEVERAL or not np.isfinite(starts).all():
        return count
    return f"{count}, about every {seconds(median(np.diff(starts)))}"
