"""Alternative interpretations of columns in a file of timings whose meaning it leaves open.

The whole: a column named like a step, which in nearly every step is at least the sum of all others,
contains them: its excess is untimed work. Counted as a part it would double the step and hide slow
ranks.

Mixed: a column that contains waiting but is no communication also contains work, such as a
stopwatch around forward and backward. As waiting it hides slow ranks, since they wait less
elsewhere and the sums agree. As work it shows the rank, or the group of ranks that wait for each
other in it.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.timings.steps_file import Timings
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.observer.window.schema import KINDS
from rankscope.probes.base.arrays import Bools, Ints

_WHOLE = re.compile(
    r"(train(ing)?|global|whole|e2e|elapsed)?[-_ ]*(it(er(ation)?)?|step|batch|total|wall)?[-_ ]*(time|duration|total|s|ms)?",
    re.IGNORECASE,
)


def mixed(timings: Timings) -> Bools:
    """Mark rows that contain waiting and, by their kind, work as well."""
    return np.asarray(timings.waits & (timings.kind != KINDS.index("collective")))


def mixed_as_work(timings: Timings) -> Timings | None:
    """Count mixed rows as work, with a note; None if there are none."""
    rows = mixed(timings)
    if not rows.any():
        return None
    text = "columns contain waiting, and no communication: nobody stands out by the rest, so they count as work"
    notes = (*timings.notes, Note(NoteCode.MIXED_AS_WORK, text))
    return replace(timings, waits=timings.waits & ~rows, notes=notes)


def without_whole(timings: Timings) -> Timings:
    """Replace a column that contains all others by its excess over them, with a note."""
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
        # Drop the column in steps where the others were not timed.
        kept = np.ones(len(timings), dtype=bool)
        kept[rows] = both[cell[rows]]
        seconds = timings.seconds.copy()
        share = seconds[rows] / np.maximum(whole[cell[rows]], 1e-300)  # split among several rows of one step
        seconds[rows] = share * np.maximum(whole - others, 0.0)[cell[rows]]
        waits = timings.waits.copy()
        waits[rows] = False
        text = f"{name} contains the other columns: what it holds beside them counts as work"
        notes = (*timings.notes, Note(NoteCode.WHOLE_STEP, text))
        return replace(timings, seconds=seconds, waits=waits, notes=notes).taken(kept)
    return timings


def _cells(timings: Timings) -> Ints:
    """A number by row for its (rank, step) pair."""
    rank = np.unique(timings.rank, return_inverse=True)[1].reshape(-1)
    steps, step = np.unique(timings.step, return_inverse=True)
    found = np.unique(rank * len(steps) + step.reshape(-1), return_inverse=True)[1]
    return np.asarray(found.reshape(-1), dtype=np.int64)
