"""Find long steps in a job's series of steps: what a step takes more than usual. Pure.

long   a step that exceeds the median of the last `KEPT` ordinary ones by max(6 robust standard deviations, 5 % of it, 20 ms)
pause  up to `RUN` long steps one after the other; more of them are a change of level

Nothing is long before `LEARNT` steps. Of these first steps, those of three times their median are
start-up (compiling, caches).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rankscope.diagnose import limits
from rankscope.diagnose.stats.robust import MAD_TO_SD

KEPT = 64
LEARNT = limits.STEPS_FEW * 2
RUN = 16  # as in stats/pauses.py
_REFRESH = 16
_SPREADS = 6.0
_SHARE = limits.EFFECT_SHARE
_LEAST_S = 0.020
_FIRST = 3.0  # times the median: a step that compiled, say


@dataclass(frozen=True, slots=True)
class LongSteps:
    """Consecutive long steps, times in CLOCK_MONOTONIC.

    `first`: number of the first one; `excess_s`: above the usual duration, sum over all.
    """

    begin_s: float
    end_s: float
    steps: int
    first: int
    excess_s: float


@dataclass(slots=True)
class Pace:
    """Usual duration of a job's steps, and the long steps since the last ordinary one."""

    usual_s: float | None = None
    open: LongSteps | None = None
    _limit_s: float = 0.0
    _kept: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    _since: int = 0

    def take(self, end_s: float, seconds: float, number: int) -> tuple[float, LongSteps | None]:
        """Process step `number`; return its seconds above the usual (0 if ordinary), and the pause that this step ends.

        The pause is None unless long steps came right before and this one is ordinary.
        """
        if self.usual_s is None:
            self._kept.append(seconds)
            if len(self._kept) >= LEARNT:
                self._learn()
            return 0.0, None
        excess = seconds - self.usual_s
        if excess > self._limit_s:
            before = self.open
            if before is None:
                self.open = LongSteps(end_s - seconds, end_s, 1, number, excess)
            else:
                more = before.excess_s + excess
                self.open = LongSteps(before.begin_s, end_s, before.steps + 1, before.first, more)
            return excess, None
        self._kept.append(seconds)
        self._since += 1
        if self._since >= _REFRESH:
            self._learn()
        return 0.0, self.close()

    def close(self) -> LongSteps | None:
        """Return the long steps since the last ordinary one and forget them; None if there are none."""
        found, self.open = self.open, None
        return found

    @property
    def is_level(self) -> bool:
        """True if so many steps were long that they are a change of level."""
        return self.open is not None and self.open.steps > RUN

    def move(self, level_s: float) -> None:
        """Set the usual duration to that after a change of level, in seconds."""
        self._limit_s *= level_s / self.usual_s if self.usual_s else 1.0
        self.usual_s = level_s
        self._limit_s = max(self._limit_s, _SHARE * level_s, _LEAST_S)
        self._kept.clear()
        self._kept.append(level_s)
        self._since = 0

    def first_excess_s(self) -> float:
        """Return the seconds that the first steps took more than usual. Call once, when the usual is known."""
        usual_s = self.usual_s or 0.0
        return sum(one - usual_s for one in self._kept if one >= _FIRST * usual_s)

    def _learn(self) -> None:
        """Set the usual duration, and by how much a step must exceed it to be long, from the last ordinary steps."""
        self._since = 0
        self.usual_s, spread_s = _middle(self._kept)
        self._limit_s = max(_SPREADS * spread_s, _SHARE * self.usual_s, _LEAST_S)


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """Return median and robust standard deviation. Plain Python: 64 values take 20 µs."""
    ordered = sorted(values)
    level = ordered[len(ordered) // 2]
    away = sorted(abs(one - level) for one in ordered)
    return level, MAD_TO_SD * away[len(away) // 2]
