"""The loops of the job's own code from which its calls come, and how often they turn. Pure.

A call's path says which loops it lies in: of each frame on the way, those around the place at which it stands. Of two calls, one after
the other, the paths part in one frame. Where the second stands further on there, no loop had to turn; else the innermost one that holds
both turned. So what is called in every other iteration (`if step % 2: all_reduce`) makes no iteration longer, and five updates of a critic
in a loop of their own are part of the iteration that holds that loop.

A loop around all calls of which none is made there directly cannot be seen to turn: it may be epochs, or the iterations themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rankscope.observer.steps.found import MIN_REPEATS
from rankscope.observer.steps.markers import CallPath, Markers
from rankscope.probes.arrays import Bools, Floats, Ints

_NEARLY_ALL = 0.9
_OUTSIDE = 0  # what calls the job's code again and again without a loop in it (an actor)
_LOOPS_MOST = 256  # around one call, the outermost: a function that calls itself lies in its loops once more each time
Chain = tuple[int, ...]  # loops by number, outermost first


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of a loop: when the first call of each began and the last one ended; the turn that was not over yet is left out.

    `enclosed`: around it lies a loop that cannot be seen to turn. `unseen`: in some turns it made no call of its own.
    `alike`: they make as many calls.
    """

    start_s: Floats
    done_s: Floats
    enclosed: bool
    unseen: bool = False
    alike: bool = True


@dataclass(slots=True)
class _Numbers:
    """A number for each distinct thing, from 1."""

    known: dict[object, int] = field(default_factory=dict)

    def of(self, what: object) -> int:
        return self.known.setdefault(what, len(self.known) + 1)


def chains(paths: Sequence[CallPath]) -> list[Chain]:
    """The loops around each of these places; a loop has the same number in all of them. What lies deeper than `_LOOPS_MOST` counts to the
    last of these."""
    prefixes, loops = _Numbers(), _Numbers()
    found = []
    for path in paths:
        prefix, chain = 0, [_OUTSIDE]
        for call in path:
            chain += [loops.of((prefix, call.function, begin)) for begin in call.loops[: _LOOPS_MOST - len(chain)]]
            prefix = prefixes.of((prefix, call.function, call.at))
        found.append(tuple(chain))
    return found


def turns(markers: Markers, unseen: bool = False) -> Turns | None:
    """The turns of the innermost loop in which the thread spends nearly all of the time between its calls; None where none is known.

    `unseen`: on another rank of the job it turned without a call of its own (`_unseen`).
    """
    if markers.path is None or len(markers) < 2 or np.mean(markers.path >= 0) < _NEARLY_ALL:
        return None
    markers = markers.where(markers.path >= 0)
    path = np.zeros(len(markers), dtype=np.int64) if markers.path is None else markers.path
    between = _between(markers, path)
    if between is None:
        return None
    missed = _unseen(between, unseen)
    for at, chain in missed.items():
        between.owner[at] = chain
    chosen = _chosen(between)
    if chosen is None:
        return None
    # The loop turned, or one around it did.
    ends = np.array([one and chain[-1] in chosen for one, chain in zip(between.turned, between.owner, strict=True)])
    turn = np.concatenate(([0], np.cumsum(ends)))
    first = np.unique(turn, return_index=True)[1]
    seen = {chain[-1] for one, chain in zip(between.turned, between.owner, strict=True) if one}
    return Turns(
        markers.start_s[first][:-1],
        np.maximum.accumulate(np.maximum.reduceat(markers.end_s, first))[:-1],
        enclosed=not seen.issuperset(chosen[1:]),
        unseen=any(chain == chosen for chain in missed.values()),
        alike=_alike(np.bincount(turn[:-1][~np.array(between.again)])[1:-1]),
    )


def _alike(calls: Ints) -> bool:
    """Whether nearly all turns make as many calls."""
    return not len(calls) or bool(np.mean(calls == np.median(calls)) >= _NEARLY_ALL)


@dataclass(frozen=True, slots=True)
class _Between:
    """Of each pair of calls, one after the other: the loops that hold both, whether the innermost had to turn, whether it is the same
    place again in no time (a library that makes several calls of one, or a loop in which nothing is done besides), and the time between.
    """

    owner: list[Chain]
    turned: list[bool]
    again: list[bool]
    gap_s: Floats


def _between(markers: Markers, path: Ints) -> _Between | None:
    """None where a library calls the job's code back: then nothing had to turn."""
    around = chains(markers.paths)
    pairs = list(zip(path[:-1].tolist(), path[1:].tolist(), strict=True))
    shared = {(one, other): _shared(around[one], around[other]) for one, other in set(pairs)}
    turned = {(one, other): _turned(markers.paths[one], markers.paths[other]) for one, other in shared}
    if sum(turned[pair] is None for pair in pairs) > (1 - _NEARLY_ALL) * len(pairs):
        return None
    gap_s = np.maximum(markers.start_s[1:] - np.maximum.accumulate(markers.end_s)[:-1], 0.0)
    again = [
        one == other and short for (one, other), short in zip(pairs, (gap_s < 0.1 * gap_s.mean()).tolist(), strict=True)
    ]
    had_to = [bool(turned[pair]) and not at_once for pair, at_once in zip(pairs, again, strict=True)]
    return _Between([shared[pair] for pair in pairs], had_to, again, gap_s)


def _unseen(between: _Between, known: bool) -> dict[int, Chain]:
    """Where a loop turned that made no call of its own in that turn, so that the one inside it seems to have turned: pairs of calls, and
    the loop.

    At least half as much time lies between them as the outer one has of its own, around the inner one, in a turn that is seen; such turns
    are half as many at least; and the inner one turns as often in less, or is `known` to be one that may turn once only.
    """
    turns_of: dict[Chain, list[int]] = {}
    within: dict[Chain, list[int]] = {}
    at_once: dict[Chain, int] = {}
    for at, (chain, one, again) in enumerate(zip(between.owner, between.turned, between.again, strict=True)):
        within.setdefault(chain, []).append(at)
        if one:
            turns_of.setdefault(chain, []).append(at)
        at_once[chain] = at_once.get(chain, 0) + again
    found: dict[int, Chain] = {}
    around = _nearest_around(turns_of)
    own_s = {outer: _own_s(between.gap_s, within[outer], turns_of[outer]) for outer in set(around.values())}
    for inner, outer in around.items():
        mine = turns_of[inner]
        long = between.gap_s[mine] >= 0.5 * own_s[outer]
        often = int(long.sum())
        if 2 * often >= len(turns_of[outer]) and (known or often <= len(mine) - often + at_once[inner]):
            found.update((at, outer) for at, one in zip(mine, long.tolist(), strict=True) if one)
    return found


def _nearest_around(loops: Iterable[Chain]) -> dict[Chain, Chain]:
    """For each of these loops that lies in another one of them, the innermost of those."""
    found: dict[Chain, Chain] = {}
    holding: list[Chain] = []
    for loop in sorted(loops):  # what a loop holds follows it
        while holding and loop[: len(holding[-1])] != holding[-1]:
            holding.pop()
        if holding:
            found[loop] = holding[-1]
        if loop != (_OUTSIDE,):
            holding.append(loop)
    return found


def _own_s(gap_s: Floats, within: list[int], seen: list[int]) -> float:
    """How long a turn of a loop is, median, without the loops inside it and without calls; `within`: the pairs of calls that it holds and
    no loop inside it does; `seen`: those between which it turned. Where it turns alone tells little: an actor works between its last
    broadcast and its gather, in the middle of a turn."""
    turn = np.searchsorted(seen, within)
    return float(np.median(np.bincount(turn, gap_s[within], len(seen))[: len(seen)]))


def _shared(one: Chain, other: Chain) -> Chain:
    """The loops that hold both."""
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def _turned(one: CallPath, other: CallPath) -> bool | None:
    """Whether a loop had to turn between a call from the one place and the next call, from the other; None: that cannot be told."""
    for before, after in zip(one, other, strict=False):
        if before.function != after.function:
            return None
        if before.at != after.at:
            return after.at < before.at
    return True


def _chosen(between: _Between) -> Chain | None:
    """The loop, with all around it."""
    times: dict[Chain, int] = {}
    within_s: dict[Chain, float] = {}
    for chain, one, gap_s in zip(between.owner, between.turned, between.gap_s.tolist(), strict=True):
        times[chain] = times.get(chain, 0) + one
        within_s[chain] = within_s.get(chain, 0.0) + gap_s
    least_s = _NEARLY_ALL * float(between.gap_s.sum())
    best: Chain = ()
    left = [
        (0, 0, list(within_s))
    ]  # how deep a loop is, how often it or one around it turned, and the chains through it
    while left:
        depth, turned, through = left.pop()
        below: dict[int, list[Chain]] = {}
        for chain in through:
            if len(chain) > depth:
                below.setdefault(chain[depth], []).append(chain)
        for inside in below.values():
            if sum(within_s[chain] for chain in inside) >= least_s:
                often = turned + sum(times[chain] for chain in inside if len(chain) == depth + 1)
                left.append((depth + 1, often, inside))
                if often >= MIN_REPEATS and depth >= len(best):
                    best = inside[0][: depth + 1]
    return best or None


def outermost(markers: Markers, key: Ints, candidates: Sequence[int]) -> list[int]:
    """Of places that are passed (`keys`), those whose own loop holds the loops of all others; all where there is none."""
    if markers.path is None:
        return list(candidates)
    around = chains(markers.paths)
    of_place = {}
    for one in candidates:
        paths = markers.path[(key == one) & (markers.path >= 0)]
        if not len(paths):
            return list(candidates)
        of_place[one] = around[int(np.bincount(paths).argmax())]
    least = min(of_place.values(), key=len)
    if len(least) == 1 or any(chain[: len(least)] != least for chain in of_place.values()):
        return list(candidates)
    return [one for one, chain in of_place.items() if chain == least]


def usual_chain(markers: Markers, around: Sequence[Chain], calls: Bools) -> Chain:
    """The loops around the place from which most of these calls come; empty where it is not known. `around`: `chains` of the paths."""
    if markers.path is None:
        return ()
    known, often = np.unique(markers.path[calls & (markers.path >= 0)], return_counts=True)
    return around[int(known[often.argmax()])] if len(known) else ()


def holds(outer: Chain, inner: Chain) -> bool:
    """Whether one of the loops of `outer` holds both, and `inner` lies in a loop inside it that `outer` does not lie in."""
    return 1 < len(_shared(inner, outer)) < len(inner)
