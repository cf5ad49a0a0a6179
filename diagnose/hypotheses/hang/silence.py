"""How long the ranks have been silent, and what a hang is to those that look for its reason.

silent(r) = end of the window - last marker of rank r (collective, backward)
patience  = max(5 ordinary steps, 3 s): a silence that is shorter is none yet
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.hypothesis import Hypothesis
from rankscope.diagnose.verdict.note import Note
from rankscope.probes.arrays import Bools, Floats


@dataclass(frozen=True, slots=True)
class Standstill:
    """The job makes no progress for `stalled_s` seconds; `found`: what may have stopped it, likeliest first."""

    stalled_s: float
    found: tuple[Hypothesis, ...]
    notes: tuple[Note, ...] = ()


def silent_s(fleet: Fleet) -> Floats:
    """How long ago each rank's last marker is. Without one in the whole window the silence is as long as the window, or since it came into
    the collective in which it waits."""
    last, entered = fleet.ranks.last_progress_s, fleet.ranks.in_collective_s
    came = np.where((entered > 0) & (entered < limits.NEARLY_ALWAYS * fleet.seconds), entered, fleet.seconds)
    return np.where(np.isfinite(last), last, came)


def patience_s(fleet: Fleet, step_s: float | None) -> float:
    """How long a silence is none yet. No complete step: steps may be long, so be patient."""
    return max(limits.STEPS_LEAST * step_s if step_s else 0.5 * fleet.seconds, limits.STALL_SECONDS)


def stalled_s(silent: Floats, culprits: Bools) -> float:
    """How long the others have been without progress; of all, if there are no others."""
    return float(np.median(silent[~culprits])) if (~culprits).any() else float(np.median(silent))
