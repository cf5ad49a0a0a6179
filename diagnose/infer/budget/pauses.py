"""Time of functions that run in a few steps only: evaluations, checkpoints, new loader workers.

The observer names such functions of each rank (observer/thread/pauses.py). Rows of the rank whose
stack leads through one become `pauses`, unless they have a kind that says more (kinds.FIRM): these
keep it, and their label says in how many steps. A function that is in all steps and takes longer in
a few is no pause here: its excess cannot be told from its usual time by the patterns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.budget.kinds import FIRM
from rankscope.diagnose.infer.budget.labels import Label
from rankscope.diagnose.infer.budget.spent import CODE, Spent
from rankscope.diagnose.infer.fleet.model import Fleet, Patterns
from rankscope.diagnose.infer.verdict.budget import Kind
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import median
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.base.arrays import Bools, Ints

_COLLECTOR = "gc"
_ABOVE, _FUNCTION, _INSIDE = range(3)  # how far down a place a node of the stacks is


@dataclass(frozen=True, slots=True)
class PausePlace:
    """A function that pauses some ranks, and the library function that it calls then (`inside`, '' for none)."""

    name: str
    file: str
    line: int
    inside: str

    def words(self, often: str) -> str:
        """Return `often` with the library function that is called, if any, in front."""
        return f"{self.inside} {often}" if self.inside else often


def with_pauses(fleet: Fleet, spent: Spent) -> Spent:
    """Set the kind of rows that run in a few steps only to PAUSES, and their labels to in how many steps they do.

    Rows of a firm kind (kinds.FIRM) keep it; of these, input, GC and compiling get the label.
    """
    kind, label, labels = spent.kind.copy(), spent.label.copy(), list(spent.labels)
    firm = np.isin(kind, [CODE[each] for each in FIRM])
    for place, entries in places(fleet):
        ranks = np.unique(fleet.pauses.rank[entries])
        collects = place.name == _COLLECTOR and not place.file
        mine = np.isin(spent.rank, ranks)
        mine &= kind == CODE[Kind.GC] if collects else through(fleet.patterns, spent, place)
        paused = mine & ~firm
        kind[paused] = CODE[Kind.PAUSES]
        told = paused | (mine & np.isin(kind, [CODE[Kind.INPUT], CODE[Kind.GC], CODE[Kind.COMPILING]]))
        words = place.words(_often(fleet, entries))
        function = None if collects else Function("python", place.name, place.file, place.line)
        _rename(label, labels, told, collects, words, function)
        firm |= paused  # of nested functions the one that takes most names the pause
    return replace(spent, kind=kind, label=label, labels=tuple(labels))


def _rename(
    label: Ints, labels: list[Label], told: Bools, keeps_function: bool, words: str, function: Function | None
) -> None:
    """Relabel the rows in the mask `told` in place with `words`; append labels that are new to `labels`.

    `keeps_function`: each keeps the function of its old label; else all get `function`.
    """
    for old in np.unique(label[told]).tolist():
        new: Label = (words, labels[old][1] if keeps_function else function)
        if new not in labels:
            labels.append(new)
        label[told & (label == old)] = labels.index(new)


def places(fleet: Fleet) -> Iterator[tuple[PausePlace, Ints]]:
    """Yield the functions that pause ranks, with their rows in the table of pauses, longest first."""
    table = fleet.pauses
    rows = np.flatnonzero(~table.more)
    found: dict[PausePlace, list[int]] = {}
    for row in rows[np.argsort(-table.total_s[rows], kind="stable")][: budgets.EXAMINED**2].tolist():
        place = PausePlace(table.name.at(row), table.file.at(row), int(table.line[row]), table.inside.at(row))
        found.setdefault(place, []).append(row)
    for place in list(found)[: budgets.INSTANCES_SHOWN]:
        yield place, np.array(found[place], dtype=np.int64)


def _often(fleet: Fleet, entries: Ints) -> str:
    """Return in how many of its steps a rank pauses, as 'in 3 of 100 steps' (medians); `entries`: rows of pauses."""
    steps = int(median(fleet.steps.of_those(fleet.pauses.rank[entries])))
    return f"in {int(median(fleet.pauses.count[entries]))} of {steps} steps"


def through(table: Patterns, spent: Spent, place: PausePlace) -> Bools:
    """Mark the rows of `spent` whose stack leads through the place: its function and what that calls inside."""

    def below(above: int, frame: StackFrame) -> int:
        """Return how far down the place a stack is that `frame` continues, given that of the stack above it."""
        if above == _ABOVE and (frame.name, frame.file) == (place.name, place.file):
            return _FUNCTION
        return _INSIDE if above == _FUNCTION and place.inside and frame.name == place.inside else above

    stack, known, end = table.stack, {-1: _ABOVE}, _INSIDE if place.inside else _FUNCTION
    marks = [stack.folded(int(stack.codes[row]), known, below) == end for row in spent.first.tolist()]
    return np.array(marks, dtype=bool)[spent.alike]
