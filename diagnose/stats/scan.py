"""A stretch of a series that lies above the rest: the scan statistic.

For every stretch of n >= 8 values of a row, of lengths that grow by half, each beginning at every quarter of its length:

z(row, stretch) = mean of x over it / √(known² + (sd · √((1 + rho) / (1 - rho)) / √n)²)      strength = -ln P(N >= z) - ln(stretches · rows)

x: the values, clipped at 4 sd around the row's median, or at 4 times the least mean where that is more: one stall makes no stretch of
eight values. sd: robust, of the row; rho: of the median row. The strongest stretch of all rows is found; its edges are known to an
eighth of its length. Kulldorff 1997.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.stats.robust import CLIP, autocorrelation, nan_median, robust_sd
from rankscope.diagnose.stats.student import nats_of_normal
from rankscope.probes.arrays import Floats

_SHORTEST = 8
_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Stretch:
    """Columns begin..end (the end left out) of one row, its mean there, and how strong that is, in nats."""

    row: int
    begin: int
    end: int
    mean: float
    strength: float


def strongest_stretch(values: Floats, known: float, least: float) -> Stretch | None:
    """The strongest stretch of any row whose mean is `least` at least; None where there is none, or the rows are too short."""
    rows, columns = values.shape
    if rows == 0 or columns < 2 * _SHORTEST:
        return None
    usual = np.nan_to_num(nan_median(values, 1))[:, None]
    sd = np.nan_to_num(robust_sd(values, 1))[:, None]
    # A stretch correlates its own row; noise of one kind correlates them all.
    rho = float(np.median(autocorrelation(values)))
    widest = CLIP * np.maximum(sd, least)
    x = np.clip(np.where(np.isfinite(values), values, usual), usual - widest, usual + widest)
    scale = sd * np.sqrt((1 + rho) / (1 - rho))
    total = np.concatenate([np.zeros((rows, 1)), np.cumsum(x, axis=1)], axis=1)
    best: tuple[float, int, int, int, float] | None = None
    looked_at, length = 0, _SHORTEST
    while length <= limits.MOST * columns:
        begins = np.arange(0, columns - length + 1, max(length // 4, 1))
        mean = (total[:, begins + length] - total[:, begins]) / length
        z = np.where(mean >= least, mean / np.hypot(known, scale / np.sqrt(length)), -np.inf)
        looked_at += z.size
        row, place = np.unravel_index(int(np.argmax(z)), z.shape)
        if best is None or z[row, place] > best[0]:
            best = float(z[row, place]), int(row), int(begins[place]), length, float(mean[row, place])
        length = max(int(length * _GROWTH), length + 1)
    if best is None or not np.isfinite(best[0]):
        return None
    z_best, where, begin, length, level = best
    return Stretch(where, begin, begin + length, level, nats_of_normal(z_best) - float(np.log(looked_at)))
