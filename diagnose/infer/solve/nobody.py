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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.roles import roles
from rankscope.diagnose.infer.model.busy_host import busy_noise_s, queued_s
from rankscope.diagnose.infer.model.evidence.programs import takers
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.waiting import transfer
from rankscope.diagnose.infer.solve.enough import is_alone, ranks_gone, unproven
from rankscope.diagnose.infer.solve.select import Found
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import ACQUITTED, EXCUSES, Note, NoteCode
from rankscope.diagnose.stats.onset import Onset
from rankscope.diagnose.stats.rhythm import find_rise, lasts_higher
from rankscope.diagnose.stats.robust import median, nan_median, peers_median
from rankscope.diagnose.text import rank_list, seconds
from rankscope.probes.base.arrays import Floats


def nobody(found: Found, notes: Sequence[Note]) -> tuple[str, list[Note]]:
    """Return (status, notes) of a job without suspects: healthy, or unknown with the reason as first note."""
    doubt = _Doubt(found, notes, *_rise(found))
    reason = next((note for why in REASONS if (note := why(doubt)) is not None), None)
    busy, codes = doubt.busy, {note.code for note in notes}
    # All that is odd may be CPU that others took, or pages that an allocator takes anew.
    excused = bool(codes & EXCUSES) and not codes & ACQUITTED
    notes = [*([busy] if busy is not None else []), *(note for note in notes if note is not reason)]
    if reason is not None:
        return "unknown", [reason, *notes]
    if (found.odd.selection.unexplained and not excused) or NoteCode.UNTIMED in codes:
        return "unknown", sorted(notes, key=lambda note: note.code not in ACQUITTED)
    return "healthy", sorted(notes, key=lambda note: note.code is not NoteCode.PAGES_GIVEN)


@dataclass(frozen=True, slots=True)
class _Doubt:
    """What speaks against a healthy job.

    `rise`: lasting rise of the steps; `busy`: note that CPU which other processes took explains the
    rise.
    """

    found: Found
    notes: Sequence[Note]
    rise: Onset | None
    busy: Note | None


def _unproven(doubt: _Doubt) -> Note | None:
    """Return a note on an excess that is large, or nearly clear, and not proven by these steps; else None."""
    return unproven(doubt.found.job.fleet, doubt.found.job.scene)


def _seldom(doubt: _Doubt) -> Note | None:
    """Return the note on something costly but too rare to exclude chance (notes/rhythm.py)."""
    return next((note for note in doubt.notes if note.code is NoteCode.UNPROVEN), None)


def _no_peers(doubt: _Doubt) -> Note | None:
    """Return a note if no rank has a peer and there is no baseline; None otherwise, or for a job of one rank."""
    found = doubt.found
    if found.job.reference is not None or found.job.scene.differences.peer_count.any() or is_alone(found.job.fleet):
        return None
    who = "earlier steps" if found.job.fleet.timed else "earlier windows (--baseline)"
    return Note(NoteCode.NO_PEERS, f"every rank has a role of its own: nobody has peers; only {who} could tell")


def _no_waiting(doubt: _Doubt) -> Note | None:
    """Return a note if none of several ranks was ever seen to wait; None with a baseline or for a file of timings.

    Without waits, all ranks show equal times, whichever is slow.
    """
    fleet = doubt.found.job.fleet
    if (
        doubt.found.job.reference is not None
        or fleet.timed
        or len(fleet.ranks) < 2
        or np.nansum(fleet.steps.wait_s) > 0
    ):
        return None
    text = (
        "no rank was seen to wait for another one: the collectives of this job are not seen (`rankscope ranks` says which can be), "
        "and without them nobody knows who works and who waits"
    )
    return Note(NoteCode.UNTIMED, text)


def _grew(doubt: _Doubt) -> Note | None:
    """Return a note if steps became longer for good, and not by CPU that others took."""
    found, rise = doubt.found, doubt.rise
    known = _step_s(found)
    if rise is None or doubt.busy is not None or not lasts_higher(known[np.isfinite(known)], rise.column):
        return None
    why = "no function tells why" if found.job.fleet.timed else "only an earlier window can tell why (--baseline)"
    return Note(NoteCode.NOBODY, f"steps became longer, {_from_to(rise)}, and no rank stands out: {why}")


def _gone(doubt: _Doubt) -> Note | None:
    """Return the note on ranks that are missing, or load something; else None."""
    return ranks_gone(doubt.notes)


# Why the verdict is unknown: the first that applies.
REASONS: tuple[Callable[[_Doubt], Note | None], ...] = (
    _unproven,  # an excess is large, or nearly clear, and these steps do not prove it
    _seldom,  # one rank was slow in too few steps, at a large cost
    _no_peers,  # every rank has a role of its own
    _no_waiting,  # no rank is ever seen to wait
    _grew,  # steps became longer for good
    _gone,  # ranks are missing, or load something
)


def _step_s(found: Found) -> Floats:
    """Length of each step, median over ranks, in seconds."""
    return nan_median(found.job.fleet.steps.seconds, 0)


def _rise(found: Found) -> tuple[Onset | None, Note | None]:
    """Return (rise of the steps, note that CPU which others took explains it); None where there is none.

    No rise is looked for where there is a baseline.
    """
    per_step = _step_s(found)
    rise = None if found.job.reference is not None else find_rise(per_step[np.isfinite(per_step)])
    return rise, None if rise is None else _busy_host(found.job.fleet, found.job.scene, per_step, rise)


def _from_to(change: Onset) -> str:
    """Words on a change of the step: 'from 0.2 s to 0.3 s'."""
    return f"from {seconds(change.before_s)} to {seconds(change.after_s)}"


def _busy_host(fleet: Fleet, scene: Scene, per_step: Floats, change: Onset) -> Note | None:
    """Return a note if steps became longer by CPU that others took; None if the job itself took longer.

    `per_step`: seconds of each step; `change`: the rise.
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
    """Return a note on ranks that others wait for in nearly every step, whatever their own times say; else None."""
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
    """Return a note if ranks are missing in the file and all others wait long in each step; else None.

    They may wait for a missing rank.
    """
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
