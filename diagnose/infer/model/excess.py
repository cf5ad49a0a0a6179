"""Ranks against their peers: robust location and scale, and ranks whose own time is too long.

d(r,s)    = own(r,s) - median over peers q of own(q,s), per step s; peers: ranks of the same role,
            without r
excess(r) = 10 % trimmed mean over s of d(r,s)
se(r)     = winsorised sd of d(r,·) / (0.8 sqrt(n_eff)), n_eff = n (1 - rho) / (1 + rho), rho: lag-1
            autocorrelation
z(r)      = excess(r) / sqrt(between(r)² + se(r)²), between: spread of healthy ranks
            (usual_spread.py)

A rank whose excess varies much has a large se(r), however large the excess is in every single step.
Its constant part counts too:

always(r) = 10th percentile over s of d(r,s)
z(r)      = max(z(r), excess(r) / sqrt(between(r)² + wander(r)²)), where always(r) >= 2 floors, with
            two peers or more

Repaired, it would vary as its peers do: wander is theirs, and peers that vary as much are evidence
against the rank.

strength(r) = -ln P(t >= z(r)), in nats, where the excess exceeds the effect floor and is present in
              every third of the steps; else 0

P is Student's, since se comes from few steps. Its degrees of freedom are nu(r) = h (1 - rho) / (1 +
rho) - 1, h the steps that the trimmed mean uses; those of z are nu · (1 + between² / se²)², with
between taken as known (see stats/README.md). wander comes from the N steps of all peers: nu = e · N
(1 - rho) / (1 + rho), e = 0.37 the efficiency of a median absolute deviation relative to a standard
deviation (Rousseeuw & Croux 1993). Trimmed mean and winsorised error: Yuen 1974.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.model.usual_spread import usual_spread
from rankscope.diagnose.stats.rhythm import fitted_line
from rankscope.diagnose.stats.robust import (
    MAD_EFFICIENCY,
    autocorrelation,
    peers_median,
    trimmed,
    trimmed_mean,
)
from rankscope.diagnose.stats.student import chance, combined_freedom, nats
from rankscope.probes.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Differences:
    """Every rank compared with its peers, seconds per step; NaN without steps or peers."""

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
    z_quiet: Floats  # z without the error that `doubt_s` adds
    between_s: Floats  # spread of healthy ranks, with `doubt_s`

    def of_first(self, count: int) -> Differences:
        """The entries of the first `count` ranks."""
        return Differences(*(getattr(self, field.name)[:count] for field in fields(self)))


def differences(
    own: Floats,
    roles: Ints,
    step_s: float,
    first: int = 0,
    least_s: float = limits.EFFECT_SECONDS,
    drifting: bool = False,
    counted: Bools | None = None,
    doubt_s: Floats | float = 0.0,
) -> Differences:
    """Compare every rank's own time with its peers', from step `first` on.

    `own`: ranks x steps, seconds; `step_s`: length of a step. Steps before `first` serve only to
        estimate the autocorrelation of the noise.
    `least_s`: least excess that counts, whatever the step.
    `drifting`: the job's steps grow steadily; then a steady growth of a rank's excess is no noise
        either.
    `counted`: mask of ranks that may serve as peers (default: all).
    `doubt_s`: a known error of each rank's own time, besides the spread of healthy ranks.
    """
    median = peers_median(own, roles, counted)
    gap = own - median
    noise = gap - fitted_line(gap) if drifting else gap
    rho = autocorrelation(noise, first)
    own, peers_own, gap = own[:, first:], trimmed_mean(median[:, first:]), gap[:, first:]
    del median  # with 100,000 ranks every matrix counts
    excess, least, error, kept = _levels(gap, noise[:, first:] if drifting else None, rho)
    spread = usual_spread(own, roles, error, step_s, counted)
    between = np.hypot(spread.between_s, doubt_s)
    # The median of few peers is itself uncertain, as their level is (usual_spread.py): require a
    # larger difference.
    floor = np.maximum(limits.EFFECT_SHARE * np.sqrt(1 + 1 / np.maximum(spread.peers, 1)) * step_s, least_s)
    z, freedom = standardised(excess, between, error, kept)
    of_peers = MAD_EFFICIENCY * spread.wander_values * (1 - rho) / (1 + rho)
    z_always, freedom_always = standardised(excess, between, spread.wander_s, of_peers)
    always = (z_always > np.nan_to_num(z, nan=-np.inf)) & (spread.peers >= 2) & (least >= 2 * floor)
    steps = np.isfinite(gap).sum(axis=1)
    return Differences(
        own_s=trimmed_mean(own),
        peers_own_s=peers_own,
        excess_s=excess,
        error_s=error,
        z=np.nan_to_num(np.where(always, z_always, z)),
        freedom=np.where(always, freedom_always, freedom),
        slower_share=(gap > 0).sum(axis=1) / np.maximum(steps, 1),
        steady_s=_steady(gap, drifting),
        floor_s=floor,
        peer_count=spread.peers,
        z_quiet=np.nan_to_num(standardised(excess, spread.between_s, error, kept)[0]),
        between_s=between,
    )


def _levels(gap: Floats, noise: Floats | None, rho: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return, by rank, the trimmed mean and the least of the gap, and the error and freedom of the noise.

    `gap`: own time above the peers, ranks x steps; `noise`: the same without its growth, None: the
    gap itself; `rho`: autocorrelation.
    """
    of_gap = trimmed(gap)
    of_noise = of_gap if noise is None else trimmed(noise)
    return of_gap.mean(), of_gap.least(), of_noise.error(rho), of_noise.freedom(rho)


def standardised(excess: Floats, known: Floats, error: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """Return z = excess / sqrt(known² + error²), and its degrees of freedom.

    `known`: spread of healthy ranks, taken as exact; `freedom`: degrees of freedom of `error`.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        z = excess / np.sqrt(known**2 + error**2)
    return z, combined_freedom(known, error, freedom)


def _steady(gap: Floats, drifting: bool = False) -> Floats:
    """Return, by rank, the least trimmed mean over thirds of the steps (halves below 15, the whole below 8).

    `gap`: own time above the peers, ranks x steps. `drifting`: leave out the first third of ranks
    whose means rise from third to third.
    """
    count = gap.shape[1]
    parts = np.array_split(gap, 3 if count >= 15 else 2 if count >= 8 else 1, axis=1)
    means = np.stack([trimmed_mean(part) for part in parts])
    if drifting and len(parts) == 3:
        rising = (np.diff(means, axis=0) > 0).all(axis=0)
        means[0] = np.where(rising, np.inf, means[0])
    return np.asarray(np.where(np.isfinite(means), means, np.inf).min(axis=0), dtype=np.float64)


def strength(found: Differences) -> Floats:
    """Evidence that each rank is slower than its peers, in nats: -ln P(t >= z(r)).

    0 where the excess is below the effect floor, or not in every third of the steps.
    """
    return _strength(found, found.freedom)


def strength_of_many_steps(found: Differences) -> Floats:
    """Evidence that each rank is slower, in nats, as if errors were known from many steps.

    -ln P(N >= z(r)), N normal; 0 where the excess is too small or not lasting, as in `strength`.
    """
    return _strength(found, np.full(len(found.z), np.inf))


def _strength(found: Differences, freedom: Floats) -> Floats:
    """Return -ln P(t >= z(r)) in nats, by rank, for t with these degrees of freedom.

    0 where the excess is below the effect floor, or not present in every third of the steps.
    """
    result = np.zeros(len(found.z))
    effect = np.isfinite(found.excess_s) & (found.excess_s >= found.floor_s) & (found.z > 0)
    effect &= found.steady_s >= limits.PART * found.excess_s
    if effect.any():
        result[effect] = nats(chance(found.z[effect], freedom[effect]))
    return result
