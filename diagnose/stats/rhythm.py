"""Find a drift or periodic spikes in a series, besides one change of level (onset.py).

drift     Theil-Sen slope b = median over s < t of (x(t) - x(s)) / (t - s);  Mann-Kendall S = Σ sign(x(t) - x(s)), ties left out,
          z = (|S| - 1) / √(n(n-1)(2n+5)/18) · √((1-ρ)/(1+ρ)), ρ the lag-1 autocorrelation around the line.
          A drift: z >= 3.5, b·n at least 10 % of the median, and the line leaves less (mean absolute rest) than two levels do
lasting   a change of level exceeds the noise of its own series if medians of 9 blocks of equal length are all higher after it than
          before it, with at least a third of the series on either side: 3 of 9 above all others are 1 in C(9, 3) = 84 by chance,
          and a change that is intermittent, or shorter than a third, does not pass. The block with the change is left out
spikes    values that are a quarter of the median, 6 robust_sd and 30 % of the longest excess above the median. Periodic: three or more,
          all distances are multiples of the shortest (within one place, from a period of 6 on), and 70 % of them are the shortest itself
Theil 1950, Sen 1968, Mann 1945, Kendall 1975.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.stats.onset import Onset, find_onset
from rankscope.diagnose.stats.robust import median, robust_sd_of
from rankscope.probes.base.arrays import Floats

# Three thirds of three blocks: the fewest for which an exact test of one third against the rest is
# below 5 %.
_BLOCKS = limits.SEVERAL**2


@dataclass(frozen=True, slots=True)
class Drift:
    """A steady growth (or decline) of values: about the first and about the last one."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Spikes:
    """Periodic spikes: every `period`-th value is `spike_s` instead of `usual_s`.

    `count`: number of spikes; `cost_s`: their excess per value of the series.
    """

    period: int
    count: int
    spike_s: float
    usual_s: float
    cost_s: float


def find_drift(series: Floats, onset: Onset | None = None) -> Drift | None:
    """Find a steady growth or decline; None if there is none, or one change of level (`onset`) describes it better."""
    x = np.asarray(series, dtype=np.float64)
    x = x[:: max(-(-len(x) // budgets.PAIRS_OF_MOST), 1)]
    count = len(x)
    if count < 2 * limits.STEPS_LEAST or not np.isfinite(x).all():
        return None
    later, earlier = np.triu_indices(count, 1)[::-1]
    x = np.clip(x, 0, 1e9)
    rise = x[later] - x[earlier]
    slope = median(rise / (later - earlier))
    middle = median(x - slope * np.arange(count))
    rest = x - slope * np.arange(count) - middle
    square = float((rest**2).sum())
    rho = float(np.clip((rest[1:] * rest[:-1]).sum() / square, 0.0, 0.9)) if square > 0 else 0.0
    score = abs(float(np.sign(rise).sum())) - 1
    z = score / np.sqrt(count * (count - 1) * (2 * count + 5) / 18) * np.sqrt((1 - rho) / (1 + rho))
    if z < limits.Z_CLEAR or abs(slope) * count < limits.ALONE_SHARE * median(x):
        return None
    if onset is not None:
        part = np.arange(count) < round(onset.column * count / max(len(series), 1))
        levels = np.where(part, onset.before_s, onset.after_s)
        if float(np.abs(x - levels).mean()) <= float(np.abs(rest).mean()):
            return None
    return Drift(middle, middle + slope * (count - 1))


def find_growth(series: Floats) -> Onset | None:
    """Find the lasting change for the worse within a series; None if there is none."""
    change = find_rise(series)
    return change if change is not None and lasts_higher(series, change.column) else None


def find_rise(series: Floats) -> Onset | None:
    """Find a change for the worse, lasting or not; None below 10 %.

    It is a rise of level, or a drift, which is given as a change from the first to the second half.
    """
    change = find_onset(series)
    if find_drift(series, change) is not None:
        middle = len(series) // 2
        change = Onset(middle, median(series[:middle]), median(series[middle:]))
    if change is None or change.after_s < (1 + limits.ALONE_SHARE) * change.before_s:
        return None
    return change


def lasts_higher(series: Floats, column: int) -> bool:
    """Tell whether values are higher from index `column` on, lastingly and for at least a third of the series."""
    if len(series) < _BLOCKS:
        return False
    edges = np.linspace(0, len(series), _BLOCKS + 1).round().astype(np.int64)
    level = np.array([median(block) for block in np.split(series, edges[1:-1])])
    before, after = level[edges[1:] <= column], level[edges[:-1] >= column]
    long_enough = min(column, len(series) - column) >= len(series) // 3
    return long_enough and bool(after.min() > before.max())


def find_spikes(series: Floats) -> Spikes | None:
    """Find large values at equal distances; None if there are none."""
    x = np.asarray(series, dtype=np.float64)
    known = np.isfinite(x)
    if known.sum() < limits.STEPS_FEW:
        return None
    usual = median(x[known])
    spread = robust_sd_of(x)
    least = max(limits.LARGE_SHARE * usual, 6 * spread, limits.PART * (float(x[known].max()) - usual))
    at = np.flatnonzero(known & (np.nan_to_num(x) - usual >= least))
    if len(at) < limits.SEVERAL or len(at) > 0.4 * known.sum():
        return None
    period = find_period(at.astype(np.float64))
    if period is None:
        return None
    spike = median(x[at])
    return Spikes(round(period), len(at), spike, usual, float((x[at] - usual).sum() / known.sum()))


def find_period(at: Floats) -> float | None:
    """Return the mean distance of positions at equal distances; None if they are irregular or fewer than three."""
    distance = np.diff(at)
    if len(distance) < 2 or distance.min() < 2:
        return None
    period = float(distance.min())
    # the mean distance of neighbours
    period = float(np.sum(distance) / np.sum(np.round(distance / period)))
    off = np.abs(distance - np.round(distance / period) * period)
    neighbours = np.mean(np.round(distance / period) == 1)
    return None if off.max() > (1.01 if period >= 6 else 0.01) or neighbours < limits.MOST else period


def fitted_line(values: Floats) -> Floats:
    """Fit a straight line by least squares to each row, and return its values in each column; NaN is ignored."""
    known = np.isfinite(values)
    count = np.maximum(known.sum(axis=1), 1)[:, None]
    at = np.where(known, np.arange(values.shape[1], dtype=np.float64), 0.0)
    filled = np.where(known, values, 0.0)
    centre, level = at.sum(axis=1)[:, None] / count, filled.sum(axis=1)[:, None] / count
    away = np.where(known, at - centre, 0.0)
    square = (away**2).sum(axis=1)[:, None]
    slope = np.divide((away * filled).sum(axis=1)[:, None], square, out=np.zeros_like(square), where=square > 0)
    return np.asarray(level + slope * away, dtype=np.float64)
