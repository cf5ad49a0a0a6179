"""Find a single change of level in a series, by ranks of values (Mann & Whitney 1947)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.stats.robust import long_run_variance, median
from rankscope.diagnose.stats.student import chance
from rankscope.probes.base.arrays import Floats


@dataclass(frozen=True, slots=True)
class Onset:
    """A change of level: from index `column` on, values are about `after_s` instead of `before_s`."""

    column: int
    before_s: float
    after_s: float


def find_onset(values_s: Floats, shortest: int = limits.STEPS_LEAST) -> Onset | None:
    """Find the split with the largest Mann-Whitney z, if significant among all splits, with a level shift of at least 5 %.

    U(k) = sum of the ranks of the values after k - n2 (n2 + 1) / 2
    z(k) = (U(k) - n1 n2 / 2) / sqrt(n1 n2 (n + 1) / 12)
    r    = z / sqrt(n - 1)                            correlation of the values' ranks with being after k
    t    = r sqrt((m - 2) / (1 - r²)),  m = n (1 - rho) / (1 + rho)
    splits · P(T >= |t|) <= 1.4 %                     T is Student's with m - 2 degrees of freedom (Conover & Iman 1981)

    rho is the lag-1 autocorrelation of the ranks of the values around the medians of both parts; where their long-run variance exceeds
    (1 + rho) / (1 - rho) times their variance, m uses that instead: a wandering series has no onset, however slowly it wanders.
    """
    series = np.asarray(values_s, dtype=np.float64)
    count = len(series)
    if count < 2 * shortest or not np.isfinite(series).all():
        return None
    ranks = np.empty(count)
    ranks[np.argsort(series, kind="stable")] = np.arange(1, count + 1)
    before = np.arange(shortest, count - shortest + 1)
    after = count - before
    tail_sum = np.cumsum(ranks[::-1])[::-1][before]
    u = tail_sum - after * (after + 1) / 2
    z = (u - before * after / 2) / np.sqrt(before * after * (count + 1) / 12)
    best = int(np.argmax(np.abs(z)))
    column = int(before[best])
    rest = ranks - np.where(np.arange(count) < column, median(ranks[:column]), median(ranks[column:]))
    square = max(float((rest**2).sum()), 1e-12)
    rho = float(np.clip((rest[1:] * rest[:-1]).sum() / square, 0.0, 0.9))
    longer = max((1 + rho) / (1 - rho), count * long_run_variance(rest) / square)
    level = median(series[:column]), median(series[column:])
    p = _chance(float(z[best]) / np.sqrt(count - 1), count / longer)
    if p * len(before) > limits.FALSE_DISCOVERY_RATE or abs(level[1] - level[0]) < limits.EFFECT_SHARE * min(level):
        return None
    return Onset(column, *level)


def _chance(together: float, independent: float) -> float:
    """Return the probability by chance of a rank correlation as strong as `together`, of so many independent values."""
    freedom = max(independent - 2, 1.0)
    t = abs(together) * np.sqrt(freedom / max(1 - together**2, 1e-12))
    return float(chance(np.array([t]), np.array([freedom]))[0])
