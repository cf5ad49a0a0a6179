"""Nobody is accused: is the job healthy, or can it not be told?

Steps that became longer for good (stats/rhythm.py, `lasting`) are a change of the job unless the kernel counts who took the CPU meanwhile:

job(s) = T(s) - max over ranks r of queue(r, s)     queue: ready behind others, without what a quota of its own held back

If T grew by 10 % and job(s) did not, the host was busy: that is a note, not a reason to doubt. The same holds where all ranks that are
odd are slow by what others took of their CPUs (hypotheses/rank/suspects.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.busy_host import queued_s, takers
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.solve.enough import ranks_gone, unproven
from rankscope.diagnose.stats.onset import Onset
from rankscope.diagnose.stats.rhythm import find_rise, lasts_higher
from rankscope.diagnose.text import seconds
from rankscope.diagnose.verdict.note import ACQUITTED, Note, NoteCode
from rankscope.probes.arrays import Floats


def nobody(
    fleet: Fleet, has_baseline: bool, scene: Scene, per_step: Floats, odd: bool, notes: Sequence[Note]
) -> tuple[str, list[Note]]:
    """(status, notes) where nobody is accused; of an unknown verdict the reason comes first. `odd`: some rank was odd nevertheless."""
    known = per_step[np.isfinite(per_step)]
    rise = None if has_baseline else find_rise(known)
    busy = None if rise is None else _busy_host(fleet, per_step, rise)
    reason = unproven(fleet, scene) or _no_peers(fleet, has_baseline, scene)
    if reason is None and rise is not None and busy is None and lasts_higher(known, rise.column):
        reason = _grew(fleet, rise)
    codes = {note.code for note in notes}
    if NoteCode.HOST_BUSY in codes and not codes & ACQUITTED:
        odd = False  # all that is odd is what others took of the CPU
    notes = [*([busy] if busy is not None else []), *notes]
    if reason is not None:
        return "unknown", [reason, *notes]
    gone = ranks_gone(notes)
    if gone is not None:
        return "unknown", [gone, *(note for note in notes if note is not gone)]
    if odd or any(note.code is NoteCode.UNTIMED for note in notes):
        return "unknown", sorted(notes, key=lambda note: note.code not in ACQUITTED)
    return "healthy", notes


def _no_peers(fleet: Fleet, has_baseline: bool, scene: Scene) -> Note | None:
    if has_baseline or scene.differences.peer_count.any():
        return None
    who = "earlier steps" if fleet.timed else "earlier windows (--baseline)"
    return Note(NoteCode.NO_PEERS, f"every rank has a role of its own: nobody has peers; only {who} could tell")


def _grew(fleet: Fleet, change: Onset) -> Note:
    why = "no function tells why" if fleet.timed else "only an earlier window can tell why (--baseline)"
    return Note(NoteCode.NOBODY, f"steps became longer, {_from_to(change)}, and no rank stands out: {why}")


def _from_to(change: Onset) -> str:
    return f"from {seconds(change.before_s)} to {seconds(change.after_s)}"


def _busy_host(fleet: Fleet, per_step: Floats, change: Onset) -> Note | None:
    """Steps became longer by what others took of the CPU, and who they are; None where the job itself took longer."""
    known = np.isfinite(per_step)
    queue = queued_s(fleet)[:, known]
    if not queue.any() or find_rise(per_step[known] - queue.max(axis=0, initial=0.0)) is not None:
        return None
    who = "who took their CPUs was not counted"
    if taken := takers(fleet, range(len(fleet.ranks))):
        who = f"{taken[0][0]} took {seconds(taken[0][1])} of their CPUs in the window"
    text = f"steps became longer, {_from_to(change)}, because ranks stood longer in the queue for the CPU: {who}"
    return Note(NoteCode.HOST_BUSY, text)
