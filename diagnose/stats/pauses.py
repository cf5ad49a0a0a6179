"""Find recurring pauses of a series: values far above the others, at equal distances in values or in time.

One or a few such values together are a pause.

Three at equal distances (`find_period`) predict the next ones: long values at a predicted time are
masked, up to the number of values of the longest of them. Pauses of one kind may lie between those
of another (an evaluation, a checkpoint): so the longer half is also examined separately. What
recurs every `_RARE` values or more often is no pause but part of the series.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.stats.rhythm import find_period
from rankscope.diagnose.stats.robust import median
from rankscope.probes.base.arrays import Bools, Floats

_REMEMBERED = 16
_VALUES_MOST = _REMEMBERED  # of one pause; longer ones are a change
_LEARNT = limits.SEVERAL
_RARE = 20
_EARLY = 2  # values by which a pause may come before or after its time


@dataclass(slots=True)
class _Pause:
    """A pause.

    `at`: number of its first value; `time_s`: sum of the values before it; `values`: their number in it; `seconds`:
    their sum.
    """

    at: int
    time_s: float
    values: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Rhythm:
    """A regular recurrence of pauses: every `period` values, or every `period` seconds if `in_seconds`.

    `last`: where the last one began, in the same unit; `values`: number of values of the longest.
    """

    period: float
    last: float
    in_seconds: bool
    values: int


@dataclass(slots=True)
class Pauses:
    """Recurring pauses of one series, as learnt so far."""

    _found: deque[_Pause] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _time_s: float = 0.0
    _open: _Pause | None = None
    _rhythms: tuple[_Rhythm, ...] = ()

    @property
    def longest_s(self) -> float:
        """Duration of the longest remembered pause, once there were three; else 0."""
        return max((one.seconds for one in self._found), default=0.0) if len(self._found) >= _LEARNT else 0.0

    def masks(self, seen: int, values: Floats, long: Bools) -> Bools:
        """Tell which of the `long` values belong to a pause that was predicted. `seen`: number of values before these."""
        masked = np.zeros(len(values), dtype=np.bool_)
        if not self._rhythms or not long.any():
            return masked
        time_s = self._time_s + np.cumsum(values) - values
        usual_s = median(values)
        for rhythm in self._rhythms:
            at = time_s if rhythm.in_seconds else seen + np.arange(len(values), dtype=np.float64)
            early = _EARLY * (usual_s if rhythm.in_seconds else 1.0)
            reach = early + rhythm.values * (usual_s if rhythm.in_seconds else 1.0)
            phase = (at - rhythm.last + early) % rhythm.period
            masked |= long & (phase <= reach + early)
        return masked

    def add(self, seen: int, values: Floats, long: Bools) -> None:
        """Record the pauses in these values: consecutive `long` ones, masked or not. `seen`: number of values before."""
        if self._open is None and not long.any():
            self._time_s += float(values.sum())
            return
        for place, (value, is_long) in enumerate(zip(values.tolist(), long.tolist(), strict=True)):
            if is_long:
                if self._open is None:
                    self._open = _Pause(seen + place, self._time_s, 0, 0.0)
                self._open.values += 1
                self._open.seconds += value
            elif self._open is not None:
                if self._open.values <= _VALUES_MOST:
                    self._found.append(self._open)
                    self._rhythms = self._find_rhythms()
                self._open = None
            self._time_s += value

    def _find_rhythms(self) -> tuple[_Rhythm, ...]:
        """Find the rhythms of the remembered pauses: of all, of the long ones, and of the others."""
        found = list(self._found)
        if len(found) < _LEARNT:
            return ()
        middle = median([one.seconds for one in found])
        groups = (
            found,
            [one for one in found if one.seconds > 1.5 * middle],
            [one for one in found if one.seconds <= 1.5 * middle],
        )
        rhythms = [rhythm for group in groups if (rhythm := _rhythm(group)) is not None]
        return tuple(dict.fromkeys(rhythms))


def _rhythm(found: list[_Pause]) -> _Rhythm | None:
    """Find the rhythm of these pauses, in values or else in seconds; None without one, or if they come too often."""
    if len(found) < _LEARNT:
        return None
    longest = max(one.values for one in found)
    at = np.array([one.at for one in found], dtype=np.float64)
    if median(np.diff(at)) < _RARE:
        return None
    if (period := find_period(at)) is not None:
        return _Rhythm(period, float(at[-1]), False, longest)
    time_s = np.array([one.time_s for one in found])
    usual_s = median(np.diff(time_s) / np.maximum(np.diff(at), 1.0))
    unit_s = _EARLY * max(usual_s, 1e-9)
    period = find_period(time_s / unit_s)
    return None if period is None else _Rhythm(period * unit_s, float(time_s[-1]), True, longest)
