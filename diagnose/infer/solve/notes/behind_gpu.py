"""A note where time of the host may be hidden behind a GPU that does not show when it computes.

What a host does while its GPU computes is not lost. The note is given where a suspect is a cause of
the host and its rank waits for its GPU for 5 % of the step for an unknown reason (model/waits.py).
Measured: diagnose/measured.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.waits import for_gpu_s
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.diagnose.infer.verdict.note import Note, NoteCode

_OF_THE_HOST = ("python", "storage", "cpu", "memory")
_TEXT = "an accused rank also waits for its GPU, whose work was not seen: where the GPU works meanwhile, the real cost is lower"


def notes(fleet: Fleet, suspects: Sequence[Suspect], step_s: float) -> list[Note]:
    """Return a note if time of a suspect's host may be hidden behind its GPU; empty if not."""
    accused = {rank for one in suspects if one.component in _OF_THE_HOST for rank in one.ranks}
    if not accused:
        return []
    waited_s = for_gpu_s(fleet.patterns, len(fleet.ranks))[np.isin(fleet.ranks.number, list(accused))]
    return [Note(NoteCode.BEHIND_GPU, _TEXT)] if waited_s.max(initial=0.0) >= limits.EFFECT_SHARE * step_s else []
