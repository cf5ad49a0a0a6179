"""Robust location, scale and error, and the control of false discoveries.

median, robust_sd   for a value x and its group's median m:  robust_sd = 1.4826 · median |x - m|
trimmed_mean        mean without 10 % of the values at either end
Trimmed.error       winsorised sd / (kept share · sqrt(n_eff)),  n_eff = n (1 - rho) / (1 + rho),  rho = lag-1 autocorrelation
Trimmed.freedom     h (1 - rho) / (1 + rho) - 1, at least 1,  h = number of values kept: the error's degrees of freedom
Yuen 1974; Kendall 1954 (bias of rho); Benjamini & Hochberg 1995.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rankscope.diagnose import budgets, limits
from rankscope.probes.base.arrays import Bools, Floats, Ints, Reals

TRIM = limits.FEW
_In = TypeVar("_In")
_Out = TypeVar("_Out")
_Key = TypeVar("_Key")
# Rows processed at once. More are split into parts, on all processors.
ROWS = budgets.BLOCK // 32
_QUARTILE = NormalDist().inv_cdf(0.75)
MAD_TO_SD = 1 / _QUARTILE  # 1.4826: the median absolute deviation as a standard deviation
# Efficiency of a MAD relative to a standard deviation, for normal values (Rousseeuw & Croux 1993):
# 0.37.
MAD_EFFICIENCY = 8 * (_QUARTILE * NormalDist().pdf(_QUARTILE)) ** 2
MEANS_LEAST = 8  # fewest means from which a variance is computed
CLIP = 4.0  # robust standard deviations: values farther away are not noise


def nan_median(values: Reals, axis: int) -> Floats:
    """Compute the median without NaN; NaN, without a warning, where all values are NaN."""
    if values.ndim == 2 and axis == 0 and len(values) > ROWS:
        columns = [values[:, number] for number in range(values.shape[1])]
        return np.array(side_by_side(_median_of_known, columns), dtype=np.float64)
    count = values.shape[axis]
    if not count:
        return np.full(np.delete(values.shape, axis), np.nan)
    # NaN last; np.median and np.nanmedian take several times as long
    ordered = np.sort(values, axis=axis)
    low, high = ordered.take((count - 1) // 2, axis), ordered.take(count // 2, axis)
    if np.isnan(ordered.take(-1, axis)).any():
        known = np.expand_dims((~np.isnan(values)).sum(axis=axis), axis)
        low, high = (
            np.take_along_axis(ordered, place.clip(0), axis).squeeze(axis) for place in ((known - 1) // 2, known // 2)
        )
    # Equal values are returned as they are: half of their sum may be infinite.
    return np.asarray(np.where(low == high, low, 0.5 * (low + high)), dtype=np.float64)


def median(values: npt.ArrayLike) -> float:
    """Compute np.median of all values together: NaN if there are none, or one is NaN. Fast for few values."""
    ordered = np.sort(values, axis=None)
    if not len(ordered) or np.isnan(ordered[-1]):  # NaN is last
        return float("nan")
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(low) if low == high else 0.5 * (float(low) + float(high))


def median_of_each(windows: Sequence[Mapping[_Key, float]], absent: float | None = None) -> dict[_Key, float]:
    """Return the median over windows of each key's value.

    `absent`: the value where a window lacks a key; None: it does not count.
    """
    result: dict[_Key, float] = {}
    for key in dict.fromkeys(key for window in windows for key in window):
        values = [window.get(key, absent) for window in windows]
        known = [value for value in values if value is not None and np.isfinite(value)]
        if known:
            result[key] = median(known)
    return result


def _median_of_known(values: Reals) -> float:
    """Return the median of the values that are not NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else np.nan


def mean_of_known(values: Reals) -> Floats:
    """Return the mean of each row's finite values; 0 if there is none. Rare values count, unlike in a median."""
    known = np.isfinite(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1), dtype=np.float64)


def side_by_side(work: Callable[[_In], _Out], parts: Sequence[_In]) -> list[_Out]:
    """Apply `work` to each part, on all processors, in threads; numpy releases the GIL while it sorts."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(work, parts))


def deviations(values: Floats, axis: int = -1) -> Floats:
    """Return |x - m|, m the median along the axis; NaN where x is."""
    return np.asarray(np.abs(values - np.expand_dims(nan_median(values, axis), axis)), dtype=np.float64)


def robust_sd(values: Floats, axis: int = -1) -> Floats:
    """Return 1.4826 · median |x - m| along the axis, m the median there. NaN is ignored.

    For normal values it is the standard deviation.
    """
    return np.asarray(MAD_TO_SD * nan_median(deviations(values, axis), axis), dtype=np.float64)


def robust_sd_of(values: Floats) -> float:
    """Return the `robust_sd` of one series; 0 if no value is known."""
    known = values[np.isfinite(values)]
    return float(robust_sd(known)) if len(known) else 0.0


def robust_sd_of_others(values: Floats, counted: Bools | None = None) -> Floats:
    """Return for each value the `robust_sd` of all others among the `counted` ones (None: all).

    With more than limits.PEERS_EXACT values, it is that of all counted ones.
    """
    counted = np.ones(len(values), dtype=np.bool_) if counted is None else counted
    if len(values) > limits.PEERS_EXACT:
        return np.full(len(values), robust_sd_of(values[counted]))
    those = np.flatnonzero(counted)
    return np.array([robust_sd_of(values[those[those != place]]) for place in range(len(values))], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Rows of values, with the lowest and highest of each trimmed.

    `ordered`: the values of each row in rising order, NaN last; `lowest`, `highest`: per row the
    first kept index, and the first index after the kept ones.
    """

    values: Reals
    ordered: Reals
    lowest: Ints
    highest: Ints

    def mean(self) -> Floats:
        """Return the mean of each row's kept values; NaN if none is known."""
        ordered, lowest, highest = self.ordered, self.lowest, self.highest
        count = highest - lowest
        if len(count) and count[0] > 0 and (lowest == lowest[0]).all() and (highest == highest[0]).all():
            # The same for all rows: nearly always.
            return np.asarray(ordered[:, lowest[0] : highest[0]].sum(axis=1) / count)
        position = np.arange(ordered.shape[1])
        inside = (position >= lowest[:, None]) & (position < highest[:, None])  # contains no NaN
        total = np.where(inside, ordered, 0.0).sum(axis=1)
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    def error(self, rho: Floats | None = None) -> Floats:
        """Return the standard error of each row's mean; infinite for fewer than three values.

        `rho`: lag-1 autocorrelation per row, None: 0.
        """
        values, ordered, lowest, highest = self.values, self.ordered, self.lowest, self.highest
        count = np.isfinite(values).sum(axis=1)
        if values.shape[1] == 0:
            return np.full(len(values), np.inf)
        rows, width = np.arange(len(values)), values.shape[1] - 1
        low = ordered[rows, np.clip(lowest, 0, width)][:, None]
        high = ordered[rows, np.clip(highest - 1, 0, width)][:, None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            spread = np.nanstd(np.clip(values, low, high), axis=1)
        rho = np.zeros(len(values)) if rho is None else rho
        effective = np.maximum(count * (1 - rho) / (1 + rho), 1.0)
        kept = np.where(count > 0, (highest - lowest) / np.maximum(count, 1), 1.0)
        error = spread / (np.maximum(kept, 0.2) * np.sqrt(effective))
        return np.where(count >= 3, np.nan_to_num(error, nan=np.inf), np.inf)

    def freedom(self, rho: Floats | None = None) -> Floats:
        """Return the degrees of freedom of each row's error, at least 1 (Yuen 1974).

        It is the number of kept values, reduced for correlation, minus one. `rho`: lag-1 autocorrelation per row,
        None: 0.
        """
        rho = np.zeros(len(self.values)) if rho is None else rho
        return np.asarray(np.maximum((self.highest - self.lowest) * (1 - rho) / (1 + rho) - 1, 1.0), dtype=np.float64)

    def least(self) -> Floats:
        """Return the lowest kept value of each row, the 10th percentile; NaN if there is none."""
        if not self.values.shape[1]:
            return np.full(len(self.values), np.nan)
        return np.asarray(self.ordered[np.arange(len(self.values)), self.lowest], dtype=np.float64)


def trimmed(values: Reals, trim: float = TRIM) -> Trimmed:
    """Trim the share `trim` of lowest and of highest values from each row: at least one of each from five values on."""
    ordered = _sorted(values)
    whole = ordered.size > 0 and np.isfinite(ordered[:, [0, -1]]).all()
    count = np.full(len(values), values.shape[1]) if whole else np.isfinite(values).sum(axis=1)
    cut = np.where(count >= 5, np.maximum((count * trim).astype(np.int64), 1), 0)
    return Trimmed(values, ordered, cut, count - cut)


def trimmed_mean(values: Reals, trim: float = TRIM) -> Floats:
    """Return the mean of each row without its `trim` lowest and highest values; NaN if no value is known."""
    return trimmed(values, trim).mean()


def _sorted(values: Reals) -> Reals:
    """Sort each row, NaN last."""
    if len(values) <= ROWS:
        return np.sort(values, axis=1)
    ordered = np.empty_like(values)

    def sort(first: int) -> None:
        """Sort `ROWS` rows from row `first` on into `ordered`."""
        ordered[first : first + ROWS] = np.sort(values[first : first + ROWS], axis=1)

    side_by_side(sort, range(0, len(values), ROWS))
    return ordered


def autocorrelation(values: Floats, split: int = 0) -> Floats:
    """Estimate the lag-1 autocorrelation of each row around the medians of its parts before and after column `split`, in [0, 0.9].

    rho' = rho + (1 + 3 rho) / n corrects the bias of short series (Kendall 1954). No row is taken to be less correlated than
    the median row: the noise of one host is of one kind, and a single short series says little about it.
    """
    # In parts: with 100,000 ranks every matrix counts, and this needs several.
    rho = np.concatenate([_of_rows(values[at : at + ROWS], split) for at in range(0, max(len(values), 1), ROWS)])
    return np.asarray(np.maximum(rho, median(rho) if len(rho) else 0.0), dtype=np.float64)


def _of_rows(values: Floats, split: int) -> Floats:
    """Estimate the lag-1 autocorrelation of each row, in [0, 0.9]; `split`: as for `autocorrelation`."""
    rest = values.copy()
    for part in (slice(None, split), slice(split, None)):
        if values[:, part].shape[1]:
            rest[:, part] -= nan_median(values[:, part], 1)[:, None]
    # clipped, as a single stall must not hide the correlation
    spread = 3 * MAD_TO_SD * nan_median(np.abs(rest), 1)[:, None]
    rest = np.nan_to_num(np.clip(rest, -spread, spread))
    count = np.maximum(np.isfinite(values).sum(axis=1), 1)
    square = (rest**2).sum(axis=1)
    rho = np.divide((rest[:, 1:] * rest[:, :-1]).sum(axis=1), square, out=np.zeros(len(values)), where=square > 0)
    return np.asarray(np.clip(rho + (1 + 3 * rho) / count, 0.0, 0.9), dtype=np.float64)


def long_run_variance(rest: Floats) -> float:
    """Estimate the long-run variance: n times the variance of a mean of n values, if they wander; 0 for few values.

    It is the max over m = 4, 16, … of m · var(means of m values) · (1 + √(2 / means)), with at least eight means.
    Lasting noise hardly shows in the correlation of neighbours. The last factor is one standard error of a variance:
    estimated from few means, it is too low as often as too high. `rest`: values minus their level.
    """
    variance, length = 0.0, 4
    while (count := len(rest) // length) >= MEANS_LEAST:
        means = rest[len(rest) - count * length :].reshape(count, length).mean(axis=1)
        variance = max(variance, length * float(means.var()) * (1 + float(np.sqrt(2 / count))))
        length *= 4
    return variance


def benjamini_hochberg(p: Floats, tests: int = 0) -> Bools:
    """Tell which hypotheses are rejected at the false-discovery rate q (`limits`), by their p-values.

    These are the k smallest of m, k the greatest with p_(k) <= q k / m. `tests`: m, if p is only a part of what was
    tested. A p above q is never rejected, so only the small ones are sorted: the cost does not grow with millions of
    tests.
    """
    small = np.flatnonzero(p <= limits.FALSE_DISCOVERY_RATE)
    rejected = np.zeros(len(p), dtype=np.bool_)
    if len(small):
        order = small[np.argsort(p[small], kind="stable")]
        bounds = limits.FALSE_DISCOVERY_RATE * np.arange(1, len(order) + 1) / max(tests, len(p))
        passed = np.flatnonzero(p[order] <= bounds)
        rejected[order[: passed[-1] + 1 if len(passed) else 0]] = True
    return rejected


def peers_median(values: Floats, groups: Ints, counted: Bools | None = None) -> Floats:
    """Compute for each row the median, per column, of the other rows of its group; NaN for a row without others.

    In large groups the row itself is included. `counted`: rows that may serve as peers, None: all; in a group where
    no other row may, all do.
    """
    result = np.full_like(values, np.nan)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        if len(members) < 2:
            continue
        usable = members if counted is None else members[counted[members]]
        if len(usable) > limits.PEERS_EXACT:
            result[members] = nan_median(values[usable], 0)
            continue
        if not len(usable):
            usable = members
        if len(usable) < len(members):
            result[members] = nan_median(values[usable], 0)
        others = members[members != usable[0]]
        result[usable] = _medians_of_others(values[usable]) if len(usable) > 1 else nan_median(values[others], 0)
    return result


def _medians_of_others(values: Floats) -> Floats:
    """Compute for each of at least two rows the median, per column, of the others, by one sort of all."""
    ordered, known = np.sort(values, axis=0), ~np.isnan(values)  # NaN last
    others = known.sum(axis=0) - known

    def smallest(place: Ints) -> Floats:
        """Return the others' value at this place in their order: skip the row's own value if it is not above."""
        here, following = (np.take_along_axis(ordered, at, 0) for at in (place, place + 1))
        return np.where(values <= here, following, here)

    low, high = (smallest(place) for place in (np.maximum(others - 1, 0) // 2, others // 2))
    return np.asarray(np.where(low == high, low, 0.5 * (low + high)), dtype=np.float64)
