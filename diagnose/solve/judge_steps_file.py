"""The verdict on a file of timings: as on one window, and where nobody stands out in it, as on two.

Where all ranks became slower, the steps before the change are the baseline of those after it (of a steady growth: the first half that
of the second). Where they did not, some rank may have for a while, which the whole does not show: the stretch of steps in which one rank is
slower than in the rest is judged alone (stats/scan.py). Where no reading of the file accuses anybody by what its columns are called, other
readings are tried (fleet/timings/readings.py, not_timed.py); and where somebody is waited for all the same, it is unknown (nobody.py).
Observed windows hold the functions of the window as a whole: there another window must say what was before (`--baseline`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.fleet.roles import roles
from rankscope.diagnose.fleet.timings.from_steps_file import between, fleet_of, split, with_untimed
from rankscope.diagnose.fleet.timings.one_world import one_world
from rankscope.diagnose.fleet.timings.readings import mixed, mixed_as_work, without_whole
from rankscope.diagnose.fleet.timings.steps_file import Timings, read_timings
from rankscope.diagnose.past.baseline import reference_of
from rankscope.diagnose.solve.judge import judge
from rankscope.diagnose.solve.nobody import never_healthy
from rankscope.diagnose.solve.stretch import about, find_stretch
from rankscope.diagnose.stats.rhythm import find_growth
from rankscope.diagnose.stats.robust import nan_median
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
    if verdict.suspects:
        return verdict
    for reading in (mixed_as_work(plain), with_untimed(plain, fleet)):
        if reading is not None and (found := _judged(reading, fleet_of(reading, job))).status == "fault":
            return found
    work = mixed_as_work(plain)
    return never_healthy(verdict, fleet if work is None else fleet_of(work, job))


def _judged(timings: Timings, fleet: Fleet) -> Verdict:
    """The verdict on one reading: on the whole, on what came after a change, and on the stretch in which a rank is slower."""
    verdict = judge(fleet)
    if verdict.status == "fault":
        return verdict
    changed = _after_change(timings, fleet, verdict)
    return changed if changed is not None else _stretch(timings, fleet, verdict)


def _after_change(timings: Timings, fleet: Fleet, verdict: Verdict) -> Verdict | None:
    """The verdict on the steps after a change for the worse, beside those before; None where there was none, or it tells nothing."""
    if not (column := _changed_at(fleet)):
        return None
    # What looks like an uneven design was perhaps not so before the change.
    before, after = (fleet_of(part, fleet.job) for part in split(timings, column))
    if min(before.steps.count, after.steps.count) < limits.STEPS_LEAST:
        return None
    earlier = Baseline(1, len(before.ranks), before.start, before.start, None, "earlier steps of the file")
    later = judge(after, reference_of([before], earlier))
    # Longer, but all functions alike: their input may be. What contains work and waiting says nothing about the network.
    network = not mixed(timings).any()
    clear = any(
        suspect.function is not None or (network and suspect.component == "network") for suspect in later.suspects
    )
    if not clear or (verdict.suspects and later.status != "fault"):
        return None
    notes = [note for note in verdict.notes if note.code is not NoteCode.NOBODY]
    return replace(later, notes=tuple(dict.fromkeys((*notes, *later.notes))))


def _stretch(timings: Timings, fleet: Fleet, verdict: Verdict) -> Verdict:
    """The verdict on the stretch of steps in which one rank is slower than in the rest, where it accuses somebody."""
    if verdict.suspects:
        return verdict
    found = find_stretch(fleet, roles(fleet))
    if found is None:
        return verdict
    inside = judge(fleet_of(between(timings, found.begin, found.end), fleet.job))
    if inside.status != "fault":
        return verdict
    return replace(inside, notes=(*inside.notes, about(found, fleet.steps.count)))


def _changed_at(fleet: Fleet) -> int:
    """The first step (column) after a change for the worse; 0 if there was none."""
    per_step = nan_median(fleet.steps.seconds, 0)
    known = np.isfinite(per_step)
    growth = find_growth(per_step[known])
    return 0 if growth is None else int(np.flatnonzero(known)[growth.column])
