"""Without a suspect: decide whether the job is healthy or the verdict unknown.

Steps that became longer for good (stats/rhythm.py) are a change of the job unless the kernel counts
processes that took the CPU meanwhile:

job(s) = T(s) - max over ranks r of queue(r, s); queue: ready behind others, without the rank's own
         quota

If T grew by 10 % and job(s) did not, or by no more than is clear given the unevenness that
strangers cause (model/busy_host.py), the host was busy: that is a note, not a reason for doubt. The
same holds where all odd ranks are slow by CPU that others took, or by pages of memory that the
kernel supplies anew (infer/causes/rank/suspects.py).

A file of timings is not healthy while ranks wait for some rank all the same. A rank that stays in
communication less than the median of its peers, by the floor, in nearly every step, is the one they
wait for, whatever its own columns say. Where ranks are missing in the file and all others stay
there for a quarter of each step, they may wait for one of the missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.roles import roles
from rankscope.diagnose.infer.model.busy_host import busy_noise_s, queued_s, takers
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.waiting import transfer
from rankscope.diagnose.infer.solve.enough import is_alone, ranks_gone, unproven
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import ACQUITTED, EXCUSES, Note, NoteCode
from rankscope.diagnose.stats.onset import Onset
from rankscope.diagnose.stats.rhythm import find_rise, lasts_higher
from rankscope.diagnose.stats.robust import median, nan_median, peers_median
from rankscope.diagnose.text import rank_list, seconds
from rankscope.probes.base.arrays import Floats


def nobody(
    fleet: Fleet, has_baseline: bool, scene: Scene, per_step: Floats, odd: bool, notes: Sequence[Note]
) -> tuple[str, list[Note]]:
    """Return (status, notes) for a job without suspects; of an unknown verdict the reason comes
    first.

    `odd`: some rank was clearly slower but not explained.
    """
    known = per_step[np.isfinite(per_step)]
    rise = None if has_baseline else find_rise(known)
    busy = None if rise is None else _busy_host(fleet, scene, per_step, rise)
    reason = (
        unproven(fleet, scene)
        or _seldom(notes)
        or _no_peers(fleet, has_baseline, scene)
        or _no_waiting(fleet, has_baseline)
    )
    if reason is None and rise is not None and busy is None and lasts_higher(known, rise.column):
        reason = _grew(fleet, rise)
    codes = {note.code for note in notes}
    if codes & EXCUSES and not codes & ACQUITTED:
        odd = False  # all that is odd is CPU that others took, or pages that an allocator takes anew
    notes = [*([busy] if busy is not None else []), *(note for note in notes if note is not reason)]
    if reason is not None:
        return "unknown", [reason, *notes]
    gone = ranks_gone(notes)
    if gone is not None:
        return "unknown", [gone, *(note for note in notes if note is not gone)]
    if odd or any(note.code is NoteCode.UNTIMED for note in notes):
        return "unknown", sorted(notes, key=lambda note: note.code not in ACQUITTED)
    return "healthy", sorted(notes, key=lambda note: note.code is not NoteCode.PAGES_GIVEN)


def _seldom(notes: Sequence[Note]) -> Note | None:
    """Return the note on something costly but too rare to exclude chance (notes/rhythm.py), or
    None.
    """
    return next((note for note in notes if note.code is NoteCode.UNPROVEN), None)


def _no_peers(fleet: Fleet, has_baseline: bool, scene: Scene) -> Note | None:
    if has_baseline or scene.differences.peer_count.any() or is_alone(fleet):
        return None
    who = "earlier steps" if fleet.timed else "earlier windows (--baseline)"
    return Note(NoteCode.NO_PEERS, f"every rank has a role of its own: nobody has peers; only {who} could tell")


def _no_waiting(fleet: Fleet, has_baseline: bool) -> Note | None:
    """Return a note if ranks are in step but never seen to wait; or None.

    All of their times are then equal, whichever rank is slow.
    """
    if has_baseline or fleet.timed or len(fleet.ranks) < 2 or np.nansum(fleet.steps.wait_s) > 0:
        return None
    text = (
        "no rank was seen to wait for another one: the collectives of this job are not seen (`rankscope ranks` says which can be), "
        "and without them nobody knows who works and who waits"
    )
    return Note(NoteCode.UNTIMED, text)


def _grew(fleet: Fleet, change: Onset) -> Note:
    why = "no function tells why" if fleet.timed else "only an earlier window can tell why (--baseline)"
    return Note(NoteCode.NOBODY, f"steps became longer, {_from_to(change)}, and no rank stands out: {why}")


def _from_to(change: Onset) -> str:
    return f"from {seconds(change.before_s)} to {seconds(change.after_s)}"


def _busy_host(fleet: Fleet, scene: Scene, per_step: Floats, change: Onset) -> Note | None:
    """Return a note if steps became longer by CPU that others took; None if the job itself took
    longer.
    """
    known = np.isfinite(per_step)
    queue = queued_s(fleet)[:, known]
    if not queue.any():
        return None
    rise = find_rise(per_step[known] - queue.max(axis=0, initial=0.0))
    if rise is not None:
        uneven_s = median(busy_noise_s(fleet, scene.roles))
        if rise.after_s - rise.before_s > limits.Z_CLEAR * uneven_s:
            return None
    who = "who took their CPUs was not counted"
    if taken := takers(fleet, range(len(fleet.ranks))):
        who = f"{taken[0][0]} took {seconds(taken[0][1])} of their CPUs in the window"
    why = "because ranks stood longer in the queue for the CPU" if rise is None else "as they may beside others"
    text = f"steps became longer, {_from_to(change)}, {why}: {who}"
    return Note(NoteCode.HOST_BUSY, text)


# ---- files of timings: ranks that are waited for --------------------------------------------------------------------


def never_healthy(verdict: Verdict, fleet: Fleet) -> Verdict:
    """Turn a healthy verdict into unknown where the fleet shows that ranks wait for some rank."""
    if verdict.status != "healthy" or not fleet.steps.count:
        return verdict
    note = _visible(fleet) or _unseen(fleet)
    return verdict if note is None else replace(verdict, status="unknown", notes=(note, *verdict.notes))


def _visible(fleet: Fleet) -> Note | None:
    wait, step = fleet.steps.wait_s, nan_median(fleet.steps.seconds, 0)
    less = peers_median(wait, roles(fleet)) - wait
    known = np.isfinite(less)
    often = (np.nan_to_num(less) >= limits.EFFECT_SHARE * step).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    found = np.flatnonzero((often >= limits.NEARLY_ALWAYS) & (known.sum(axis=1) >= limits.STEPS_LEAST))
    if not len(found):
        return None
    who = rank_list(tuple(int(number) for number in fleet.ranks.number[found]))
    much = float(nan_median(less[found].reshape(1, -1), 1)[0])
    text = (
        f"{who}: in nearly every step the others wait for it, by {seconds(much)}, but what it does meanwhile is in no column that tells "
        "its work from its waiting: time its parts apart"
    )
    return Note(NoteCode.WAITED_FOR, text)


def _unseen(fleet: Fleet) -> Note | None:
    gone = next((note for note in fleet.notes if note.code is NoteCode.RANKS_MISSING), None)
    if gone is None:
        return None
    least, step = (
        float(nan_median(transfer(fleet.steps.wait_s)[None, :], 1)[0]),
        float(np.nanmedian(fleet.steps.seconds)),
    )
    if not least >= limits.LARGE_SHARE * step:
        return None
    text = (
        f"all ranks of the file stay in communication for {seconds(least)} of each step at least, and {gone.text}: "
        "they may wait for one of these"
    )
    return Note(NoteCode.WAITED_FOR, text)
