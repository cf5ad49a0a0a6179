"""Nobody is accused: is the job healthy, or can it not be told?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.solve.enough import unproven
from rankscope.diagnose.stats.rhythm import find_growth
from rankscope.diagnose.text import seconds
from rankscope.diagnose.verdict.note import ACQUITTED, Note, NoteCode
from rankscope.probes.arrays import Floats


def nobody(
    fleet: Fleet, has_baseline: bool, scene: Scene, per_step: Floats, odd: bool, notes: Sequence[Note]
) -> tuple[str, list[Note]]:
    """(status, notes) where nobody is accused; of an unknown verdict the reason comes first. `odd`: some rank was odd nevertheless."""
    reason = unproven(fleet, scene) or _no_peers(fleet, has_baseline, scene) or _grew(fleet, has_baseline, per_step)
    if reason is not None:
        return "unknown", [reason, *notes]
    if odd or any(note.code is NoteCode.UNTIMED for note in notes):
        return "unknown", sorted(notes, key=lambda note: note.code not in ACQUITTED)
    return "healthy", list(notes)


def _no_peers(fleet: Fleet, has_baseline: bool, scene: Scene) -> Note | None:
    if has_baseline or scene.differences.peer_count.any():
        return None
    who = "earlier steps" if fleet.timed else "earlier windows (--baseline)"
    return Note(NoteCode.NO_PEERS, f"every rank has a role of its own: nobody has peers; only {who} could tell")


def _grew(fleet: Fleet, has_baseline: bool, per_step: Floats) -> Note | None:
    change = None if has_baseline else find_growth(per_step[np.isfinite(per_step)])
    if change is None:
        return None
    why = "no function tells why" if fleet.timed else "only an earlier window can tell why (--baseline)"
    longer = f"from {seconds(change.before_s)} to {seconds(change.after_s)}"
    return Note(NoteCode.NOBODY, f"steps became longer, {longer}, and no rank stands out: {why}")
