"""What loader workers do while a rank trains: seconds of all its workers per step."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.budget.frames import Frames
from rankscope.diagnose.infer.budget.kinds import kind_of
from rankscope.diagnose.infer.budget.labels import Label, label_of
from rankscope.diagnose.infer.budget.spent import Spent, functions_of
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.budget import Item, Kind

_WORK = ("python", "io", "sched")  # what they do, not what they wait for


def meanwhile(fleet: Fleet, spent: Spent) -> tuple[Item, ...]:
    """Return the functions that take most of the loader workers' time, seconds per step, mean over ranks."""
    table = fleet.patterns
    chosen = (table.thread.codes == table.thread.code("loader")) & (table.per_step_s > 0)
    chosen &= np.isin(table.kind.codes, [table.kind.code(kind) for kind in _WORK])
    chosen &= (table.detail.codes != table.detail.code("sleep")) & (spent.length_s[table.rank] > 0)
    rows = np.flatnonzero(chosen & np.isfinite(table.per_step_s)).astype(np.int64)
    alike, first = functions_of(table, rows)
    total = np.bincount(alike, table.per_step_s[rows], len(first)) / max(len(spent.counted), 1)
    found: dict[Label, float] = {}
    for row, seconds in zip(first.tolist(), total.tolist(), strict=True):
        label = _label(fleet, row, spent.frames)
        found[label] = found.get(label, 0.0) + seconds
    longest = sorted(found.items(), key=lambda each: -each[1])[: budgets.TOLD]
    return tuple(Item(what, function, seconds) for (what, function), seconds in longest)


def _label(fleet: Fleet, row: int, frames: Frames) -> Label:
    """Return the label of a row of a loader worker: its function, or the queue for a CPU."""
    kind = kind_of(fleet.patterns, row, frames)
    if kind is Kind.QUEUE:
        return "queue for a CPU", None
    # All that a worker does is input: its label says what else it is.
    what, function = label_of(
        fleet.patterns, row, Kind.FILES if fleet.patterns.kind.at(row) == "io" else Kind.PYTHON, frames
    )
    return what, function
