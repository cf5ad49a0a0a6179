"""How long the ranks have been silent, and what a hang is to those that look for its reason.

silent(r) = end of the window - last marker of rank r (collective, backward)
patience  = max(5 ordinary steps, 3 s, the longest step): a silence that is shorter is none yet, and the job came back from one as long
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.hypothesis import Hypothesis
from rankscope.diagnose.stats.robust import median
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
    usual = limits.STEPS_LEAST * step_s if step_s else 0.5 * fleet.seconds
    return max(usual, limits.STALL_SECONDS, _longest_s(fleet))


def _longest_s(fleet: Fleet) -> float:
    """The longest step of this window, on the median rank; 0 without one."""
    known = fleet.steps.seconds[np.isfinite(fleet.steps.seconds).any(axis=1)]
    return float(np.median(np.nanmax(known, axis=1))) if known.size else 0.0


def stalled_s(silent: Floats, culprits: Bools) -> float:
    """How long the others have been without progress; of all, if there are no others."""
    return median(silent[~culprits]) if (~culprits).any() else median(silent)
