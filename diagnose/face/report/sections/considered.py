"""Ranks above their peers that are no suspects, with reasons, and the verdict's notes by section."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.face.report.chosen import Chosen
from rankscope.diagnose.face.report.content import Considered
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.solve.prepare import prepare
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import ACQUITTED, NoteCode
from rankscope.diagnose.stats.robust import nan_median
from rankscope.diagnose.text import clean, seconds

# Notes on why a rank is no suspect; on the course of the steps; all others are on what could not be
# seen.
_DROPPED = ACQUITTED | {
    NoteCode.COUNTER_IDLE, NoteCode.ALL_LOW, NoteCode.DESIGNED, NoteCode.OWN_PAST, NoteCode.MAJORITY, NoteCode.SELDOM,
    NoteCode.SELDOM_LITTLE,
    NoteCode.MOVING_NOISE, NoteCode.STALLS_OF_OTHERS, NoteCode.UNPROVEN, NoteCode.NOBODY,
    NoteCode.CODE_CHANGED, NoteCode.WORST_ONLY, NoteCode.PAGES_GIVEN,
}  # fmt: skip
_COURSE = {
    NoteCode.STEPS_DRIFT, NoteCode.STEPS_CHANGED, NoteCode.HOST_BUSY, NoteCode.PAUSE, NoteCode.SPIKES, NoteCode.STRETCH,
    NoteCode.BASELINE_CHOSEN, NoteCode.ALL_WAIT, NoteCode.UNACKNOWLEDGED, NoteCode.XID, NoteCode.GPU_LOST, NoteCode.RANKS_ENDED,
}  # fmt: skip


def considered(fleet: Fleet, verdict: Verdict, chosen: Chosen) -> tuple[Considered, ...]:
    """List ranks above their peers that are no suspects, farthest first; then notes on why others are none."""
    told = [Considered("", clean(note.text, budgets.NOTE_MOST)) for note in verdict.notes if note.code in _DROPPED]
    if verdict.status in ("hang", "unknown") or fleet.steps.count < limits.STEPS_LEAST:
        return tuple(told)
    return (*_ranks(fleet, chosen), *told)


def course_of(verdict: Verdict) -> tuple[str, ...]:
    """Return the texts of notes on how the steps ran."""
    return tuple(clean(note.text, budgets.NOTE_MOST) for note in verdict.notes if note.code in _COURSE)


def unseen_by(verdict: Verdict) -> tuple[str, ...]:
    """Return the texts of notes on what could not be observed."""
    return tuple(clean(note.text, budgets.NOTE_MOST) for note in verdict.notes if note.code not in _DROPPED | _COURSE)


def _ranks(fleet: Fleet, chosen: Chosen) -> list[Considered]:
    """List the unsuspected ranks above their peers, farthest first, at most `budgets.SHOWN`, each with the reason."""
    scene, _ = prepare(fleet, nan_median(fleet.steps.seconds, 0))
    found = scene.compare(~chosen.accused)
    above = np.where(np.isfinite(found.excess_s) & ~chosen.accused, found.excess_s, -np.inf)
    told = []
    for row in np.argsort(-above, kind="stable")[: budgets.SHOWN].tolist():
        excess, floor, z = float(above[row]), float(found.floor_s[row]), float(found.z[row])
        if not excess > 0:
            break
        by = f"{seconds(excess)} of own work above its peers in each step"
        if excess < floor:
            why = f"{by}: less than the {seconds(floor)} from which it would matter"
        elif z < limits.Z_CLEAR:
            why = f"{by}: no more than ranks differ here without a fault ({z:.1f} standard deviations)"
        else:
            share = 100 * float(found.slower_share[row])
            why = f"{by}, in {share:.0f} % of the steps: not enough to accuse it, or nobody waits for it (see below)"
        told.append(Considered(clean(chosen.named(fleet, row)), why))
    return told
