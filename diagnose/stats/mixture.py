"""Split values into two groups where they differ most, and measure the distance between the groups.

split     t that maximises n1 n2 (m2 - m1)²,  n1, m1 the number and mean of values up to t, n2, m2 of those above (Otsu 1979)
distance  D = |M2 - M1| / √((s1² + s2²)/2),  M the medians, s the robust standard deviations of the groups (Ashman 1994)
Halves of one normal distribution have D = `OF_ONE` (2.7 with means and standard deviations in place of M and s).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.stats.robust import median, robust_sd
from rankscope.probes.base.arrays import Floats

OF_ONE = 2.3  # distance of the halves of one normal distribution


@dataclass(frozen=True, slots=True)
class TwoKinds:
    """Two groups of values, above `split` and up to it.

    `apart`: difference of their medians; `distance`: Ashman's D.
    """

    split: float
    apart: float
    distance: float


def two_kinds(values: Floats) -> TwoKinds | None:
    """Split the finite values into two groups; None if one would be empty."""
    known = values[np.isfinite(values)]
    split = best_split(known)
    low, high = known[known <= split], known[known > split]
    if not len(low) or not len(high):
        return None
    apart = median(high) - np.median(low)
    spread = float(np.sqrt((robust_sd(high) ** 2 + robust_sd(low) ** 2) / 2))
    return TwoKinds(split, apart, apart / max(spread, 1e-9 * apart, 1e-12))


def best_split(values: Floats) -> float:
    """Return the threshold with the greatest variance between the groups; infinite for fewer than two values."""
    ordered = np.sort(values)
    count = len(ordered)
    if count < 2:
        return float("inf")
    below = np.arange(1, count)
    total = np.cumsum(ordered)
    mean_below = total[:-1] / below
    mean_above = (total[-1] - total[:-1]) / (count - below)
    between = below * (count - below) * (mean_above - mean_below) ** 2
    best = int(np.argmax(between))
    return float((ordered[best] + ordered[best + 1]) / 2)
