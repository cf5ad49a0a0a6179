"""Spread of healthy ranks: between one another, and of each over the steps.

level(r)   = 10 % trimmed mean over s of own(r,s) - median over all ranks of the role
between(r) = max(floor, robust_sd over peers of level · (1 + 1 / peers))
wander(r)  = 1.4826 · median over peers q and steps s of |own around its level|

The levels also spread by their errors: from 64 peers on, where that is known well enough,
median(se²) is subtracted from between². Where the levels form a lower group of more than half of
the ranks and an upper one, with a gap of four times the spread of the lower group, the spread is
that of the lower group: so up to half of the ranks may be bad.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.stats.robust import (
    CLIP,
    MAD_TO_SD,
    deviations,
    median,
    nan_median,
    robust_sd_of,
    robust_sd_of_others,
    trimmed_mean,
)
from rankscope.probes.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class UsualSpread:
    """Spread of healthy ranks, one entry per rank, in seconds."""

    between_s: Floats
    wander_s: Floats
    wander_values: Ints  # number of values of its peers
    peers: Ints


def usual_spread(own: Floats, roles: Ints, error_s: Floats, step_s: float, counted: Bools | None = None) -> UsualSpread:
    """Estimate the spread of healthy ranks for each rank.

    `own`: ranks x steps, seconds; `error_s`: standard error of each rank's excess; `counted`: mask
        of ranks that may serve as peers.
    """
    between, wander = np.full(len(own), np.nan), np.full(len(own), np.nan)
    values, peers = np.zeros(len(own), dtype=np.int64), np.zeros(len(own), dtype=np.int64)
    result = UsualSpread(between, wander, values, peers)
    for role in np.unique(roles):
        members = np.flatnonzero(roles == role)
        usable = members if counted is None else members[counted[members]]
        if not 0 < len(usable) < len(members):
            usable = members
        _put(result, usable, _of_role(own[usable], error_s[usable], step_s))
        if len(usable) < len(members):
            _beside(result, np.setdiff1d(members, usable), usable, own, error_s, step_s)
    return result


def _of_role(own: Floats, error_s: Floats, step_s: float) -> UsualSpread:
    """Spread of ranks of one role, each a peer of all others.

    `own`: these ranks x steps; `error_s`: standard error of each rank's excess.
    """
    # Against one common median: the peers' own medians would carry the suspect's time into their
    # spread.
    around = own - nan_median(own, 0)
    known = np.isfinite(around).sum(axis=1)
    between = _between(trimmed_mean(around), error_s, step_s)
    return UsualSpread(between, _wander(around), known.sum() - known, np.full(len(own), len(own) - 1))


def _beside(result: UsualSpread, rest: Ints, usable: Ints, own: Floats, error_s: Floats, step_s: float) -> None:
    """Fill in ranks that may not serve as peers (`rest`), each compared with those that may (`usable`).

    Changes `result` in place.
    """
    if len(usable) > limits.PEERS_EXACT:
        one = usable[0]
        result.between_s[rest], result.wander_s[rest] = result.between_s[one], result.wander_s[one]
        result.wander_values[rest], result.peers[rest] = result.wander_values[one], len(usable)
        return
    for row in rest:
        beside = np.append(usable, row)
        _put(result, beside[-1:], _of_role(own[beside], error_s[beside], step_s), slice(-1, None))


def _put(result: UsualSpread, rows: Ints, found: UsualSpread, of: slice = slice(None)) -> None:
    """Copy the entries `of` of `found` into the entries `rows` of `result`."""
    result.between_s[rows], result.wander_s[rows] = found.between_s[of], found.wander_s[of]
    result.wander_values[rows], result.peers[rows] = found.wander_values[of], found.peers[of]


def _wander(around: Floats) -> Floats:
    """Standard deviation of the times of each rank's peers around their levels, seconds.

    `around`: own time less the median of the role, ranks of one role x steps.
    """
    rest = deviations(around, 1)
    if len(rest) - 1 >= limits.PEERS_EXACT:
        return np.full(len(rest), MAD_TO_SD * float(nan_median(nan_median(rest, 1)[None, :], 1)[0]))
    others = [np.delete(rest, place, axis=0).reshape(1, -1) for place in range(len(rest))]
    return np.array([MAD_TO_SD * float(nan_median(each, 1)[0]) if each.size else np.nan for each in others])


def _between(level: Floats, error_s: Floats, step_s: float) -> Floats:
    """Spread of the own time among each rank's peers, seconds, never below the floor.

    `level`: of each rank of one role, relative to the role; `error_s`: its standard error.
    """
    peers = len(level) - 1
    floor = limits.SCALE_FLOOR * step_s
    if peers < 3:  # whose spread cannot be estimated, and whose median differs as they do
        return np.full(len(level), floor * np.sqrt(1 + 1 / max(peers, 1)))
    spread = robust_sd_of_others(level, _lower_group(level, step_s))
    if peers >= limits.PEERS_EXACT:
        known = error_s[np.isfinite(error_s)]
        spread = np.sqrt(np.maximum(spread**2 - (median(known) ** 2 if len(known) else 0.0), 0.0))
    return np.maximum(floor, spread * (1 + 1 / peers))


def _lower_group(level: Floats, step_s: float) -> Bools:
    """Mask of the ranks below the widest gap above the median, if that gap is clear; else all.

    Clear: wider than CLIP times the spread below it, and than the effect floor.
    """
    everybody = np.isfinite(level)
    ordered = np.sort(level[everybody])
    half = len(ordered) // 2 + 1  # the lower group has more than half
    if len(ordered) < 5 or half >= len(ordered):
        return everybody
    gaps = np.diff(ordered)[half - 1 :]
    widest = int(np.argmax(gaps))
    below = ordered[: half + widest]
    if gaps[widest] < max(CLIP * robust_sd_of(below), limits.EFFECT_SHARE * step_s):
        return everybody
    lower: Bools = everybody & (np.nan_to_num(level, nan=np.inf) <= below[-1])
    return lower
