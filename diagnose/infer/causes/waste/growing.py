"""A function of the user's that takes longer from step to step on all ranks: it looks through a list that grows, say.

W(r,s)    = own - sched - io - sync: what rank r works in step s
rise(r)   = mean of W over the last third of the steps, less over the first third
growth(f) = the same of the function's samples (the observer's), median over ranks
taken     = the line through growth(f), from 0 in the first step on: what it takes more than when the
            window began

Evidence for: a rise on all ranks that does not come at once (from one fifth of the steps to the next
but one), and one function that is computing in Python and has half of it. Evidence against: work of
libraries: input grows in many jobs, and no time is lost by it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import SEEN
from rankscope.diagnose.infer.causes.registry import asked
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.rows import Waste, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import mean_of_known, median
from rankscope.diagnose.text import seconds as in_words
from rankscope.probes.base.arrays import Bools, Floats

_AT_ONCE = 0.85  # of the rise, between fifths of the steps: a change of level, which has a view of its own
_SAMPLES_CLEAR = 3.0  # standard deviations: one chance in 700
_ACTION = (
    "See what it goes through that becomes longer (losses, logs, caches, histories): keep sums, the last values or an index instead of "
    "all of them."
)


@asked
def growing(spending: Spending) -> Iterator[Row]:
    """Propose python/slow-function for what one function of all ranks takes more from step to step."""
    rise, clear = _rises(spending)
    found = _function(spending) if clear.all() and spending.fleet.steps.count >= 3 * limits.STEPS_LEAST else None
    if found is None or median(found[1]) < limits.HOLDS_LEAST * median(rise):
        return
    function, growth, mean = found
    count = spending.fleet.steps.count  # the judged steps may begin where the work has grown already
    per_step = growth / (2 * count / 3)
    taken = np.outer(per_step, np.arange(count - spending.columns, count))
    taken = np.fmin(taken, np.nan_to_num(spending.scene.own))
    starts, ends = median(mean - growth / 2), median(mean + growth / 2)
    twice_s = spending.step_s**2 / max(median(per_step), 1e-12)
    evidence = (
        Evidence("stacks", "time in it, last third of the steps against the first", ends, max(starts, 0.0), "s/step"),
        Evidence("steps", "at this pace a step is twice as long in", in_words(twice_s), None, ""),
    )
    waste = Waste("python", "slow-function", SEEN, evidence, _ACTION, function,
                  says="{function|a function} takes longer from step to step")  # fmt: skip
    yield from row_of(spending, waste, np.asarray(np.maximum(taken, 0.0)))


def _rises(spending: Spending) -> tuple[Floats, Bools]:
    """Return (seconds of rise, mask of ranks whose work rose clearly and not at once), both by rank.

    Rise: mean work in the last third of the steps less that in the first.
    """
    steps = spending.fleet.steps
    work = steps.own_s - np.nan_to_num(steps.sched_s + steps.io_s + steps.sync_s)
    thirds = np.array_split(work, 3, axis=1)
    rise = mean_of_known(thirds[2]) - mean_of_known(thirds[0])
    error = sum(mean_of_known((part - mean_of_known(part)[:, None]) ** 2) / max(part.shape[1], 1) for part in thirds)
    fifths = np.array([mean_of_known(part) for part in np.array_split(work, 5, axis=1)])
    clear = (rise >= limits.Z_CLEAR * np.sqrt(error)) & (rise > 0)
    clear &= (fifths[2:] - fifths[:-2]).max(axis=0) <= _AT_ONCE * (fifths[-1] - fifths[0])
    return np.nan_to_num(rise), np.asarray(clear & np.isfinite(rise), dtype=bool)


def _function(spending: Spending) -> tuple[Function, Floats, Floats] | None:
    """Return (function, its growth, its mean) of the user's function that grew most; None if it is not clear.

    Growth and mean: seconds per step, by rank.
    """
    spent, growth_s = spending.spent, spending.fleet.patterns.growth_s
    rows = np.flatnonzero(spending.of_kind(Kind.PYTHON))
    if growth_s is None or not len(rows):
        return None
    ranks, width = len(spending.fleet.ranks), len(spent.labels)
    cells = spent.rank[rows] * width + spent.label[rows]
    grown, mean = (
        np.bincount(cells, values, ranks * width).reshape(ranks, width).astype(np.float64)
        for values in (np.nan_to_num(growth_s[spent.rows[rows]]), spent.seconds[rows])
    )
    middle = np.median(grown, axis=0)
    for label in np.argsort(-middle, kind="stable").tolist():
        function = spent.labels[label][1]
        # Of two thirds of the steps, in samples, over all ranks: that work rises is known without them.
        noise = (spending.fleet.sampling_s * mean[:, label].sum() * 6 / max(spending.fleet.steps.count, 1)) ** 0.5
        if function is not None:
            enough = grown[:, label].sum() >= _SAMPLES_CLEAR * noise and (grown[:, label] > 0).all()
            return (function, grown[:, label], mean[:, label]) if enough else None
    return None
