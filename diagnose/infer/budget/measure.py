"""The budget of a step: what each rank's time goes into, and the mean of the job.

The patterns of each training thread are classified (kinds.py) and fitted to the rank's step
(spent.py), and told apart here by pauses (pauses.py) and by the peers (split.py).

The job's budget is the mean over its ranks. Means add up, medians of parts do not; and every rank's
second costs the same. Ranks of other roles are in `by_rank`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.budget.behind import behind
from rankscope.diagnose.infer.budget.labels import NOTHING, QUOTA, Label
from rankscope.diagnose.infer.budget.launched import with_launched
from rankscope.diagnose.infer.budget.pauses import with_pauses
from rankscope.diagnose.infer.budget.servers import stages_of, with_servers
from rankscope.diagnose.infer.budget.spent import CODE, KINDS, Spent
from rankscope.diagnose.infer.budget.split import with_split
from rankscope.diagnose.infer.budget.workers import meanwhile
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.budget import Budget, Item, Kind, Part, RankBudget
from rankscope.probes.base.arrays import Floats

_LEAST_SHARE = 0.001  # of the whole: smaller items are not listed


def budget_of(fleet: Fleet, spent: Spent) -> Budget:
    """Return the budget of a fleet: kinds of activity, largest first, with the largest items of each, and by rank."""
    stages = stages_of(fleet, spent)
    spent = with_launched(fleet, with_split(fleet, with_pauses(fleet, with_servers(fleet, spent))))
    counted, by_rank = spent.counted, spent.by_rank()
    seconds = by_rank[counted].mean(axis=0)
    items = _items(fleet, spent)
    whole_s = float(seconds.sum())
    parts = tuple(
        Part(
            KINDS[code], float(seconds[code]), _largest(items[KINDS[code]], whole_s, float(seconds[code])),
            meanwhile(fleet, spent) if KINDS[code] is Kind.INPUT else (),
        )
        for code in np.argsort(-seconds, kind="stable").tolist()
        if seconds[code] > 0
    )  # fmt: skip
    shown = counted.tolist() if len(counted) <= budgets.EXAMINED else []
    each = tuple(_of_rank(int(fleet.ranks.number[row]), by_rank[row]) for row in shown)
    return Budget(whole_s, len(counted), parts, spent.of_window, each, stages)


def _items(fleet: Fleet, spent: Spent) -> dict[Kind, list[tuple[Label, float]]]:
    """Return labels and their seconds by kind, mean over ranks."""
    width = len(spent.labels)
    cells = np.bincount(spent.kind * width + spent.label, spent.seconds, len(KINDS) * width).reshape(len(KINDS), width)
    found: dict[Kind, list[tuple[Label, float]]] = {}
    for code, kind in enumerate(KINDS):
        labels = np.flatnonzero(cells[code]).tolist()
        found[kind] = [(spent.labels[each], float(cells[code, each])) for each in labels]
    queued = (spent.kind == CODE[Kind.QUEUE]) & (spent.label != _number(spent, QUOTA))
    queue_s = np.bincount(spent.rank[queued], spent.seconds[queued], len(spent.length_s))
    found[Kind.QUEUE] += behind(fleet, np.asarray(queue_s, dtype=np.float64))
    ranks = len(spent.counted)
    return {
        kind: [(label, seconds / ranks) for label, seconds in of_kind if label != NOTHING]
        for kind, of_kind in found.items()
    }


def _number(spent: Spent, label: Label) -> int:
    """Return the index of a label in `spent.labels`; -1 if it is not among them."""
    return spent.labels.index(label) if label in spent.labels else -1


def _largest(items: Iterable[tuple[Label, float]], whole_s: float, most_s: float) -> tuple[Item, ...]:
    """Return the largest items, at most budgets.SHOWN, each with at most the seconds of its part.

    `whole_s`: seconds of the budget, of which an item has at least 0.1 %; `most_s`: of the part.
    """
    kept = sorted((each for each in items if each[1] >= _LEAST_SHARE * whole_s), key=lambda each: -each[1])
    return tuple(Item(what, function, min(seconds, most_s)) for (what, function), seconds in kept[: budgets.SHOWN])


def _of_rank(number: int, seconds: Floats) -> RankBudget:
    """Return the budget of the rank with this number; `seconds`: by kind, in the order of KINDS."""
    parts = tuple((kind, float(seconds[code])) for code, kind in enumerate(KINDS) if seconds[code] > 0)
    return RankBudget(number, float(seconds.sum()), parts)
