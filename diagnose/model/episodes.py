"""Rare episodes: steps in which one rank is suddenly slow. No robust mean over steps shows them; the tail does.

An episode of rank r is a run of steps s with d(r,s) = own(r,s) - median over peers >= max(a quarter of a step, 4 sd(r)), which goes on
while d is half of that: steps in a row have one reason. sd(r): robust_sd of d(r,·), or the median of its peers' where that is less: of a
rank that is slow in every other step its own would say that it varies, and were it healthy, it would as they do.
An accident is a step in which an episode of anybody begins; of A accidents each falls on k of the R ranks on average, because ranks of
one host are slow together. If accidents fall by chance, each falls on r with probability k / R. Rank r is a suspect if

2 R · P(Binomial(A, k/R) >= E(r)) · rhythm(r) · place(r) <= 1 %,  E(r) >= 3 episodes (2 where all are at one place), at most half of the
steps are episodes, and the mean over all steps of T(s) - T'(s), the episodes of all such ranks replaced by their peers' time, is above
the effect floor. Of these, who gains less than the floor beside the others is dropped: two ranks that are slow in the same steps gain
nothing alone.
The factor 2: episodes are counted twice, all of them, and only those of at least 30 % of the longest: on a busy host small stalls of
all ranks must not hide the large ones of one.
rhythm(r) = (3 / k)^(E(r) - 2) if the episodes are k steps apart, each within a step, else 1: how probable it is that chance keeps time.
place(r) = q^(E(r) - 1), q the share of the steps of r in which it is at the one place (fleet/model.py, `Pauses`) at which it is in all
of its episodes; 1 where there is no such place. Accidents do not choose where: after the first each falls into such a step by q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.replay import busy, share_out
from rankscope.diagnose.stats.robust import CLIP, TRIM, peers_median, robust_sd
from rankscope.diagnose.stats.special import binomial_above
from rankscope.probes.arrays import Bools, Floats, Ints

PlaceShare = Callable[[int, Ints], float]  # of (row, steps): q


def no_place(_: int, __: Ints) -> float:
    """Where nobody looks."""
    return 1.0


def at_one_place(fleet: Fleet, first: int) -> PlaceShare:
    """By what the observer saw of the ranks' pauses; steps are counted from column `first` of the fleet's on."""

    def share(row: int, steps: Ints) -> float:
        known = max(int(np.isfinite(fleet.steps.own_s[row]).sum()), 1)
        places = np.flatnonzero((fleet.pauses.rank == row) & ~fleet.pauses.more).tolist()
        held = [columns for columns in map(fleet.pause_columns, places) if np.isin(steps + first, columns).all()]
        return min(map(len, held), default=known) / known

    return share


@dataclass(frozen=True, slots=True)
class Episodes:
    """A rank (row) with more episodes than chance gives it."""

    row: int
    count: int
    of_all: int  # episodes of all ranks together
    lost_s: float  # mean over all steps
    longest_s: float  # longest own time
    usual_s: float  # median own time
    rare: bool  # a trimmed mean leaves out so few steps
    chance: float  # probability that this is an accident
    period: int = 0  # steps from one to the next, where they keep time; else 0


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A rank with more episodes than chance gives it, whatever they cost."""

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
    """Ranks with rare episodes, the most damaging first. `skip`: rows that are suspects for all of their steps."""
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
    """The first sudden step of each run of steps that go on."""
    first = np.zeros_like(sudden)
    for row in np.flatnonzero(sudden.any(axis=1)):
        run = np.cumsum(~going_on[row])  # equal within a run
        at = np.flatnonzero(sudden[row])
        first[row, at[np.unique(run[at], return_index=True)[1]]] = True
    return first


def _oftener_than_chance(gap: Floats, sudden: Bools, begins: Bools, place_share: PlaceShare) -> Iterator[_Candidate]:
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
    """Those without whose episodes the steps were shorter by the floor, each beside the others, with its part of what all cost together."""

    def gained_s(chosen: list[_Candidate]) -> float:
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
    """How many steps lie between these (0: they keep no time), and how probable it is that chance keeps time so well."""
    apart = np.diff(at)
    period = float(apart.mean())
    if len(at) < 3 or period < 4 or np.abs(apart - period).max() > 1:
        return 0, 1.0
    return round(period), (3 / period) ** (len(at) - 2)
