"""Find a stretch of a series that is above the rest, by a scan statistic.

For every stretch of n >= 8 values of a row, for lengths growing by half, starting at every quarter of the length:

z(row, stretch) = mean of x over it / √(known² + (sd · √((1 + rho) / (1 - rho)) / √n)²)      strength = -ln P(N >= z) - ln(stretches · rows)

x: the values, clipped at 4 sd around the row's median, or at 4 times the least mean where that is more: one stall makes no stretch of
eight values. sd: robust, of the row; rho: of the median row. The strongest stretch of all rows is found; its edges are known to an
eighth of its length. Kulldorff 1997.

Noise that lasts for many values hardly shows in rho. So the stretch found is also compared with the rest of its row (except half a
stretch at its edges), in blocks of eight values: b of them in the stretch, m in the rest. Its strength is at most that of

t = (mean of it - mean of the rest) / √(known² + (white² + wander²) (1/b + 1/m))      white² = sd² (1 + rho) / (1 - rho) / 8
wander² = sd_B² g - white², at least 0; sd_B, rho_B: of the rest's blocks             g = (1 + rho_B) / (1 - rho_B)

with Student's distribution: wander has m/g - 1 degrees of freedom, the other terms infinitely many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.stats.robust import CLIP, MEANS_LEAST, autocorrelation, median, nan_median, robust_sd
from rankscope.diagnose.stats.student import chance, combined_freedom, nats, nats_of_normal
from rankscope.probes.base.arrays import Floats

_SHORTEST = 8
_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of columns begin..end (end excluded) of one row, with its mean, and its strength in nats."""

    row: int
    begin: int
    end: int
    mean: float
    strength: float


def strongest_stretch(values: Floats, known: float, least: float) -> Stretch | None:
    """Find the strongest stretch of any row with a mean of at least `least`; None if there is none.

    `values`: above what is usual, by row and column; NaN counts as the row's median. `known`: part of a mean's error
    that is not estimated from the values. None also if there are fewer than 16 columns.
    """
    rows, columns = values.shape
    if rows == 0 or columns < 2 * _SHORTEST:
        return None
    usual = np.nan_to_num(nan_median(values, 1))[:, None]
    sd = np.nan_to_num(robust_sd(values, 1))[:, None]
    # A stretch correlates its own row; noise of one kind correlates all.
    rho = median(autocorrelation(values))
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
    alone = nats_of_normal(z_best)
    nats = min(alone, _beside_the_rest(x[where], begin, begin + length, known, float(scale[where, 0]) ** 2 / _SHORTEST))
    return Stretch(where, begin, begin + length, level, nats - float(np.log(looked_at)))


def _beside_the_rest(x: Floats, begin: int, end: int, known: float, white: float) -> float:
    """Return how unlikely a stretch of the row `x` is, given how the rest of the row wanders, in nats (-ln p).

    Infinite where the rest is too short. `known`: a scale of error that is known; `white`: variance of a block's mean
    if values were as uncorrelated as neighbours show.
    """
    # the next length is half as long again: so much of the found stretch may lie outside
    edge = (end - begin) // 2
    parts = [_blocks(part) for part in (x[: max(begin - edge, 0)], x[end + edge :])]
    if sum(map(len, parts)) < MEANS_LEAST:
        parts = [_blocks(part) for part in (x[:begin], x[end:])]
    rest, inside = np.concatenate(parts), _blocks(x[begin:end])
    if len(rest) < MEANS_LEAST:
        return np.inf
    square, follows = float(((rest - rest.mean()) ** 2).sum()), 0.0
    for part in parts:
        from_mean = part - rest.mean()
        follows += float((from_mean[1:] * from_mean[:-1]).sum())
    rho = follows / square if square > 0 else 0.0
    rho = float(np.clip(rho + (1 + 3 * rho) / len(rest), 0.0, 0.9))
    longer = (1 + rho) / (1 - rho)
    means = 1 / len(inside) + 1 / len(rest)
    sure = np.array([np.sqrt(known**2 + white * means)])
    wander = np.array([np.sqrt(max(square / (len(rest) - 1) * longer - white, 0.0) * means)])
    scale = float(np.hypot(sure, wander)[0])
    if scale == 0:
        return np.inf
    t = np.array([(float(inside.mean()) - float(rest.mean())) / scale])
    freedom = combined_freedom(sure, wander, np.array([max(len(rest) / longer - 1, 1.0)]))
    return float(nats(chance(t, freedom))[0])


def _blocks(x: Floats) -> Floats:
    """Return the means of blocks of eight values; an incomplete last block is dropped."""
    count = len(x) // _SHORTEST
    return np.asarray(x[: count * _SHORTEST].reshape(count, _SHORTEST).mean(axis=1), dtype=np.float64)
