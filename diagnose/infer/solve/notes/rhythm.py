"""Notes on drifts, pauses, spikes of all ranks, and long steps of one that are too few to judge by.

Spikes of all ranks are common work (a checkpoint, an evaluation): no fault, but with a cost, so a
note gives it and how often; where the function is known (pauses.py), that instead. Spikes of one
rank alone are episodes (model/episodes.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.roles import roles
from rankscope.diagnose.infer.model.episodes import at_one_place, find_episodes
from rankscope.diagnose.infer.solve.notes.pauses import ToldPause, explain, place_of
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.rhythm import Drift, Spikes, find_spikes
from rankscope.diagnose.stats.robust import nan_median, robust_sd
from rankscope.diagnose.text import rank_list, seconds
from rankscope.probes.base.arrays import Floats, Ints

LATER_PART = "only the later part is judged (functions, counters and where the time goes: the whole window)"


def rhythm_notes(
    fleet: Fleet, per_step: Floats, drift: Drift | None, later: bool, paused: Sequence[ToldPause] = ()
) -> list[Note]:
    """Return notes on drifts, pauses, spikes of all ranks, and rare long steps of one rank.

    `per_step`: seconds of each step. `later`: only the later part of the window is judged.
    `paused`: known pauses, which explain spikes.
    """
    own = fleet.steps.own_s
    notes = [pause.note for pause in paused]
    if drift is not None:
        more = "longer" if drift.end_s > drift.begin_s else "shorter"
        text = f"steps grow steadily {more} in the window, from {seconds(drift.begin_s)} to {seconds(drift.end_s)}"
        text += f": {LATER_PART}" if later else ""
        notes.append(Note(NoteCode.STEPS_DRIFT, text))
    spikes = find_spikes(per_step)
    high = np.empty(0, np.int64) if spikes is None else _high(per_step, spikes)
    if spikes is not None and not explain(paused, high, per_step[high] - spikes.usual_s):
        mean = seconds(spikes.cost_s)
        text = (
            f"every {spikes.period}th step takes {seconds(spikes.spike_s)} instead of {seconds(spikes.usual_s)}, "
            f"{'next to nothing' if mean == seconds(0.0) else mean} on average: {_who(fleet.ranks.number, own, per_step, spikes)}"
        )
        notes.append(Note(NoteCode.SPIKES, text))
    step_s = float(np.nanmedian(per_step)) if np.isfinite(per_step).any() else 0.0
    return notes + _seldom(fleet, step_s, paused)


def _high(per_step: Floats, spikes: Spikes) -> Ints:
    """Columns of the steps that are spikes: longer than half-way between usual and spike."""
    return np.flatnonzero(np.nan_to_num(per_step) >= (spikes.spike_s + spikes.usual_s) / 2).astype(np.int64)


def _who(numbers: Ints, own: Floats, per_step: Floats, spikes: Spikes) -> str:
    """Words on what ranks do in the spikes: most are busy, all wait, or some are busy and waited for.

    `numbers`: rank numbers; `own`: ranks x steps.
    """
    at = _high(per_step, spikes)
    busy = nan_median(own[:, at], 1) - nan_median(own, 1)
    then = np.nan_to_num(busy) >= 0.5 * (spikes.spike_s - spikes.usual_s)
    if then.mean() > 0.5:
        return "most ranks are busy then (a checkpoint, an evaluation, a collection?)"
    if not then.any():
        return "all ranks wait then: for the network or storage"
    are = "is" if then.sum() == 1 else "are"
    return f"{rank_list(tuple(sorted(numbers[then].tolist())))} {are} busy then, and waited for"


def _seldom(fleet: Fleet, step_s: float, paused: Sequence[ToldPause]) -> list[Note]:
    """Return a note on one rank's long steps that are too few to exclude chance, or none.

    It says where, at what cost, and what to record next. A large cost (UNPROVEN) prevents a healthy
    verdict.
    """
    own = fleet.steps.own_s
    ranks, steps = own.shape
    if ranks < 2 or steps < limits.STEPS_FEW or step_s <= 0:
        return []
    gap = own - nan_median(own, 0)[None, :]
    spread = 6 * robust_sd(gap, 1)[:, None]
    sudden = np.nan_to_num(gap) >= np.maximum(limits.LARGE_SHARE * step_s, np.nan_to_num(spread, nan=np.inf))
    sudden_s = np.where(sudden, gap, 0.0).sum(axis=1)
    row = int(np.argmax(sudden_s))
    at = np.flatnonzero(sudden[row])
    known = int(np.isfinite(own[row]).sum())
    # Compared with seconds of one rank, milliseconds of another are the host's noise.
    alone = float(sudden_s[row]) >= limits.NEARLY_ALL * float(sudden_s.sum())
    if not 0 < len(at) <= limits.PART * known or not alone or explain(paused, at, gap[row, at]):
        return []
    if len(at) >= limits.SEVERAL:  # with fewer, a rank that is a suspect for them has no such note (explain.py)
        none = np.empty(0, np.int64)
        proven = find_episodes(own, roles(fleet), step_s, np.zeros(ranks), none, at_one_place(fleet, 0))
        if any(each.row == row for each in proven):
            return []
    cost_s, mean_s = float(gap[row, at].sum()) / known, float(np.nanmean(fleet.steps.seconds[row]))
    if len(at) == 1 and cost_s < limits.EFFECT_SHARE * mean_s:
        return []
    # A window with as many as make an episode (limits.SEVERAL), and twice as many as here.
    wanted = max(limits.SEVERAL * int(np.diff(at).max(initial=0)), -(-limits.SEVERAL * known // min(len(at), 2)))
    rank = int(fleet.ranks.number[row])
    where = place_of(fleet, row, at.astype(np.int64)).rstrip(",")
    longer = f"look at {wanted} steps and more"
    if not fleet.timed:
        longer += f" (`--window {wanted * mean_s:.0f}`)" if wanted * mean_s >= 1 else ""
    share = f"{min(100 * cost_s / mean_s, 100.0):.0f} % of the time"
    if len(at) == 1:
        there = f", in {where}" if where else ""
        took = f"one step of {known} took {seconds(float(gap[row, at[0]]))} longer on rank {rank} alone{there}"
        text = f"{took} ({share}): once is no pattern, {longer}"
    else:
        text = (
            f"rank {rank} alone was slow in {len(at)} of {known} steps, {int(np.diff(at).min())} apart"
            f"{f', each time in {where}' if where else ''} ({share}), which may be chance: {longer}"
        )
    little = NoteCode.SELDOM_LITTLE if cost_s < limits.EFFECT_SHARE * mean_s else NoteCode.SELDOM
    return [Note(NoteCode.UNPROVEN if cost_s >= limits.LARGE_SHARE * mean_s else little, text, rank)]
