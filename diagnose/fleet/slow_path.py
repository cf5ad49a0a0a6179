"""Ranks whose work no other rank does, and that all others wait for: the same program on a slow path, or other work by design.

own, wait    of a group of ranks: the median over them of their medians over the steps, of own time and of the stay in collectives
awaited      own is above that of the others by the floor of effect; the others stay longer in collectives by half of that; and the ranks
             work while the others do: their stay is shorter than half of the least own time of the others. A learner that works when its
             actors have done so stays in collectives while they act
same         a tenth of the work of each of the others is on stacks that the ranks have as well: a step of the same program that takes
             another way (a fallback, a compiler, a check) shares the rest of it, a learner shares nothing with those that play
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.stats.robust import nan_median
from rankscope.probes.arrays import Floats, Ints


def rejoined(fleet: Fleet, before: Ints, after: Ints) -> Ints:
    """Put ranks that `after` sets apart from their role `before` back into it where they are slow peers.

    Returns the role code of each rank.
    """
    result: Ints = after.copy()
    for role in np.unique(before):
        parts, sizes = np.unique(after[before == role], return_counts=True)
        largest = parts[np.argmax(sizes)]
        others = np.flatnonzero(after == largest)
        for part in parts[parts != largest].tolist():
            ranks = np.flatnonzero(after == part)
            if are_awaited(fleet, ranks, others) and _same_program(fleet, ranks, others):
                result[ranks] = largest
    return result


def are_awaited(fleet: Fleet, ranks: Ints, others: Ints) -> bool:
    """Whether these others wait for the ranks, which work longer than they, and at the same time."""
    steps = fleet.steps
    if steps.count < limits.STEPS_LEAST or len(fleet.ranks) < limits.SEVERAL:
        return False
    own, wait = nan_median(steps.own_s, 1), nan_median(steps.wait_s, 1)
    more_s, less_s = np.median(own[ranks]) - np.median(own[others]), np.median(wait[others]) - np.median(wait[ranks])
    return bool(
        more_s >= limits.EFFECT_SHARE * np.nanmedian(steps.seconds)
        and less_s >= limits.HOLDS_LEAST * more_s
        and np.median(wait[ranks]) < limits.HOLDS_LEAST * np.min(own[others])
    )


def _same_program(fleet: Fleet, ranks: Ints, others: Ints) -> bool:
    ours, theirs = _work(fleet, ranks, others)
    common = theirs[:, (ours > 0).all(axis=0)].sum(axis=1)
    return bool((common >= limits.FEW * theirs.sum(axis=1)).all())


def _work(fleet: Fleet, ranks: Ints, others: Ints) -> tuple[Floats, Floats]:
    """Ranks x stacks, of either group: share of the window in which the training thread computes or reads with this stack."""
    table, rows = fleet.patterns, np.append(ranks, others)
    mine = np.isin(table.rank, rows) & (table.thread.codes == table.thread.code("training"))
    mine &= np.isin(table.kind.codes, [table.kind.code("python"), table.kind.code("io")])
    mine &= (table.detail.codes != table.detail.code("sleep")) & (table.stack.codes >= 0)
    key = table.stack.codes[mine] * (len(table.name.values) + 1) + table.name.codes[mine]
    each, column = np.unique(key, return_inverse=True)
    place = np.zeros(len(fleet.ranks), dtype=np.int64)
    place[rows] = np.arange(len(rows))
    found = np.zeros((len(rows), len(each)))
    np.add.at(found, (place[table.rank[mine]], column.reshape(-1)), table.share[mine])
    return found[: len(ranks)], found[len(ranks) :]
