"""Find how often a pause comes back, and when the next one is expected. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.stats.rhythm import find_period
from rankscope.diagnose.stats.robust import median
from rankscope.probes.base.arrays import Floats

_LATEST = 6  # tried alone where all together have no rhythm
_JITTER = 0.03  # of a period: loops that look at a clock do so once a step
_UNIT_STEPS = 2.0


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A pause comes back every `seconds`.

    `steps`: every so many steps, None where it keeps time instead; `last`: its last begin, Unix time; `jitter_s`: how
    far it strayed from its time.
    """

    seconds: float
    steps: int | None
    last: float
    jitter_s: float

    def next(self, now: float) -> float:
        """Return the Unix time of the first begin after `now` that is expected."""
        return self.last + self.seconds * max(math.floor((now - self.last) / self.seconds) + 1, 1)

    def expects(self, at: float) -> bool:
        """Tell whether a pause at Unix time `at` comes when one is expected."""
        off = (at - self.last) / self.seconds
        return abs(off - round(off)) * self.seconds <= self.jitter_s + _JITTER * self.seconds


def find(recent: Sequence[tuple[float, int]], step_s: float | None) -> Recurrence | None:
    """Find the recurrence of pauses, from begin (Unix time) and step number of each; None if there is none.

    `step_s`: usual duration of a step, None if unknown.
    """
    for part in (recent, recent[-_LATEST:]):
        if len(part) >= limits.SEVERAL and (found := _find(part, step_s or 0.0)) is not None:
            return found
    return None


def _find(recent: Sequence[tuple[float, int]], step_s: float) -> Recurrence | None:
    """Find a period in step numbers, else in time; None if neither has one. `recent`: (Unix time, step number).

    `step_s`: usual duration of a step, 0 if unknown.
    """
    at, step = (np.array(column, dtype=np.float64) for column in zip(*sorted(recent), strict=True))
    gaps = np.diff(at)
    if gaps.min() <= 0:
        return None
    period = find_period(step)
    if period is not None:
        seconds = float(at[-1] - at[0]) / float(step[-1] - step[0]) * period
        return Recurrence(seconds, round(period), float(at[-1]), _strayed_s(gaps, seconds))
    unit_s = max(_UNIT_STEPS * step_s, _JITTER * median(gaps), 1e-3)
    period = find_period(at / unit_s)
    if period is None:
        return None
    return Recurrence(period * unit_s, None, float(at[-1]), _strayed_s(gaps, period * unit_s))


def _strayed_s(gaps: Floats, seconds: float) -> float:
    """Return how far, at most, a gap is from its nearest multiple (1 or more) of the period `seconds`, in seconds."""
    times = np.maximum(np.round(gaps / seconds), 1.0)
    return float(np.abs(gaps - times * seconds).max())
