"""Decide whether there is enough to judge by: steps, ranks, and proof of what seems large."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.excess import strength, strength_of_many_steps
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.waiting import waited_for
from rankscope.diagnose.infer.solve.no_steps import places
from rankscope.diagnose.infer.verdict.advice import longer_s
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import LONGER_TELLS, Note, NoteCode
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import rank_list, seconds


def cannot_judge(fleet: Fleet, has_baseline: bool, step_s: float | None) -> Note | None:
    """Return the reason why the steps cannot be judged, as a note; None if they can.

    `step_s`: usual step, None if unknown.
    """
    complete = np.isfinite(fleet.steps.seconds)
    count = int(median(complete.sum(axis=1))) if fleet.steps.count else 0
    stepping = int(complete.any(axis=1).sum()) if fleet.steps.count else 0
    more = _more(fleet, step_s)
    if stepping == 0 and all(state == "exited" for state in fleet.ranks.state):
        return Note(NoteCode.NO_STEPS, "the job ended while it was observed, before a step was complete")
    if step_s is None or stepping == 0:
        where, longer_tells = places(fleet, more)
        text = f"no step was seen: {where}" if where else f"no complete step was found: {more}"
        return Note(NoteCode.NO_STEP_YET if longer_tells else NoteCode.NO_STEPS, text)
    if count == 0:
        where, longer_tells = places(fleet, more)
        text = f"only {stepping} of {len(fleet.ranks)} ranks show complete steps: {where or more}"
        return Note(NoteCode.NO_STEP_YET if longer_tells else NoteCode.NO_STEPS, text)
    if count < limits.STEPS_LEAST:
        return Note(
            NoteCode.FEW_STEPS,
            f"only {count} complete {'step' if count == 1 else 'steps'} (of {seconds(step_s)}): {more}",
        )
    measured = int(np.isfinite(fleet.steps.own_s).any(axis=1).sum())
    if measured < 2 and not has_baseline and not (measured and is_alone(fleet)):
        text = "only one rank was observed: it has no peers; give earlier windows with --baseline"
        return Note(NoteCode.ONE_RANK, text)
    return None


def is_alone(fleet: Fleet) -> bool:
    """Return whether the job has one rank only; never of a file of timings, which may lack ranks."""
    return len(fleet.ranks) == 1 and int(fleet.ranks.world_size[0]) == 1 and not fleet.timed


def not_compared(fleet: Fleet, has_baseline: bool = False) -> list[Note]:
    """Return a note if the job is one rank, or on ranks with less than half of the most steps."""
    if is_alone(fleet):
        return [] if has_baseline else [Note(NoteCode.ONE_RANK, "one rank: compared with nobody")]
    counts = np.isfinite(fleet.steps.seconds).sum(axis=1)
    most = int(counts.max(initial=0))
    few = tuple(int(number) for number in fleet.ranks.number[counts < 0.5 * most])
    text = f"{rank_list(few)} had less than half of the {most} steps of others, and could not be fully compared"
    return [Note(NoteCode.RANKS_SHORT, text)] if few else []


def ranks_gone(notes: Sequence[Note]) -> Note | None:
    """Return the note on missing or loading ranks, with which a job cannot be healthy; or None."""
    return next((note for note in notes if note.code in (NoteCode.RANKS_MISSING_HERE, NoteCode.LOADING)), None)


def unproven(fleet: Fleet, scene: Scene) -> Note | None:
    """Return a note on a rank whose excess is large, or nearly significant, but not proven by these steps."""
    found = scene.differences
    count = int(median(np.isfinite(scene.own).sum(axis=1)))
    # Steps that vary together prove no more than a few steps would: a rank that was waited for in
    # them stays possible.
    few = found.freedom + 1 < limits.STEPS_FEW
    waited = few & (waited_for(scene.wait, scene.roles) >= limits.HOLDS_LEAST * found.excess_s)
    big = (found.excess_s >= limits.LARGE_SHARE * scene.step_s) & (waited | (count < limits.STEPS_FEW))
    least = limits.SCORE_LEAST + float(np.log(len(found.z)))
    doubtful = big | ((strength_of_many_steps(found) >= least) & (strength(found) < least))
    if not doubtful.any():
        return None
    worst = int(np.argmax(np.where(doubtful, found.excess_s, -np.inf)))
    rank = int(fleet.ranks.number[worst])
    text = (
        f"rank {rank} seems {seconds(float(found.excess_s[worst]))} per step slower than its peers, but {count} steps "
        f"do not prove it: {_more(fleet, scene.step_s)}"
    )
    return Note(NoteCode.UNPROVEN, text, rank)


def _more(fleet: Fleet, step_s: float | None) -> str:
    """Advise to record or give more steps, in words; `step_s`: usual step, None if unknown."""
    if fleet.timed:
        return "give more steps"
    if step_s is None:
        return "record a longer window (--window)"
    return f"record a longer window (--window {longer_s(step_s, fleet.seconds)})"


def further_s(verdict: Verdict) -> float | None:
    """Seconds of a window that would answer what this verdict left open; None if none would help.

    Infinite where the length of a step is unknown.
    """
    said = [note.code for note in verdict.notes]
    if verdict.status == "unknown":
        said = said[:1]  # the first note is the reason
    elif verdict.status != "healthy":
        return None
    if not LONGER_TELLS.intersection(said):
        return None
    step_s = verdict.step_seconds.p50
    return longer_s(step_s, verdict.end - verdict.start) if step_s is not None else math.inf
