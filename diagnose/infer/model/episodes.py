"""Rare episodes: steps in which one rank is suddenly slow, which no robust mean over steps shows.

An episode of rank r is a sequence of steps s with d(r,s) = own(r,s) - median over peers >= max(a
quarter of a step, 4 sd(r)) that continues while d is half of that, since consecutive steps have one
cause. sd(r): robust_sd of d(r,·), or the median of its peers' if that is less: for a rank that is
slow in every other step its own would hide that, and if healthy it would vary as they do.

An accident is a step in which an episode of any rank begins; each of A accidents hits k of the R
ranks on average, because ranks of one host are slow together. By chance it hits r with probability
k / R. Rank r is a suspect if

2 R · P(Binomial(A, k/R) >= E(r)) · rhythm(r) · place(r) <= 1 %, E(r) >= 3 episodes (2 where all are
at one place)

and at most half of the steps are episodes, and the mean over all steps of T(s) - T'(s), with the
episodes of all such ranks replaced by their peers' time, is above the effect floor. Ranks that gain
less than the floor beyond the others are dropped: two ranks that are slow in the same steps gain
nothing alone. The factor 2: episodes are counted twice, all of them, and only those of at least 30
% of the longest, so that on a busy host small stalls of all ranks do not hide the large ones of
one.

rhythm(r) = (3 / k)^(E(r) - 2) if the episodes are k steps apart, each within a step, else 1: the
            probability that chance is so regular
place(r)  = q^(E(r) - 1), q the share of the steps of r at the one place (fleet/model.py, `Pauses`)
            at which it is in all of its episodes; 1 without such a place. Accidents are independent
            of the place: after the first, each falls into such a step with probability q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.replay import busy, share_out
from rankscope.diagnose.stats.robust import CLIP, TRIM, peers_median, robust_sd
from rankscope.diagnose.stats.special import binomial_above
from rankscope.probes.base.arrays import Bools, Floats, Ints

PlaceShare = Callable[[int, Ints], float]  # maps (row, steps) to q


def no_place(_: int, __: Ints) -> float:
    """Place share q for a fleet without observed pauses: always 1."""
    return 1.0


def at_one_place(fleet: Fleet, first: int) -> PlaceShare:
    """Return q(row, steps): share of a rank's steps that have the pause which it makes in all of `steps`.

    1 without such a pause. `first`: column of the fleet's steps at which `steps` begin to count.
    """

    def share(row: int, steps: Ints) -> float:
        """Return q for a rank (row) and these steps, counted from `first`."""
        known = max(int(np.isfinite(fleet.steps.own_s[row]).sum()), 1)
        places = np.flatnonzero((fleet.pauses.rank == row) & ~fleet.pauses.more).tolist()
        held = [columns for columns in map(fleet.pause_columns, places) if np.isin(steps + first, columns).all()]
        return min(map(len, held), default=known) / known

    return share


@dataclass(frozen=True, slots=True)
class Episodes:
    """A rank (row) with more episodes than chance explains, and their cost."""

    row: int
    count: int
    of_all: int  # episodes of all ranks together
    lost_s: float  # mean over all steps
    longest_s: float  # longest own time
    usual_s: float  # median own time
    rare: bool  # so few steps that a trimmed mean leaves them out
    chance: float  # probability that this is an accident
    period: int = 0  # steps between episodes if they are regular, else 0


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A rank with more episodes than chance explains, whatever they cost."""

    row: int
    sudden: Bools
    count: int
    of_all: int
    chance: float
    period: int
    more_s: float  # above the peers, mean over all steps


def find_episodes(
    own: Floats, roles: Ints, step_s: float, floor_s: Floats, skip: Ints, place_share: PlaceShare = no_place
) -> Iterator[Episodes]:
    """Yield ranks with rare episodes, most damaging first.

    `own`: ranks x steps, seconds; `floor_s`: effect floor of each rank; `skip`: rows that are
    suspects for all of their steps; `place_share`: q(row, steps), probability that a step is at the
    place of these episodes.
    """
    ranks, steps = own.shape
    if ranks < 2 or steps < limits.STEPS_FEW:
        return
    gap = own - peers_median(own, roles)
    own_sd = robust_sd(gap, 1)[:, None]
    spread = CLIP * np.fmin(own_sd, peers_median(own_sd, roles))
    gap = np.nan_to_num(gap)
    least = np.maximum(limits.LARGE_SHARE * step_s, np.nan_to_num(spread, nan=np.inf))
    gap_of_all = np.delete(gap, skip, axis=0)
    longest = float(gap_of_all.max()) if gap_of_all.size else 0.0
    found: dict[int, _Candidate] = {}
    for share in (0.0, limits.PART):
        enough = np.maximum(least, share * longest)
        sudden = gap >= enough
        sudden[skip] = False
        begins = _first_of_runs(sudden, gap >= 0.5 * enough)
        for each in _oftener_than_chance(gap, sudden, begins, place_share):
            if each.row not in found or each.more_s > found[each.row].more_s:
                found[each.row] = each
    worst = sorted(found.values(), key=lambda each: -each.more_s)[: budgets.EXAMINED]
    yield from sorted(_that_cost(own, gap, worst, floor_s), key=lambda each: -each.lost_s)


def _first_of_runs(sudden: Bools, going_on: Bools) -> Bools:
    """Mark the first sudden step of each run of steps in which an episode continues.

    `sudden`, `going_on`: ranks x steps: an episode may begin there; it continues there.
    """
    first = np.zeros_like(sudden)
    for row in np.flatnonzero(sudden.any(axis=1)):
        run = np.cumsum(~going_on[row])  # equal within a run
        at = np.flatnonzero(sudden[row])
        first[row, at[np.unique(run[at], return_index=True)[1]]] = True
    return first


def _oftener_than_chance(gap: Floats, sudden: Bools, begins: Bools, place_share: PlaceShare) -> Iterator[_Candidate]:
    """Yield ranks with more episodes than chance explains, in the order of rows.

    `gap`: own time above the peers' median, ranks x steps; `sudden`: steps of episodes; `begins`:
    their first steps.
    """
    ranks, steps = gap.shape
    count, at_once = begins.sum(axis=1), begins.sum(axis=0)
    accidents, together = int((at_once > 0).sum()), float(at_once[at_once > 0].mean()) if at_once.any() else 0.0
    often = np.flatnonzero((count > 1) & (sudden.sum(axis=1) <= 0.5 * steps))
    if not len(often):
        return
    for row in often:
        at = np.flatnonzero(begins[row])
        period, in_time = _rhythm(at)
        on_it = binomial_above(len(at) - 1, accidents, min(together / ranks, 1.0))
        there = place_share(int(row), at)
        chance = min(2 * ranks * on_it * in_time * there ** (len(at) - 1), 1.0)
        if len(at) < limits.SEVERAL and there == 1.0:
            continue
        if chance <= limits.FALSE_DISCOVERY_RATE:
            more_s = float(gap[row][sudden[row]].sum() / steps)
            yield _Candidate(int(row), sudden[row], int(count[row]), int(count.sum()), chance, period, more_s)


def _that_cost(own: Floats, gap: Floats, found: list[_Candidate], floor_s: Floats) -> Iterator[Episodes]:
    """Yield episodes that gain their floor beyond the others, each with its part of the joint loss.

    `own`, `gap`: own time, and that above the peers, ranks x steps; `floor_s`: least gain by rank,
    seconds per step.
    """

    def gained_s(chosen: list[_Candidate]) -> float:
        """Mean seconds per step gained without the episodes of these ranks."""
        better = own.copy()
        for each in chosen:
            better[each.row] = np.where(each.sudden, own[each.row] - gap[each.row], own[each.row])
        return float(np.nanmean(busy(own) - busy(better)))

    chosen = list(found)
    while chosen:
        together_s = gained_s(chosen)
        beside_s = np.array([together_s - gained_s(chosen[:at] + chosen[at + 1 :]) for at in range(len(chosen))])
        short_s = beside_s - np.array([float(floor_s[each.row]) for each in chosen])
        if float(short_s.min()) >= 0:
            break
        del chosen[int(np.argmin(short_s))]
    else:
        return
    for each, lost_s in zip(chosen, share_out(together_s, beside_s).tolist(), strict=True):
        usual, longest = float(np.nanmedian(own[each.row])), float(np.nanmax(own[each.row]))
        rare = float(each.sudden.mean()) <= TRIM
        yield Episodes(each.row, each.count, each.of_all, lost_s, longest, usual, rare, each.chance, each.period)


def _rhythm(at: Ints) -> tuple[int, float]:
    """Return (distance in steps, 0 if irregular; probability that chance is so regular, else 1).

    `at`: steps in which episodes begin, rising.
    """
    apart = np.diff(at)
    period = float(apart.mean())
    if len(at) < 3 or period < 4 or np.abs(apart - period).max() > 1:
        return 0, 1.0
    return round(period), (3 / period) ** (len(at) - 2)
