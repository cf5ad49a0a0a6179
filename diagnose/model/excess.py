"""Ranks against their peers: robust location and scale with floors, and the ranks whose own time is too long.

d(r,s) = own(r,s) - median over peers q of own(q,s)        per step s, peers = ranks of the same role, without r
excess(r) = 10 % trimmed mean over s of d(r,s)
se(r) = winsorised sd of d(r,·) / (0.8 sqrt(n_eff)),  n_eff = n (1 - rho) / (1 + rho),  rho = lag-1 autocorrelation
level(r) = 10 % trimmed mean over s of own(r,s) - median over all ranks of the role
between(r) = max(floor, robust_sd over peers of level · (1 + 1 / peers))
z(r) = excess(r) / sqrt(between(r)² + se(r)²)

A rank whose excess wanders has a large se(r), however large the excess is in every single step. What it always is above its peers:

always(r) = 10th percentile over s of d(r,s),  wander(r) = robust_sd over peers and steps of own around level
z(r) = max(z(r), excess(r) / sqrt(between(r)² + wander(r)²))      where always(r) >= 2 floors, with two peers or more

Were it healthy, it would wander as its peers do: wander is theirs, and peers that wander as well acquit it.

The levels spread by the errors of the levels too: from 64 peers on, where that is known well enough, median(se²) is taken off
between². Where the levels fall into a lower group of more than half of the ranks and an upper one, with a gap that is four times the
spread of the lower group, the spread is that of the lower group: so up to half of the ranks may be bad.

A rank is odd if z >= 4, its one-sided normal p passes Benjamini-Hochberg at 1 % over all ranks tested, its excess
exceeds the effect floor and is there in every third of the steps, and it makes its peers wait (waiting.py).
Trimmed mean and winsorised error: Yuen 1974. False discoveries: statsmodels, fdr_bh.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.stats.robust import (
    MAD_TO_SD,
    autocorrelation,
    benjamini_hochberg,
    deviations,
    nan_median,
    peers_median,
    robust_sd_of,
    robust_sd_of_others,
    trimmed,
    trimmed_error,
    trimmed_mean,
)
from rankscope.probes.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Differences:
    """One entry per rank, seconds per step; NaN for ranks without steps or without peers."""

    own_s: Floats
    peers_own_s: Floats
    excess_s: Floats
    error_s: Floats
    z: Floats
    slower_share: Floats  # share of steps in which the rank took longer than its peers' median
    steady_s: Floats  # least excess in any third of the steps
    floor_s: Floats  # least excess that counts
    peer_count: Ints


def differences(
    own: Floats,
    roles: Ints,
    step_s: float,
    first: int = 0,
    least_s: float = limits.EFFECT_SECONDS,
    drifting: bool = False,
) -> Differences:
    """Compare every rank's own time with its peers', from step `first` on.

    `own`: ranks x steps, seconds; `step_s`: length of a step. Steps before `first` tell only how the noise wanders.
    `least_s`: least excess that counts, whatever the step. `drifting`: the job's steps grow steadily longer; then a steady growth
    of a rank's excess is no noise either.
    """
    median = peers_median(own, roles)
    gap = own - median
    noise = gap - _line(gap) if drifting else gap
    rho = autocorrelation(noise, first)
    own, median, gap, noise = own[:, first:], median[:, first:], gap[:, first:], noise[:, first:]
    excess, error = trimmed_mean(gap), trimmed_error(noise, rho)
    between, wander = np.full(len(own), np.nan), np.full(len(own), np.nan)
    level = np.full(len(own), np.nan)
    count = np.zeros(len(own), dtype=np.int64)
    for role in np.unique(roles):
        members = np.flatnonzero(roles == role)
        count[members] = len(members) - 1
        # Against one common median: the peers' own medians would carry the suspect's time into their spread.
        around = own[members] - nan_median(own[members], 0)
        level[members] = trimmed_mean(around)
        wander[members] = _wander(around)
        between[members] = _between(level[members], error[members], step_s)
    few = count < 3
    always = _low(gap)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        z = excess / np.sqrt(between**2 + error**2)
        z_always = excess / np.sqrt(between**2 + wander**2)
        slower = np.nanmean(np.where(np.isfinite(gap), gap > 0, np.nan), axis=1)
    floor = np.maximum(np.where(few, limits.EFFECT_SHARE_FEW, limits.EFFECT_SHARE) * step_s, least_s)
    z = np.where((count >= 2) & (always >= 2 * floor), np.fmax(z, z_always), z)
    return Differences(
        own_s=trimmed_mean(own),
        peers_own_s=trimmed_mean(median),
        excess_s=excess,
        error_s=error,
        z=np.nan_to_num(z),
        slower_share=np.nan_to_num(slower),
        steady_s=_steady(gap, drifting),
        floor_s=floor,
        peer_count=count,
    )


def _steady(gap: Floats, drifting: bool = False) -> Floats:
    """The least trimmed mean over thirds of the steps (halves below 15 steps, the whole below 8); `drifting`: of a rank whose
    means rise from third to third without the first."""
    count = gap.shape[1]
    parts = np.array_split(gap, 3 if count >= 15 else 2 if count >= 8 else 1, axis=1)
    means = np.stack([trimmed_mean(part) for part in parts])
    if drifting and len(parts) == 3:
        rising = (np.diff(means, axis=0) > 0).all(axis=0)
        means[0] = np.where(rising, np.inf, means[0])
    return np.asarray(np.where(np.isfinite(means), means, np.inf).min(axis=0), dtype=np.float64)


def _line(values: Floats) -> Floats:
    """The straight line of least squares through each row; NaN is passed over."""
    known = np.isfinite(values)
    count = np.maximum(known.sum(axis=1), 1)[:, None]
    at = np.where(known, np.arange(values.shape[1], dtype=np.float64), 0.0)
    filled = np.where(known, values, 0.0)
    centre, level = at.sum(axis=1)[:, None] / count, filled.sum(axis=1)[:, None] / count
    away = np.where(known, at - centre, 0.0)
    square = (away**2).sum(axis=1)[:, None]
    slope = np.divide((away * filled).sum(axis=1)[:, None], square, out=np.zeros_like(square), where=square > 0)
    return np.asarray(level + slope * away, dtype=np.float64)


def _low(gap: Floats) -> Floats:
    """The 10th percentile of each row, a value that occurs; NaN where there is none."""
    ordered, cut, _ = trimmed(gap)
    if not gap.shape[1]:
        return np.full(len(gap), np.nan)
    return np.asarray(ordered[np.arange(len(gap)), cut], dtype=np.float64)


def _wander(around: Floats) -> Floats:
    """How far the times of each rank's peers are from their levels, as a standard deviation. Rows: ranks of one role."""
    rest = deviations(around, 1)
    if len(rest) - 1 >= limits.PEERS_EXACT:
        return np.full(len(rest), MAD_TO_SD * float(nan_median(nan_median(rest, 1)[None, :], 1)[0]))
    others = [np.delete(rest, place, axis=0).reshape(1, -1) for place in range(len(rest))]
    return np.array([MAD_TO_SD * float(nan_median(each, 1)[0]) if each.size else np.nan for each in others])


def _between(level: Floats, error: Floats, step_s: float) -> Floats:
    """Spread of the own time among each rank's peers, never below the floor."""
    peers = len(level) - 1
    floor = (limits.SCALE_FLOOR_FEW if peers < 3 else limits.SCALE_FLOOR) * step_s
    if peers < 3:
        return np.full(len(level), floor)
    usual = _lower_group(level, step_s)
    spread = robust_sd_of_others(level, usual)
    if peers >= limits.PEERS_EXACT:
        known = error[np.isfinite(error)]
        spread = np.sqrt(np.maximum(spread**2 - (float(np.median(known)) ** 2 if len(known) else 0.0), 0.0))
    return np.maximum(floor, spread * (1 + 1 / peers))


def _lower_group(level: Floats, step_s: float) -> Bools:
    """The ranks below the widest gap above the median, if it is one: clearly wider than the spread below it, and an effect."""
    everybody = np.isfinite(level)
    ordered = np.sort(level[everybody])
    half = len(ordered) // 2 + 1  # the lower group has more than half
    if len(ordered) < 5 or half >= len(ordered):
        return everybody
    gaps = np.diff(ordered)[half - 1 :]
    widest = int(np.argmax(gaps))
    below = ordered[: half + widest]
    if gaps[widest] < max(4 * robust_sd_of(below), limits.EFFECT_SHARE * step_s):
        return everybody
    lower: Bools = everybody & (np.nan_to_num(level, nan=np.inf) <= below[-1])
    return lower


def odd_ones(found: Differences, least_z: float = limits.Z_LEAST) -> Bools:
    """Ranks that are significantly and noticeably slower than their peers, false discoveries controlled."""
    tested = np.isfinite(found.excess_s)
    odd = tested & (found.z >= least_z) & (found.excess_s >= found.floor_s)
    odd &= found.steady_s >= limits.STEADY * found.excess_s
    p = np.ones(len(odd))
    for index in np.flatnonzero(odd):
        p[index] = 0.5 * math.erfc(float(found.z[index]) / math.sqrt(2))
    odd[tested] &= benjamini_hochberg(p[tested])
    return odd
