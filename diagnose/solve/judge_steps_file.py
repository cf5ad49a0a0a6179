"""The verdict on a file of timings: as on one window, and where nobody stands out in it, as on two.

Where all ranks became slower, the steps before the change are the baseline of those after it (of a steady growth: the first half that
of the second). Where they did not, some rank may have, which in a large fleet shows in no step time: the later half is judged alone.
Observed windows hold the functions of the window as a whole: there another window must say what was before (`--baseline`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.fleet.timings.from_steps_file import fleet_of, split, with_untimed
from rankscope.diagnose.fleet.timings.steps_file import Timings, read_timings
from rankscope.diagnose.past.baseline import reference_of
from rankscope.diagnose.solve.judge import judge
from rankscope.diagnose.stats.rhythm import find_growth
from rankscope.diagnose.stats.robust import nan_median
from rankscope.diagnose.text import clean
from rankscope.diagnose.verdict.contract import Baseline, Verdict
from rankscope.diagnose.verdict.note import Note, NoteCode

_HALVED_LEAST = 40  # steps: with ten in a half, accidents of a large fleet are taken for a rank's own


def judge_file(path: Path) -> Verdict:
    """The verdict on a file of timings. Raises BadData if nothing in it can be used."""
    return judge_timings(read_timings(path), clean(path.stem, 80))


def judge_timings(timings: Timings, job: str) -> Verdict:
    """The verdict on timings that have been read and checked."""
    fleet = fleet_of(timings, job)
    verdict = judge(fleet)
    if verdict.status == "fault":
        return verdict
    if (more := with_untimed(timings, fleet)) is not None:
        # Own time explains nothing: who is waited for all the same? (fleet/not_timed.py)
        waited_for = judge(fleet_of(more, job))
        if waited_for.status == "fault":
            return waited_for
    if not (column := _changed_at(fleet)):
        return _later_half(timings, fleet, verdict)
    # What looks like an uneven design was perhaps not so before the change.
    before, after = (fleet_of(part, job) for part in split(timings, column))
    if min(before.steps.count, after.steps.count) < limits.STEPS_LEAST:
        return verdict
    about = Baseline(1, len(before.ranks), before.start, before.start, None, "earlier steps of the file")
    later = judge(after, reference_of([before], about))
    # Longer, but all functions alike: their input may be.
    clear = any(suspect.function is not None or suspect.component == "network" for suspect in later.suspects)
    if not clear or (verdict.suspects and later.status != "fault"):
        return verdict
    notes = [note for note in verdict.notes if note.code is not NoteCode.NOBODY]
    return replace(later, notes=tuple(dict.fromkeys((*notes, *later.notes))))


def _later_half(timings: Timings, fleet: Fleet, verdict: Verdict) -> Verdict:
    """The verdict on the later half alone where it accuses somebody, else that on the whole."""
    if verdict.suspects or fleet.steps.count < _HALVED_LEAST:
        return verdict
    later = judge(fleet_of(split(timings, fleet.steps.count // 2)[1], fleet.job))
    if later.status != "fault":
        return verdict
    text = f"only in the later half of the {fleet.steps.count} steps: it is judged"
    return replace(later, notes=(*later.notes, Note(NoteCode.LATER_HALF, text)))


def _changed_at(fleet: Fleet) -> int:
    """The first step (column) after a change for the worse; 0 if there was none."""
    per_step = nan_median(fleet.steps.seconds, 0)
    known = np.isfinite(per_step)
    growth = find_growth(per_step[known])
    return 0 if growth is None else int(np.flatnonzero(known)[growth.column])
