"""Fit a series as a linear function of several others by least squares, without the values that fit worst.

y(s) = Σ_i b_i x_i(s) + c.   Fitted to all, then without the tenth with the largest rests, as for the trimmed mean.
error   of b: the rests cut at the largest that was kept, divided by the share kept (Yuen 1974, as for the trimmed mean)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.stats.robust import TRIM
from rankscope.probes.base.arrays import Floats


@dataclass(frozen=True, slots=True)
class Slopes:
    """Result of a fit. `slope`: one per series; `covariance`: of the slopes; `rest`: the constant c."""

    slope: Floats
    covariance: Floats
    rest: float

    def sum_of(self, weights: Floats) -> tuple[float, float]:
        """Return Σ weights_i b_i and its standard error."""
        return float(weights @ self.slope), max(float(weights @ self.covariance @ weights), 0.0) ** 0.5


def slopes(series: Floats, value: Floats) -> Slopes | None:
    """Fit `value` (one per column) as a linear function of `series` (n x values); None if it cannot be determined.

    That is with too few values, or if the series are linearly dependent. Columns with NaN are left out.
    """
    known = np.isfinite(series).all(axis=0) & np.isfinite(value)
    x, y = series[:, known].T, value[known]
    kept = int(len(y) * (1 - TRIM))
    if kept < 2 * (x.shape[1] + 1):
        return None
    middle = x.mean(axis=0)
    scale = x.std(axis=0)
    if not (scale > 0).all():
        return None
    table = np.column_stack([(x - middle) / scale, np.ones(len(y))])
    rests = y - table @ np.linalg.lstsq(table, y, rcond=None)[0]
    order = np.argsort(np.abs(rests), kind="stable")[:kept]
    found, _, rank, _ = np.linalg.lstsq(table[order], y[order], rcond=None)
    if rank < table.shape[1]:
        return None
    rests = y - table @ found
    cut = np.abs(rests[order]).max()
    spread = np.sqrt(np.square(np.clip(rests, -cut, cut)).sum() / (len(y) - table.shape[1])) / (kept / len(y))
    inverse = np.linalg.inv(table[order].T @ table[order]) * spread**2
    slope, covariance = found[:-1] / scale, inverse[:-1, :-1] / np.outer(scale, scale)
    return Slopes(slope, covariance, float(found[-1] - slope @ middle))
