"""The verdict on a file of timings: as on one window, and where nobody stands out in it, as on two.

Where steps are longer from some step on, or for a while, the other steps are the baseline of those (of a steady growth: the first half
that of the second): so what all ranks, a whole stage or the network do is seen too. Where they are not, some rank may have been longer for
a while, which the whole does not show: the stretch of steps in which one rank is slower than in the rest is judged alone
(stats/scan.py). Where no reading of the file accuses anybody by what its columns are called, other readings are tried
(fleet/timings/readings.py, not_timed.py); and where somebody is waited for all the same, it is unknown (nobody.py).
Observed windows hold the functions of the window as a whole: there another window must say what was before (`--baseline`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.fleet.roles import roles
from rankscope.diagnose.fleet.timings.from_steps_file import apart, between, fleet_of, with_untimed
from rankscope.diagnose.fleet.timings.one_world import one_world
from rankscope.diagnose.fleet.timings.readings import mixed, mixed_as_work, without_whole
from rankscope.diagnose.fleet.timings.steps_file import Timings, read_timings
from rankscope.diagnose.past.baseline import reference_of
from rankscope.diagnose.solve.judge import judge
from rankscope.diagnose.solve.nobody import never_healthy
from rankscope.diagnose.solve.views import about, find_stretch
from rankscope.diagnose.stats.rhythm import find_growth
from rankscope.diagnose.stats.robust import median, nan_median
from rankscope.diagnose.stats.scan import strongest_stretch
from rankscope.diagnose.text import clean
from rankscope.diagnose.verdict.contract import Baseline, Verdict
from rankscope.diagnose.verdict.note import NoteCode


def judge_file(path: Path) -> Verdict:
    """The verdict on a file of timings. Raises BadData if nothing in it can be used."""
    return judge_timings(read_timings(path), clean(path.stem, 80))


def judge_timings(timings: Timings, job: str) -> Verdict:
    """The verdict on timings that have been read and checked: by the first reading of them that accuses somebody, else by the plainest."""
    plain = without_whole(one_world(timings))
    fleet = fleet_of(plain, job)
    verdict = _judged(plain, fleet)
    if verdict.status == "fault":  # what is uneven by design hides nobody
        return verdict
    for reading in (mixed_as_work(plain), with_untimed(plain, fleet)):
        if reading is not None and (found := _judged(reading, fleet_of(reading, job))).status == "fault":
            return found
    work = mixed_as_work(plain)
    return never_healthy(verdict, fleet if work is None else fleet_of(work, job))


def _judged(timings: Timings, fleet: Fleet) -> Verdict:
    """The verdict on one reading: on the whole, on the steps that are longer, and on the stretch in which a rank is slower."""
    verdict = judge(fleet)
    if verdict.status == "fault":
        return verdict
    changed = _while_longer(timings, fleet, verdict)
    return changed if changed is not None else _stretch(timings, fleet, verdict)


def _while_longer(timings: Timings, fleet: Fleet, verdict: Verdict) -> Verdict | None:
    """The verdict on the steps that are longer, beside the others; None where there are none, or they tell nothing."""
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
    # Longer, but all functions alike, or all ranks for a while only: their input may be. What contains work and waiting says nothing
    # about the network.
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
    """The verdict on the stretch of steps in which one rank is slower than in the rest, where it accuses somebody."""
    found = find_stretch(fleet, roles(fleet))
    if found is None:
        return verdict
    inside = judge(fleet_of(between(timings, found.begin, found.end), fleet.job))
    if inside.status != "fault":
        return verdict
    return replace(inside, notes=(*inside.notes, about(found.begin, found.end, fleet.steps.count)))


def _longer_steps(fleet: Fleet) -> tuple[int, int] | None:
    """The steps (columns, the end left out) that are longer than the others: those after a change for the worse, else a stretch."""
    per_step = nan_median(fleet.steps.seconds, 0)
    known = np.flatnonzero(np.isfinite(per_step))
    if (growth := find_growth(per_step[known])) is not None:
        return int(known[growth.column]), fleet.steps.count
    usual = median(per_step[known]) if len(known) else np.nan
    found = strongest_stretch((per_step - usual)[None], limits.SCALE_FLOOR * usual, limits.ALONE_SHARE * usual)
    return None if found is None or found.strength < limits.SCORE_LEAST else (found.begin, found.end)
