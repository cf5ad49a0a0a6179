"""The verdict on a file of timings: as one window, and without a suspect in it, as two.

Where steps are longer from some step on, or for a while, the other steps are their baseline (with
steady growth: the first half that of the second); so what all ranks, a whole stage or the network
do is seen too. Else some rank may have been longer for a while, which the whole does not show: the
sequence of steps in which one rank is slower than in the rest is judged alone (stats/scan.py).
Without a suspect by the names of the columns, other readings of the file are tried
(fleet/timings/readings.py, not_timed.py); where ranks wait for some rank all the same, the verdict
is unknown (nobody.py). Observed windows contain functions of the window as a whole: there another
window must be the baseline (`--baseline`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.roles import roles
from rankscope.diagnose.infer.fleet.timings.from_steps_file import apart, between, fleet_of, with_untimed
from rankscope.diagnose.infer.fleet.timings.one_world import one_world
from rankscope.diagnose.infer.fleet.timings.readings import mixed, mixed_as_work, without_whole
from rankscope.diagnose.infer.fleet.timings.steps_file import Timings, read_timings
from rankscope.diagnose.infer.past.baseline import reference_of
from rankscope.diagnose.infer.solve.judge import judge
from rankscope.diagnose.infer.solve.nobody import never_healthy
from rankscope.diagnose.infer.solve.views import about, find_stretch
from rankscope.diagnose.infer.verdict.contract import Baseline, Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.diagnose.stats.rhythm import find_growth
from rankscope.diagnose.stats.robust import median, nan_median
from rankscope.diagnose.stats.scan import strongest_stretch
from rankscope.diagnose.text import clean


def judge_file(path: Path) -> Verdict:
    """Return the verdict on a file of timings. Raises BadData if nothing in it can be used."""
    return judge_timings(read_timings(path), clean(path.stem, 80))


def judge_timings(timings: Timings, job: str) -> Verdict:
    """Return the verdict by the first reading of the timings with a fault, else by the plainest."""
    plain = without_whole(one_world(timings))
    fleet = fleet_of(plain, job)
    verdict = _judged(plain, fleet)
    if verdict.status == "fault":  # an imbalance by design does not hide a fault
        return verdict
    for reading in (mixed_as_work(plain), with_untimed(plain, fleet)):
        if reading is not None and (found := _judged(reading, fleet_of(reading, job))).status == "fault":
            return found
    work = mixed_as_work(plain)
    return never_healthy(verdict, fleet if work is None else fleet_of(work, job))


def _judged(timings: Timings, fleet: Fleet) -> Verdict:
    """Return the verdict on one reading: the whole, then longer steps, then the steps of a slower rank."""
    verdict = judge(fleet)
    if verdict.status == "fault":
        return verdict
    changed = _while_longer(timings, fleet, verdict)
    return changed if changed is not None else _stretch(timings, fleet, verdict)


def _while_longer(timings: Timings, fleet: Fleet, verdict: Verdict) -> Verdict | None:
    """Judge the longer steps of a file with the others as baseline.

    None if no steps are longer, or no cause of it is found. `verdict`: on the whole.
    """
    if (longer := _longer_steps(fleet)) is None:
        return None
    # What looks like an uneven design was perhaps not so in the other steps.
    usual, after = (fleet_of(part, fleet.job) for part in apart(timings, *longer))
    if min(usual.steps.count, after.steps.count) < limits.STEPS_LEAST:
        return None
    lasts = longer[1] == fleet.steps.count
    others = Baseline(
        1, len(usual.ranks), usual.start, usual.start, None, f"{'earlier' if lasts else 'other'} steps of the file"
    )
    later = judge(after, reference_of([usual], others))
    # If all functions grew alike, or all ranks for a while only, the input may be the cause.
    # Columns that mix work and waiting show nothing about the network.
    network = not mixed(timings).any()
    clear = any(
        (suspect.function is not None and (lasts or suspect.scope != "all"))
        or (network and suspect.component == "network")
        for suspect in later.suspects
    )
    if not clear or (verdict.suspects and later.status != "fault"):
        return None
    notes = [note for note in verdict.notes if note.code is not NoteCode.NOBODY]
    which = () if lasts else (about(*longer, fleet.steps.count),)
    return replace(later, notes=tuple(dict.fromkeys((*notes, *later.notes, *which))))


def _stretch(timings: Timings, fleet: Fleet, verdict: Verdict) -> Verdict:
    """Return the verdict on the steps in which one rank is slower, if it is a fault; else `verdict`."""
    found = find_stretch(fleet, roles(fleet))
    if found is None:
        return verdict
    inside = judge(fleet_of(between(timings, found.begin, found.end), fleet.job))
    if inside.status != "fault":
        return verdict
    return replace(inside, notes=(*inside.notes, about(found.begin, found.end, fleet.steps.count)))


def _longer_steps(fleet: Fleet) -> tuple[int, int] | None:
    """Columns (begin, end exclusive) of steps that are longer than the others; None without any.

    The steps after a rise, else the clearest contiguous ones.
    """
    per_step = nan_median(fleet.steps.seconds, 0)
    known = np.flatnonzero(np.isfinite(per_step))
    if (growth := find_growth(per_step[known])) is not None:
        return int(known[growth.column]), fleet.steps.count
    usual = median(per_step[known]) if len(known) else np.nan
    found = strongest_stretch((per_step - usual)[None], limits.SCALE_FLOOR * usual, limits.ALONE_SHARE * usual)
    return None if found is None or found.strength < limits.SCORE_LEAST else (found.begin, found.end)
