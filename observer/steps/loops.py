"""Find the loops of the job's own code that make its calls, and count their turns. Pure.

A call's path says which loops it lies in: for each frame on the way, those around the current
instruction. The paths of two successive calls part in one frame. Where the second is further on
there, no loop had to turn; else the innermost one that contains both turned. So a call in every
other iteration (`if step % 2: all_reduce`) makes no iteration longer, and five updates of a critic
in a loop of their own are part of the iteration around that loop.

A loop around all calls that makes none directly cannot be seen to turn: it may be epochs, or the
iterations themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rankscope.observer.steps.found import MIN_REPEATS
from rankscope.observer.steps.markers import CallPath, Markers
from rankscope.probes.base.arrays import Bools, Floats, Ints

_NEARLY_ALL = 0.9
_OUTSIDE = 0  # the caller that runs the job's code repeatedly without a loop in it (an actor)
_LOOPS_MOST = 256  # around one call, the outermost; recursion repeats a function's loops each time
Chain = tuple[int, ...]  # loops by number, outermost first


@dataclass(frozen=True, slots=True)
class Turns:
    """The complete turns of one loop: begin of the first and end of the last call of each turn, in seconds.

    `enclosed`: around it is a loop that cannot be seen to turn. `unseen`: in some turns it made no
    call of its own. `alike`: all turns make equally many calls.
    """

    start_s: Floats
    done_s: Floats
    enclosed: bool
    unseen: bool = False
    alike: bool = True


@dataclass(slots=True)
class _Numbers:
    """Numbers distinct things from 1."""

    known: dict[object, int] = field(default_factory=dict)

    def of(self, what: object) -> int:
        """Return the number of this thing; a new one at its first occurrence."""
        return self.known.setdefault(what, len(self.known) + 1)


def chains(paths: Sequence[CallPath]) -> list[Chain]:
    """Return for each call path the loops around it, outermost first; one loop has the same number in all.

    Each chain begins with 0 (`_OUTSIDE`) and has at most `_LOOPS_MOST` loops.
    """
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
    """Find the turns of the innermost loop in which the thread spends nearly all time between its
    calls; None if unknown.

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
    """Tell whether nearly all turns make equally many calls; `calls`: their number in each turn."""
    return not len(calls) or bool(np.mean(calls == np.median(calls)) >= _NEARLY_ALL)


@dataclass(frozen=True, slots=True)
class _Between:
    """For each pair of successive calls: the loops around both, whether the innermost had to turn,
    and the time between.

    `again`: the same call site again at once (a library that makes several calls of one, or a loop
    that does nothing else).
    """

    owner: list[Chain]
    turned: list[bool]
    again: list[bool]
    gap_s: Floats


def _between(markers: Markers, path: Ints) -> _Between | None:
    """Compare each two successive calls by their paths; None where too many pairs cannot be compared.

    `path`: the index of each call's path in `markers.paths`. Pairs cannot be compared where a
    library calls the job's code back: then no loop had to turn.
    """
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
    """Find turns in which an outer loop made no call of its own, so that only the loop inside it seemed to turn.

    Returns {index of the pair of calls: the outer loop that turned between them}. Such a pair is a
    turn of the inner loop with a gap of at least half of the outer loop's own time per seen turn
    (`_own_s`). All such pairs of an inner loop are accepted or none: they must be at least half as
    many as the outer loop's seen turns, and no more than the inner loop's turns with shorter gaps
    (calls repeated at once included). With `known`, set where another rank of the job showed such
    turns, the last condition does not apply: the inner loop may turn once per turn of the outer one.
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
    """Map each of these loops that lies inside another of them to the innermost loop around it."""
    found: dict[Chain, Chain] = {}
    holding: list[Chain] = []
    for loop in sorted(loops):  # loops inside a loop follow it
        while holding and loop[: len(holding[-1])] != holding[-1]:
            holding.pop()
        if holding:
            found[loop] = holding[-1]
        if loop != (_OUTSIDE,):
            holding.append(loop)
    return found


def _own_s(gap_s: Floats, within: list[int], seen: list[int]) -> float:
    """Return the median duration of a loop's turn without its inner loops and calls.

    `within`: the call pairs directly in it; `seen`: those between which it turned. The time at the
    turn alone is not enough: an actor works between its last broadcast and its gather, in the
    middle of a turn.
    """
    turn = np.searchsorted(seen, within)
    return float(np.median(np.bincount(turn, gap_s[within], len(seen))[: len(seen)]))


def _shared(one: Chain, other: Chain) -> Chain:
    """Return the loops that two chains share: their common beginning."""
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def _turned(one: CallPath, other: CallPath) -> bool | None:
    """Tell whether a loop had to turn between two successive calls, given their paths.

    None if unknown: the paths part in different functions.
    """
    for before, after in zip(one, other, strict=False):
        if before.function != after.function:
            return None
        if before.at != after.at:
            return after.at < before.at
    return True


def _chosen(between: _Between) -> Chain | None:
    """Choose the loop whose turns are iterations; return it with all loops around it, None if there is none.

    It is the innermost with nearly all of the time between calls inside it that turned, itself or
    by a loop around it, at least `MIN_REPEATS` times.
    """
    times: dict[Chain, int] = {}
    within_s: dict[Chain, float] = {}
    for chain, one, gap_s in zip(between.owner, between.turned, between.gap_s.tolist(), strict=True):
        times[chain] = times.get(chain, 0) + one
        within_s[chain] = within_s.get(chain, 0.0) + gap_s
    least_s = _NEARLY_ALL * float(between.gap_s.sum())
    best: Chain = ()
    left = [(0, 0, list(within_s))]  # depth of a loop, turns of it and of those around it, and the chains through it
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
    """Select the call sites whose own loop encloses the loops of all others; all sites if there is
    none.

    `key`: the site of each marker; `candidates`: the sites to compare.
    """
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
    """Return the loops around the most frequent call path of these calls (a mask of the markers); empty if unknown.

    `around`: `chains` of the markers' paths.
    """
    if markers.path is None:
        return ()
    known, often = np.unique(markers.path[calls & (markers.path >= 0)], return_counts=True)
    return around[int(known[often.argmax()])] if len(known) else ()


def holds(outer: Chain, inner: Chain) -> bool:
    """Tell whether both chains share a loop (besides `_OUTSIDE`) and `inner` has further loops inside it.

    `outer` need not end with the shared loop: it may have other loops inside it as well.
    """
    return 1 < len(_shared(inner, outer)) < len(inner)
