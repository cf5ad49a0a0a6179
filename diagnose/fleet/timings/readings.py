"""What a column of a file of timings may mean where the file does not say it, or says it of all: other readings of the same timings.

the whole   a column that is called the step and in nearly every step holds at least what all others hold together, contains them: what it
            has more is work that nobody else timed. Counted as a part it would make steps twice as long, and hide who works in it.
mixed       a column that contains waiting and is no communication contains work as well, a stopwatch around forward and backward, say.
            Taken for waiting it hides who works longer: that rank waits less elsewhere, and the sums are the same. Taken for work it
            shows who, or which group of ranks that wait for one another inside it.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.timings.steps_file import Timings
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.schema import KINDS
from rankscope.probes.arrays import Bools, Ints

_WHOLE = re.compile(
    r"(train(ing)?|global|whole|e2e|elapsed)?[-_ ]*(it(er(ation)?)?|step|batch|total|wall)?[-_ ]*(time|duration|total|s|ms)?",
    re.IGNORECASE,
)


def mixed(timings: Timings) -> Bools:
    """Which rows contain waiting, and by their kind work as well."""
    return np.asarray(timings.waits & (timings.kind != KINDS.index("collective")))


def mixed_as_work(timings: Timings) -> Timings | None:
    """The timings with what is mixed as work; None where nothing is."""
    rows = mixed(timings)
    if not rows.any():
        return None
    text = "columns contain waiting, and no communication: nobody stands out by the rest, so they count as work"
    notes = (*timings.notes, Note(NoteCode.MIXED_AS_WORK, text))
    return replace(timings, waits=timings.waits & ~rows, notes=notes)


def without_whole(timings: Timings) -> Timings:
    """The timings with, in place of a column that contains the others, what it holds beside them."""
    cell = _cells(timings)
    total = np.bincount(cell, weights=timings.seconds)
    for code, name in enumerate(timings.function.values):
        if not name or not _WHOLE.fullmatch(name):
            continue
        rows = np.flatnonzero(timings.function.codes == code)
        whole = np.bincount(cell[rows], weights=timings.seconds[rows], minlength=len(total))
        others = total - whole
        both = (whole > 0) & (others > 0)
        holds = whole[both] >= (1 - limits.EFFECT_SHARE) * others[both]
        if (
            not both.any()
            or both.sum() < limits.NEARLY_ALWAYS * (whole > 0).sum()
            or holds.mean() < limits.NEARLY_ALWAYS
        ):
            continue
        # A step of which the others are a part is no step where they were not timed.
        kept = np.ones(len(timings), dtype=bool)
        kept[rows] = both[cell[rows]]
        seconds = timings.seconds.copy()
        share = seconds[rows] / np.maximum(whole[cell[rows]], 1e-300)  # of several rows of one step
        seconds[rows] = share * np.maximum(whole - others, 0.0)[cell[rows]]
        waits = timings.waits.copy()
        waits[rows] = False
        text = f"{name} contains the other columns: what it holds beside them counts as work"
        notes = (*timings.notes, Note(NoteCode.WHOLE_STEP, text))
        return replace(timings, seconds=seconds, waits=waits, notes=notes).taken(kept)
    return timings


def _cells(timings: Timings) -> Ints:
    """A number for each rank and step."""
    rank = np.unique(timings.rank, return_inverse=True)[1].reshape(-1)
    steps, step = np.unique(timings.step, return_inverse=True)
    found = np.unique(rank * len(steps) + step.reshape(-1), return_inverse=True)[1]
    return np.asarray(found.reshape(-1), dtype=np.int64)
