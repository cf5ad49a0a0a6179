"""Ranks against their peers: robust location and scale with floors, and the ranks whose own time is too long.

d(r,s) = own(r,s) - median over peers q of own(q,s)        per step s, peers = ranks of the same role, without r
excess(r) = 10 % trimmed mean over s of d(r,s)
se(r) = winsorised sd of d(r,·) / (0.8 sqrt(n_eff)),  n_eff = n (1 - rho) / (1 + rho),  rho = lag-1 autocorrelation
z(r) = excess(r) / sqrt(between(r)² + se(r)²)              between: how far healthy ranks differ (usual_spread.py)

A rank whose excess wanders has a large se(r), however large the excess is in every single step. What it always is above its peers:

always(r) = 10th percentile over s of d(r,s)
z(r) = max(z(r), excess(r) / sqrt(between(r)² + wander(r)²))      where always(r) >= 2 floors, with two peers or more

Were it healthy, it would wander as its peers do: wander is theirs, and peers that wander as well acquit it.

A rank is odd if z >= 4, its one-sided p passes Benjamini-Hochberg at 1 % over all ranks tested, its excess
exceeds the effect floor and is there in every third of the steps, and it makes its peers wait (waiting.py).
p is Student's: se comes from few steps. Its degrees of freedom are nu(r) = h (1 - rho) / (1 + rho) - 1, h the steps that the trimmed
mean keeps; those of z are nu · (1 + between² / se²)², between counting as known (stats/README.md says why). wander comes from the
steps of all peers, N of them: nu = 0.37 · N (1 - rho) / (1 + rho), 0.37 being what a median absolute deviation tells of a scale beside a
standard deviation (Rousseeuw & Croux 1993).
Trimmed mean and winsorised error: Yuen 1974. False discoveries: Benjamini & Hochberg 1995.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.model.usual_spread import usual_spread
from rankscope.diagnose.stats.rhythm import fitted_line
from rankscope.diagnose.stats.robust import (
    autocorrelation,
    benjamini_hochberg,
    lowest_kept,
    peers_median,
    trimmed_error,
    trimmed_freedom,
    trimmed_mean,
)
from rankscope.diagnose.stats.student import chance, combined_freedom
from rankscope.probes.arrays import Bools, Floats, Ints

_MAD_EFFICIENCY = 0.37


@dataclass(frozen=True, slots=True)
class Differences:
    """One entry per rank, seconds per step; NaN for ranks without steps or without peers."""

    own_s: Floats
    peers_own_s: Floats
    excess_s: Floats
    error_s: Floats
    z: Floats
    freedom: Floats  # degrees of freedom of z
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
    noise = gap - fitted_line(gap) if drifting else gap
    rho = autocorrelation(noise, first)
    own, median, gap, noise = own[:, first:], median[:, first:], gap[:, first:], noise[:, first:]
    excess, error = trimmed_mean(gap), trimmed_error(noise, rho)
    spread = usual_spread(own, roles, error, step_s)
    floor = np.maximum(np.where(spread.peers < 3, limits.EFFECT_SHARE_FEW, limits.EFFECT_SHARE) * step_s, least_s)
    z, freedom = _z(excess, spread.between_s, error, trimmed_freedom(noise, rho))
    of_peers = _MAD_EFFICIENCY * spread.wander_values * (1 - rho) / (1 + rho)
    z_always, freedom_always = _z(excess, spread.between_s, spread.wander_s, of_peers)
    always = (z_always > np.nan_to_num(z, nan=-np.inf)) & (spread.peers >= 2) & (lowest_kept(gap) >= 2 * floor)
    steps = np.isfinite(gap).sum(axis=1)
    return Differences(
        own_s=trimmed_mean(own),
        peers_own_s=trimmed_mean(median),
        excess_s=excess,
        error_s=error,
        z=np.nan_to_num(np.where(always, z_always, z)),
        freedom=np.where(always, freedom_always, freedom),
        slower_share=(gap > 0).sum(axis=1) / np.maximum(steps, 1),
        steady_s=_steady(gap, drifting),
        floor_s=floor,
        peer_count=spread.peers,
    )


def _z(excess: Floats, known: Floats, error: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """excess / sqrt(known² + error²), and the degrees of freedom of that."""
    with np.errstate(divide="ignore", invalid="ignore"):
        z = excess / np.sqrt(known**2 + error**2)
    return z, combined_freedom(known, error, freedom)


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


def odd_ones(found: Differences, least_z: float = limits.Z_LEAST) -> Bools:
    """Ranks that are significantly and noticeably slower than their peers, false discoveries controlled."""
    return _passed(found, least_z, found.freedom)


def unproven_ones(found: Differences) -> Bools:
    """Ranks that would be odd if their errors were known as well as from many steps: neither odd, nor healthy for sure."""
    return _passed(found, limits.Z_LEAST, np.full(len(found.z), np.inf)) & ~odd_ones(found)


def _passed(found: Differences, least_z: float, freedom: Floats) -> Bools:
    tested = np.isfinite(found.excess_s)
    odd = tested & (found.z >= least_z) & (found.excess_s >= found.floor_s)
    odd &= found.steady_s >= limits.STEADY * found.excess_s
    p = np.ones(len(odd))
    if odd.any():
        p[odd] = chance(found.z[odd], freedom[odd])
    odd[tested] &= benjamini_hochberg(p[tested])
    return odd
