"""What a host does while its GPU still works is not lost; where the GPU does not show when it works, nobody sees how much that is.

said where  a rank is accused of what its host does, and waits for its GPU for 5 % of the step: for what, nobody knows (model/waits.py)
On a real H100 a function before the second of two batches took 0.22 s more and cost 0.13 s, one after the step's end all that it took.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.waits import for_gpu_s
from rankscope.diagnose.verdict.contract import Suspect
from rankscope.diagnose.verdict.note import Note, NoteCode

_OF_THE_HOST = ("python", "storage", "cpu", "memory")
_TEXT = "the GPUs do not show when they work: of what a host does meanwhile nothing is lost, so the seconds told are the most it can be"


def notes(fleet: Fleet, suspects: Sequence[Suspect], step_s: float) -> list[Note]:
    """One, or none."""
    accused = {rank for one in suspects if one.component in _OF_THE_HOST for rank in one.ranks}
    if not accused:
        return []
    waited_s = for_gpu_s(fleet.patterns, len(fleet.ranks))[np.isin(fleet.ranks.number, list(accused))]
    return [Note(NoteCode.BEHIND_GPU, _TEXT)] if waited_s.max(initial=0.0) >= limits.EFFECT_SHARE * step_s else []
