"""Split GPU time per sample interval into computing, collective and idle. Pure.

Measured from outside per interval: k = the share of it in which any kernel ran, and s = the mean
share of its SMs that had work. A computing kernel occupies nearly all SMs; one that waits in a
collective, or moves data for it, only the few that NCCL uses. With a_comp the SM share while
computing, a_coll that inside a collective:

    c = clip((s − a_coll·k) / (a_comp − a_coll), 0, k)     n = k − c     idle = 1 − k

Levels, pooled over the GPUs of the job on this host, because a GPU that never waits shows no
collective and one that always waits hardly any computing. r = s/k over intervals with k ≥ 0.5 (0.1
where there are none), weights k·Δt, Q_q its weighted quantile:

    a_comp = Q_0.25 of those r that reach 0.8·Q_0.98(r): kernels differ, and one that runs beside a collective shows more SMs
             than computing alone, so the level lies at the lower end of what counts as all computing, and c is clipped at k;
             a GPU's own where that differs by more than 10 % and is a plateau (a fifth of its weight within 5 %)
    a_coll = the least of   Q_0.02(r), exact where some intervals lie wholly inside collectives, too high where none does;
                            A of the fit s = A·k + B·t, t the tensor activity, which no collective has: right in mixed intervals too;
                            0.25: 32 blocks, the most NCCL takes by default, on the 132 SMs of an H100

Where s is not measured (before Hopper) power replaces it: k · (P − P_rest)/(P_default − P_rest) ·
f_median/f, f the clock, since a throttled GPU draws less for the same work. Power and k lag by
about a second there, so that no interval shows one state alone: a_coll is at most 0.35 a_comp. Own
time is then right in order, not in size, and single steps are blurred. Where the levels are too
close (a_comp − a_coll < 0.2) nothing is split: the host's timeline is used alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.probes.base.arrays import Floats

MOST_CTA_SHARE = 0.25
_MOST_POWER_SHARE = 0.35  # of the level of computing
_LEAST_APART = 0.2
_BUSY = 0.5
_BUSY_AT_ALL = 0.1  # where no GPU is busier, as between launches one by one
_LEAST_SAMPLES = 5
_BRIDGED_S = 0.5


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one GPU (or of all GPUs of one rank), in order. Interval i is [start_s[i],
    end_s[i]), since the window's start.

    NaN where not reported. Activities 0..1 (`power_active`: estimated from power, in place of
    `sm_active`), traffic in bytes/s: `pcie_rx_hz` is host to device.
    """

    start_s: Floats
    end_s: Floats
    kernel_active: Floats
    sm_active: Floats
    tensor_active: Floats
    power_active: Floats
    pcie_rx_hz: Floats
    pcie_tx_hz: Floats

    @property
    def seconds(self) -> Floats:
        """The length of each interval, s."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels a_comp and a_coll, of SM activity or scaled power (`measure` 'sm' | 'power'; '':
    cannot be split).

    `collective` NaN: the job runs no collectives on GPUs, all activity is computing. `own`: a_comp
    of single GPUs, by position.
    """

    computing: float
    collective: float
    measure: str
    own: tuple[float, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of each interval, 0..1; NaN where unknown."""

    start_s: Floats
    end_s: Floats
    compute: Floats
    collective: Floats
    idle: Floats
    activity: Floats  # s/k, NaN where SM activity is not measured
    pcie_rx_hz: Floats
    pcie_tx_hz: Floats


def combine(series: Sequence[Series]) -> Series:
    """Combine the series of one rank's GPUs to one, at the intervals of the first.

    Per interval: the maximum of kernel activity; SM, tensor and power activity as that maximum times
    the ratio of their sum over the GPUs to the sum of kernel activity; the sum of traffic.
    """
    first = series[0]
    if len(series) == 1:
        return first
    middle = (first.start_s + first.end_s) / 2
    rows = [np.clip(np.searchsorted(one.end_s, middle), 0, max(len(one.end_s) - 1, 0)) for one in series]

    def all_of(name: str) -> Floats:
        """Return the field `name` of all series, one row each, at the first one's intervals."""
        return np.vstack([getattr(one, name)[at] for one, at in zip(series, rows, strict=True)])

    active = all_of("kernel_active")
    kernel = np.max(active, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        sm, tensor, power = (
            np.where(kernel > 0, all_of(name).sum(axis=0) / active.sum(axis=0) * kernel, 0.0)
            for name in ("sm_active", "tensor_active", "power_active")
        )
    return Series(
        first.start_s, first.end_s, kernel, sm, tensor, power,
        all_of("pcie_rx_hz").sum(axis=0), all_of("pcie_tx_hz").sum(axis=0),
    )  # fmt: skip


def find_levels(series: Sequence[Series], collectives: bool = True) -> Levels:
    """Estimate the activity of the GPUs of one job on one host while they compute, and inside collectives.

    `collectives`: whether the job runs any on its GPUs, as far as is known.
    """
    usable = [one for one in series if len(one.start_s)]
    if not usable or not any(np.isfinite(one.kernel_active).any() for one in usable):
        return Levels(np.nan, np.nan, "", note="no GPU says when kernels run: steps are timed on the CPU side only")
    if not collectives:
        return Levels(np.nan, np.nan, "sm")
    for measure in ("sm", "power"):
        levels = _levels_on(series, measure)
        if levels is not None:
            return levels
    return Levels(
        np.nan, np.nan, "",
        note="the GPUs' activity and power do not show when they wait for each other: steps are timed on the CPU side only",
    )  # fmt: skip


def _levels_on(series: Sequence[Series], measure: str) -> Levels | None:
    """Estimate the levels from SM activity (`measure` 'sm') or power ('power').

    None where there are too few samples, or the two levels are too close.
    """
    for busy in (_BUSY, _BUSY_AT_ALL):
        parts = [_ratios(one, measure, busy) for one in series]
        ratio, weight = (np.concatenate([part[index] for part in parts]) for index in range(2))
        if len(ratio) >= _LEAST_SAMPLES:
            break
    else:
        return None
    computing = _computing_level(ratio, weight)
    most = MOST_CTA_SHARE if measure == "sm" else _MOST_POWER_SHARE * computing
    collective = min(quantile(ratio, weight, 0.02), most)
    if measure == "sm":
        collective = min(collective, _without_tensor(series, collective))
    if computing - collective < _LEAST_APART:
        return None
    own = tuple(_own_level(*part, computing) for part in parts)
    note = (
        ""
        if measure == "sm"
        else "GPUs without SM activity: computing is separated from collectives by power, which reacts slowly: shares are approximate"
    )
    return Levels(computing, max(collective, 0.0), measure, own, note)


def _ratios(one: Series, measure: str, busy: float) -> tuple[Floats, Floats]:
    """Return activity / k and the weight k·Δt of the intervals with k of at least `busy`; k: kernel activity."""
    level = _activity(one, measure)
    known = np.isfinite(level) & np.isfinite(one.kernel_active) & (one.kernel_active >= busy) & (one.seconds > 0)
    return level[known] / one.kernel_active[known], (one.kernel_active * one.seconds)[known]


def _activity(one: Series, measure: str) -> Floats:
    """Return SM activity where `measure` is 'sm', else the activity estimated from power."""
    return one.sm_active if measure == "sm" else one.power_active


def _computing_level(ratio: Floats, weight: Floats) -> float:
    """Estimate the level of computing: the lower quartile of the ratios that reach 0.8 of nearly the largest.

    Quantiles are weighted; nearly the largest: the quantile 0.98.
    """
    high = ratio >= 0.8 * quantile(ratio, weight, 0.98)
    return quantile(ratio[high], weight[high], 0.25)


def _own_level(ratio: Floats, weight: Floats, pooled: float) -> float:
    """Return one GPU's own level of computing if it differs from the `pooled` one and is a plateau; else `pooled`."""
    if len(ratio) < _LEAST_SAMPLES:
        return pooled
    high = _computing_level(ratio, weight)
    plateau = float(weight[np.abs(ratio - high) <= 0.05 * high].sum()) >= 0.2 * float(weight.sum())
    return high if plateau and abs(high - pooled) > 0.1 * pooled and high >= 0.5 * pooled else pooled


def _without_tensor(series: Sequence[Series], otherwise: float) -> float:
    """Fit s = A·k + B·t by least squares and return A; `otherwise` where the fit is poor.

    Poor: t hardly varies, or a tenth of the variance remains.
    """
    kernel, sm, tensor = (
        np.concatenate([getattr(one, name) for one in series])
        for name in ("kernel_active", "sm_active", "tensor_active")
    )
    known = np.isfinite(kernel) & np.isfinite(sm) & np.isfinite(tensor) & (kernel >= _BUSY)
    if int(known.sum()) < 4 * _LEAST_SAMPLES or float(np.std((tensor / np.maximum(kernel, _BUSY))[known])) < 0.02:
        return otherwise
    design = np.column_stack((kernel[known], tensor[known]))
    (constant, slope), *_ = np.linalg.lstsq(design, sm[known], rcond=None)
    rest = sm[known] - design @ np.array([constant, slope])
    fits = float(np.var(rest)) <= 0.1 * float(np.var(sm[known]))
    return float(constant) if fits and slope > 0 and constant >= 0.02 else otherwise


def quantile(values: Floats, weights: Floats, q: float) -> float:
    """Return the weighted quantile: the least value at which the weights up to it reach the share
    q.
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][min(int(np.searchsorted(reached, q * reached[-1])), len(values) - 1)])


def find_shares(one: Series, levels: Levels, computing: float | None = None) -> Shares:
    """Compute the shares of each interval in which a GPU computes, is in a collective, and is idle.

    Gaps of up to half a second take the nearest interval's values. `computing`: the level of computing
    of this GPU, where it is not the pooled one. Where the levels are unknown all shares are NaN.
    """
    kernel = np.clip(one.kernel_active, 0.0, 1.0)
    if levels.measure and not np.isfinite(levels.collective):
        compute = kernel
    elif levels.measure:
        apart = (computing or levels.computing) - levels.collective
        compute = np.clip((_activity(one, levels.measure) - levels.collective * kernel) / max(apart, 1e-3), 0.0, kernel)
    else:
        compute = np.full(len(kernel), np.nan)
    compute, kernel = (_bridge(one, np.where(np.isfinite(compute), values, np.nan)) for values in (compute, kernel))
    with np.errstate(divide="ignore", invalid="ignore"):
        activity = np.where(one.kernel_active > 0, one.sm_active / one.kernel_active, np.nan)
    return Shares(
        one.start_s, one.end_s, compute, kernel - compute, 1.0 - kernel, activity, one.pcie_rx_hz, one.pcie_tx_hz
    )  # fmt: skip


def _bridge(one: Series, values: Floats) -> Floats:
    """Replace each NaN by the value of the nearest interval that has one, if at most half a second away."""
    known = np.flatnonzero(np.isfinite(values))
    if not len(known) or len(known) == len(values):
        return values
    middle = (one.start_s + one.end_s) / 2
    after = np.clip(np.searchsorted(known, np.arange(len(values))), 0, len(known) - 1)
    before = np.clip(after - 1, 0, None)
    far_after, far_before = np.abs(middle[known[after]] - middle), np.abs(middle[known[before]] - middle)
    nearest = np.where(far_before < far_after, known[before], known[after])
    near = np.minimum(far_before, far_after) <= _BRIDGED_S
    return np.where(np.isfinite(values), values, np.where(near, values[nearest], np.nan))


def collective_tail_s(one: Series, window_s: float) -> float:
    """Return the seconds that the GPU was in collectives alone until the window's end; 0 if not, or
    unknown.

    Over the last intervals in a row with k ≥ 0.9 and s/k no more than NCCL can use. Needs no
    levels: in a hang there is only one.
    """
    for measure, most in (("sm", MOST_CTA_SHARE), ("power", _MOST_POWER_SHARE)):
        level = _activity(one, measure)
        if not np.isfinite(level).any():
            continue
        inside = (one.kernel_active >= 0.9) & (level <= most * one.kernel_active)
        outside = np.flatnonzero(~inside)
        since = float(one.end_s[outside[-1]]) if len(outside) else 0.0
        return max(window_s - since, 0.0) if len(inside) and inside[-1] else 0.0
    return 0.0
