"""Detect when a never-ending series rises: a one-sided CUSUM that learns its own baseline.

x = log of a value. Over the last `KEPT` values that were not masked:

  level, spread   mean and standard deviation of x, clipped at 4 spreads (begun with median, MAD and tails)
  long_run        the spread of means under autocorrelation: sqrt of the largest m var(means of m values), m = 4, 16, … with at least
                  eight means, and spread² (1 + rho) / (1 - rho), rho: lag-1 autocorrelation, usable with few values
  S_d             max(0, S_d + clip(x - level, ± 4 spreads) - d / 2) for each d of `SHIFTS`, each most sensitive to its own shift
  wander          1.4826 MAD of the level's change over `KEPT` values, over all recorded levels
  alarm           S_d > long_run² · ALARM / d, and the values since S_d was 0 are higher by `LEAST` and by 4 wanders

A random walk with that variance and the drift -d/2 exceeds that by chance with probability
exp(-ALARM) (Siegmund 1985, Sequential Analysis, ch. III). The level is uncertain by e = long_run /
sqrt(values kept): d is at least 6 e. `RUN` consecutive long values never alarm, however long they
are. Values that may still turn out to be a shift enter the baseline late.

After an alarm the baseline is frozen, until the values are `BACK`, or have been higher for so long
that they are the new baseline (`STAYS`). A further rise by at least the total shift reported so far
is reported again, by the same sum with that shift as d, relative to level and spread after the
alarm (`LEARNT` values): a drift is reported at 3, 6, 12 … %, and a second fault after a small first
one is not missed.

A lasting fall is a new baseline at once, and is not reported.

Pauses that recur at equal distances, counted in values or in time, are masked (pauses.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum
from statistics import NormalDist

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.stats.pauses import Pauses
from rankscope.diagnose.stats.robust import CLIP, MAD_TO_SD, long_run_variance, median
from rankscope.probes.base.arrays import Bools, Floats

SKIPPED = limits.STEPS_FEW  # first values, excluded: compiling, caches, autotuning
LEARNT = SKIPPED * 5  # values before anything is reported
KEPT = 1024
SHIFTS = (0.03, 0.1, 0.3)  # shares of the level
LEAST = SHIFTS[0]
# ln of the values per false alarm, of three detectors: 2e7 values, eight months at one a second, as
# nobody requested the detection.
ALARM = 18.0
RUN = limits.STEPS_LEAST
_TAIL = 0.05
# standard deviations between the tails of a normal distribution
_TAILS_APART = NormalDist().inv_cdf(1 - _TAIL) * 2
# share of a value: timers and their readers make the steadiest series vary by as much
_SPREAD_LEAST = 0.004
_REFRESH = KEPT // 8  # values between two updates of the baseline
_REFRESH_FIRST = _REFRESH // 4
_LEVEL_VALUES = KEPT // 4  # number of values per recorded level
_LEVELS = KEPT // 8  # number of recorded levels: nine hours at one value a second
_WANDERS = CLIP
_LEVEL_ERRORS = 6.0
# a value longer than usual by this and by _LEVEL_ERRORS spreads may belong to a pause
_PAUSE_SHARE = limits.PART
# the share by which values must fall to be a new baseline at once; smaller falls are learnt
# gradually
_FALL = limits.FEW
_BACK = limits.HOLDS_LEAST  # share of a shift that must be gone
_STAYS = KEPT  # values after which a shift is the baseline
_RECENT = _LEVEL_VALUES


class State(Enum):
    """Kind of a change."""

    HIGHER = "higher"  # the values are above the baseline
    BACK = "back"  # they are back at it
    STAYS = "stays"  # they were above it for so long that they are the new baseline


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level from value number `since` on, detected at value number `at`; both count from the first one fed.

    `before`, `after`: levels as values, not logs.
    """

    state: State
    since: int
    at: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """Usual logs of values: level, spread, long-run spread. `count`: number of values it was learnt from."""

    level: float
    spread: float
    long_run: float
    count: int


def learn(x: Floats) -> Baseline:
    """Compute the baseline of the logs `x`: level and spread with outliers clipped, and the long-run spread."""
    level = median(x)
    # a mixture of two kinds of values has a spread that a MAD does not show
    low, high = np.quantile(x, (_TAIL, 1 - _TAIL))
    spread = max(MAD_TO_SD * median(np.abs(x - level)), float(high - low) / _TAILS_APART, _SPREAD_LEAST)
    for _ in range(2):
        kept = np.clip(x, level - CLIP * spread, level + CLIP * spread)
        level, spread = float(kept.mean()), max(float(kept.std()), _SPREAD_LEAST)
    rest = np.clip(x - level, -CLIP * spread, CLIP * spread)
    rho = float(np.clip((rest[1:] * rest[:-1]).sum() / max(float((rest**2).sum()), 1e-12), 0.0, 0.95))
    # Add one standard error: an estimate from few values is too low as often as too high.
    rho = min(rho + 1 / np.sqrt(len(x)), 0.95)
    variance = max(spread**2 * (1 + rho) / (1 - rho), long_run_variance(rest))
    return Baseline(level, spread, float(np.sqrt(variance)), len(x))


@dataclass(slots=True)
class _Climb:
    """A CUSUM sum, never below zero, and the number of the value after which it was last at zero."""

    height: float = 0.0
    zero_at: int = 0

    def crosses(self, step: Floats, limit: float) -> int | None:
        """Return the index of the first step at which the sum would exceed `limit`; None if it does not. Adds nothing."""
        if self.height + float(np.maximum(step, 0.0).sum()) <= limit:
            return None
        above = np.flatnonzero(self._path(step) > limit)
        return int(above[0]) if len(above) else None

    def since(self, step: Floats, at: int, seen: int) -> int:
        """Return the number of the value after which the sum was last at zero, up to step `at`.

        `seen`: number of values before these steps. Adds nothing.
        """
        zeros = np.flatnonzero(self._path(step[: at + 1]) <= 0.0)
        return seen + int(zeros[-1]) + 1 if len(zeros) else self.zero_at

    def add(self, step: Floats, seen: int) -> None:
        """Add these steps to the sum; `seen`: number of values before them."""
        if len(step):
            path = self._path(step)
            zeros = np.flatnonzero(path <= 0.0)
            if len(zeros):
                self.zero_at = seen + int(zeros[-1]) + 1
            self.height = float(path[-1])

    def _path(self, step: Floats) -> Floats:
        """Return the sum after each of these steps, started from the present sum and kept at zero or above."""
        free = self.height + np.cumsum(step)
        return np.asarray(free - np.minimum(np.minimum.accumulate(free), 0.0), dtype=np.float64)


@dataclass(slots=True)
class ChangeDetector:
    """Detector of changes in one series. `feed` takes its values in any portions; `seen` counts them."""

    baseline: Baseline | None = None
    seen: int = 0
    pauses: Pauses = field(default_factory=Pauses)
    _first: int = SKIPPED  # the value from which the baseline is learnt
    _kept: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    # for the baseline, until they are clearly no shift
    _waiting: list[float] = field(default_factory=list)
    _rise: list[_Climb] = field(default_factory=lambda: [_Climb() for _ in SHIFTS])
    _fall: _Climb = field(default_factory=_Climb)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _due: int = LEARNT
    _noise: float = 0.0
    _levels: deque[float] = field(default_factory=lambda: deque(maxlen=_LEVELS))
    _of_level: list[float] = field(default_factory=list)
    _wander: float = 0.0
    _shifted: Change | None = None
    _further: _Climb = field(default_factory=_Climb)
    _plateau: Baseline | None = None  # the baseline while shifted

    @property
    def shifted(self) -> Change | None:
        """The reported rise that is not over yet; None if there is none."""
        return self._shifted

    def feed(self, values: Floats) -> list[Change]:
        """Process values (above zero); return the changes that they reveal, in order."""
        told: list[Change] = []
        rest = np.asarray(values, dtype=np.float64)
        while len(rest):
            taken, change = self._block(rest[: max(self._due - self.seen, 1)])
            rest = rest[taken:]
            if change is not None:
                told.append(change)
        return told

    def _block(self, values: Floats) -> tuple[int, Change | None]:
        """Process the first of these values; return how many were used, and the change they reveal."""
        x = np.log(np.maximum(values, 1e-6))
        if self.baseline is None:
            self._learn_first(x, values)
            return len(x), None
        rise = x - self.baseline.level
        long = rise > max(_LEVEL_ERRORS * self.baseline.spread, np.log1p(_PAUSE_SHARE))
        masked = self.pauses.masks(self.seen, values, long)
        clip = CLIP * self.baseline.spread
        rise = np.where(masked, 0.0, np.clip(rise, -clip, clip))
        taken, change = (self._watch_rise if self._shifted is None else self._watch_end)(x, rise, masked)
        self.pauses.add(self.seen, values[:taken], long[:taken])
        self._recent.extend(x[:taken][~masked[:taken]].tolist())
        if self._shifted is None and change is None:
            self._waiting += x[:taken][~masked[:taken]].tolist()
        self.seen += taken
        if change is not None:
            change = self._tell(change)
        if self.seen >= self._due:
            self._refresh()
        return taken, change

    def _learn_first(self, x: Floats, values: Floats) -> None:
        """Collect the logs `x` of the first values, and learn the first baseline once there are enough."""
        self._kept.extend(x[max(self._first - self.seen, 0) :].tolist())
        self.pauses.add(self.seen, values, np.zeros(len(x), dtype=np.bool_))
        self.seen += len(x)
        if self.seen >= self._due:
            self._learn()
            self._due = self.seen + _REFRESH_FIRST

    def _watch_rise(self, x: Floats, rise: Floats, masked: Bools) -> tuple[int, Change | None]:
        """Watch for a rise while none is reported; return how many of the values were used, and the change or None.

        `x`: logs of the values; `rise`: above the level, clipped, 0 where `masked` (recurring pauses). A lasting fall
        is no change: the baseline is learnt anew.
        """
        base = self.baseline
        assert base is not None
        found: tuple[int, int] | None = None
        sums = []
        for climb, shift in zip(self._rise, SHIFTS, strict=True):
            least = np.log1p(shift)
            d = max(least, _LEVEL_ERRORS * base.long_run / np.sqrt(base.count))
            step = np.where(masked, 0.0, rise - d / 2)
            sums.append((climb, step))
            at = climb.crosses(step, _height(base, d))
            if at is not None and (found is None or at < found[0]):
                found = at, climb.since(step, at, self.seen)
        fall = np.where(masked, 0.0, -rise - np.log1p(_FALL) / 2)
        if found is None:
            at = self._fall.crosses(fall, _height(base, np.log1p(_FALL)))
            if at is not None:  # faster than ever: learn the baseline anew
                self._forget(self.seen + at + 1)
                return at + 1, None
        taken = len(x) if found is None else found[0] + 1
        for climb, step in (*sums, (self._fall, fall)):
            climb.add(step[:taken], self.seen)
        if found is None:
            return taken, None
        at, since = found
        level = self._level_since(x[:taken], self.seen + at - since + 1)
        if level - base.level < max(np.log1p(LEAST), _WANDERS * self._wander):
            self._rise = [_Climb(zero_at=self.seen + taken) for _ in SHIFTS]
            return taken, None
        return taken, Change(State.HIGHER, since, self.seen + at, float(np.exp(base.level)), float(np.exp(level)))

    def _level_since(self, x: Floats, count: int) -> float:
        """Return the median of the last `count` logs, of which the latest are `x`."""
        latest = [*self._recent, *x.tolist()][-max(count, 1) :]
        return median(latest)

    def _watch_end(self, x: Floats, rise: Floats, masked: Bools) -> tuple[int, Change | None]:
        """Watch for the end of a reported rise, or a further one; return how many values were used, and any change.

        The rise ends when values are back, or have been above for so long that they are usual. `x`: logs of the
        values; `masked`: those of recurring pauses; `rise` is not used.
        """
        base, shifted = self.baseline, self._shifted
        assert base is not None and shifted is not None
        shift = float(np.log(shifted.after / shifted.before))
        clip = CLIP * base.spread
        step = np.where(masked, 0.0, np.clip(base.level + _BACK * shift - x, -clip, clip))
        # Here too more than `RUN` short values together are needed: each adds up to `clip`.
        at = self._fall.crosses(step, max(_height(base, shift), RUN * clip * (1 + 1e-9)))
        if at is not None:
            since = self._fall.since(step, at, self.seen)
            level = self._level_since(x[: at + 1], self.seen + at - since + 1)
            return at + 1, Change(State.BACK, since, self.seen + at, shifted.after, float(np.exp(level)))
        worse = self._watch_further(base, shifted, shift, x, masked)
        taken = len(x) if worse is None else worse.at - self.seen + 1
        self._fall.add(step[:taken], self.seen)
        if worse is not None:
            return taken, worse
        if self.seen + len(x) - shifted.at > _STAYS:
            level = median(self._recent) if self._recent else median(x)
            at = len(x) - 1
            return len(x), Change(State.STAYS, shifted.since, self.seen + at, shifted.before, float(np.exp(level)))
        return len(x), None

    def _watch_further(self, base: Baseline, shifted: Change, shift: float, x: Floats, masked: Bools) -> Change | None:
        """Detect a further rise, by at least the present shift, above the level since the shift; None if there is none.

        `shift`: the present one, in logs; `x`: logs of the values.
        """
        if self._plateau is None:
            return None
        here = replace(self._plateau, long_run=max(self._plateau.long_run, base.long_run))
        shift = max(shift, here.level - base.level)
        d = max(shift, _LEVEL_ERRORS * here.long_run / np.sqrt(here.count))
        clip = max(CLIP * here.spread, d)
        step = np.where(masked, 0.0, np.clip(x - here.level, -clip, clip) - d / 2)
        at = self._further.crosses(step, max(_height(here, d), RUN * clip))
        if at is None:
            self._further.add(step, self.seen)
            return None
        since = self._further.since(step, at, self.seen)
        level = self._level_since(x[: at + 1], self.seen + at - since + 1)
        if level - here.level < shift:
            self._further = _Climb(zero_at=self.seen + at + 1)
            self._further.add(step[at + 1 :], self.seen + at + 1)
            return None
        return Change(State.HIGHER, since, self.seen + at, shifted.before, float(np.exp(level)))

    def _tell(self, change: Change) -> Change:
        """Reset the sums and the baseline as the change requires; return the change."""
        self._rise = [_Climb(zero_at=self.seen) for _ in SHIFTS]
        self._fall, self._further = _Climb(zero_at=self.seen), _Climb(zero_at=self.seen)
        self._plateau = None
        self._waiting.clear()
        self._shifted = change if change.state is State.HIGHER else None
        if change.state is State.STAYS:
            self._levels.clear()
            self._of_level.clear()
            self._kept.clear()
            self._kept.extend(self._recent)
            self._learn()
            self.pauses = Pauses()
        self._due = self.seen + (LEARNT if change.state is State.HIGHER else _REFRESH)
        return change

    def _forget(self, first: int) -> None:
        """Restart learning the baseline, from value number `first` on."""
        self.baseline, self._first = None, first
        self._due = first + LEARNT
        self._kept.clear()
        self._levels.clear()
        self._of_level.clear()
        self._waiting.clear()
        self._rise = [_Climb(zero_at=first) for _ in SHIFTS]
        self._fall = _Climb(zero_at=first)

    def _refresh(self) -> None:
        """Update the baseline by the values that waited, unless a rise is reported or may be under way.

        While a rise is reported, learn once the level and spread of the values since.
        """
        self._due = self.seen + (_REFRESH_FIRST if self.seen < KEPT else _REFRESH)
        base = self.baseline
        if self._shifted is not None and self._plateau is None:
            since = [*self._recent][self._shifted.since - self.seen :]
            self._plateau = learn(np.array(since)) if len(since) >= LEARNT // 2 else None
        if base is None or self._shifted is not None:
            return
        climbing = any(
            climb.height > _height(base, np.log1p(shift)) / 2 for climb, shift in zip(self._rise, SHIFTS, strict=True)
        )
        if not self._waiting or (climbing and len(self._waiting) < KEPT):
            return
        self._kept.extend(self._waiting)
        self._of_level += self._waiting
        self._waiting.clear()
        self._learn()
        self._learn_wander()

    def _learn_wander(self) -> None:
        """Record the level of each full portion of values, and estimate how much levels wander over `KEPT` values."""
        while len(self._of_level) >= _LEVEL_VALUES:
            self._levels.append(median(self._of_level[:_LEVEL_VALUES]))
            del self._of_level[:_LEVEL_VALUES]
        apart = KEPT // _LEVEL_VALUES
        if len(self._levels) >= 3 * apart:
            levels = np.array(self._levels)
            self._wander = MAD_TO_SD * median(np.abs(levels[apart:] - levels[:-apart]))

    def _learn(self) -> None:
        """Learn the baseline from the values kept; with few of them noise is at least what it was before."""
        found = learn(np.array(self._kept))
        # the earlier noise estimate holds until there are as many values again
        if found.count < KEPT // 2:
            found = replace(found, long_run=max(found.long_run, self._noise))
        self.baseline, self._noise = found, found.long_run


def _height(base: Baseline, shift: float) -> float:
    """Return the alarm threshold of the sum for this shift (in logs): false alarms are rare, few long values no alarm."""
    # more than so many, whatever the rounding
    run = RUN * max(CLIP * base.spread - shift / 2, 0.0) * (1 + 1e-9)
    return max(base.long_run**2 * ALARM / shift, run)
