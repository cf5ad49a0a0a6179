"""How long each rank has made no progress, and the description of a standstill.

silent(r) = end of the window - last marker of rank r (collective, backward)
patience  = max(5 ordinary steps, 3 s, the longest step): a shorter silence is no hang, since the
            job resumed after one as long
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import Hypothesis
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.note import Note
from rankscope.diagnose.stats.robust import median
from rankscope.probes.base.arrays import Bools, Floats


@dataclass(frozen=True, slots=True)
class Standstill:
    """A job without progress for `stalled_s` seconds; `found`: possible causes, likeliest first."""

    stalled_s: float
    found: tuple[Hypothesis, ...]
    notes: tuple[Note, ...] = ()


def silent_s(fleet: Fleet) -> Floats:
    """Return, by rank, the seconds since its last marker, at the end of the window.

    For a rank without a marker: since it entered the collective in which it waits, else the whole
    window.
    """
    last, entered = fleet.ranks.last_progress_s, fleet.ranks.in_collective_s
    came = np.where((entered > 0) & (entered < limits.NEARLY_ALWAYS * fleet.seconds), entered, fleet.seconds)
    return np.where(np.isfinite(last), last, came)


def patience_s(fleet: Fleet, step_s: float | None) -> float:
    """Seconds of silence up to which a job is not taken to hang.

    A multiple of `step_s`, an ordinary step; half of the window where that is None or 0 (no complete
    step), since steps may be long. At least limits.STALL_SECONDS and the longest step of the window.
    """
    usual = limits.STEPS_LEAST * step_s if step_s else 0.5 * fleet.seconds
    return max(usual, limits.STALL_SECONDS, _longest_s(fleet))


def _longest_s(fleet: Fleet) -> float:
    """Longest step of this window on the median rank, in seconds; 0 without steps."""
    known = fleet.steps.seconds[np.isfinite(fleet.steps.seconds).any(axis=1)]
    return float(np.median(np.nanmax(known, axis=1))) if known.size else 0.0


def stalled_s(silent: Floats, culprits: Bools) -> float:
    """Return the median seconds of silence of the ranks outside `culprits`; of all ranks if none is outside."""
    return median(silent[~culprits]) if (~culprits).any() else median(silent)
