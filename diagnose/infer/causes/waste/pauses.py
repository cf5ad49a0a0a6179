"""Functions that pause ranks again and again: what takes its time in a few steps only.

The observer names them rank by rank. Their seconds outside collectives are taken from own times in
their steps:

by turns   ranks do it in steps of their own: what was waited for more often than if all did it at
           once, in the steps of the rank that it takes longest
together   all of it, where it is no computing (that has to be done at some time): files, sleep,
           locks, what a library waits for

Evidence for: at least three such steps. A function that takes most of the window is no pause but
the job's own work. Evidence against: loaders, collections and compilers, which are causes of their
own; what all steps have, and a few more of; less than a tenth of the time, as of a checkpoint or an
evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.budget.pauses import PausePlace, places, through
from rankscope.diagnose.infer.causes.hypothesis import SEEN
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.rows import FLOOR_OF_WORK, Waste, by_turns, often, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.verdict.budget import COMPUTING, Kind
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.text import rank_list, seconds
from rankscope.probes.base.arrays import Bools, Floats, Ints

_WORK = (*COMPUTING, Kind.GPU)
_OTHERS = (Kind.INPUT, Kind.GC, Kind.COMPILING, Kind.WAITING, Kind.EXCHANGE, Kind.COLLECTIVES)
_WORDS = {Kind.FILES: "files", Kind.ASLEEP: "sleep", Kind.LOCKS: "locks, threads or processes", Kind.MEMORY: "memory"}


@cause("python", "pause", scope="all", witness="a function in a few of their steps",
       says="{function|a function} pauses them again and again")  # fmt: skip
@cause("python", "pause", scope="rank", witness="a function in a few of its steps",
       says="{function|a function} pauses it again and again")  # fmt: skip
def recurring(spending: Spending) -> Iterator[Row]:
    """Propose python/pause for functions that pause ranks again and again."""
    for place, entries in places(spending.fleet):
        if place.file:
            yield from _of_place(spending, place, entries)


def _of_place(spending: Spending, place: PausePlace, entries: Ints) -> Iterator[Row]:
    """Yield the row of python/pause for one function, if it is a waste.

    None in under three steps, for half of the time or more, for what other causes name, and for computing
    that ranks do in the same steps.

    `entries`: its rows in the table of pauses.
    """
    fleet, spent = spending.fleet, spending.spent
    inside = through(fleet.patterns, spent, place) & np.isin(spent.rank, fleet.pauses.rank[entries])
    shares = {kind: float(spent.seconds[inside & spending.of_kind(kind)].sum()) for kind in Kind}
    total = sum(shares.values())
    if not total > 0 or sum(shares[kind] for kind in _OTHERS) >= limits.HOLDS_LEAST * total:
        return
    taken = spending.waited(np.zeros(len(fleet.ranks)), entries.tolist())
    events: Bools = taken > 0
    columns = np.flatnonzero(events.any(axis=0)).astype(np.int64)
    if len(columns) < limits.SEVERAL or taken.max(axis=0).sum() >= limits.HOLDS_LEAST * np.nansum(
        np.nanmax(fleet.steps.seconds[:, -spending.columns :], axis=0)
    ):
        return
    works = sum(shares[kind] for kind in _WORK) + shares[Kind.QUEUE] >= limits.HOLDS_LEAST * total
    apart = by_turns(taken)
    if works and not apart:
        return
    if apart:
        taken = _beyond_the_longest(taken)
    who: Bools = np.asarray(events.any(axis=1), dtype=bool)
    named = who if apart else None  # also the rank in whose steps the others would do it
    yield from row_of(spending, _waste(spending, place, columns, taken, shares, works, apart), taken, named)


def _beyond_the_longest(taken: Floats) -> Floats:
    """Return the seconds saved if all ranks paused in the steps of the one that pauses most in total (ranks x steps).

    `taken`: seconds of pauses, ranks x steps. That rank saves 0; longer mean pauses of others are
    scaled down to its mean pause, as the rest would still be waited for.
    """
    longest = int(np.argmax(taken.sum(axis=1)))
    each = np.array([row[row > 0].mean() if row.any() else 0.0 for row in taken])
    kept = np.maximum(each - each[longest], 0.0) / np.maximum(each, 1e-12)
    found = taken * (1 - kept)[:, None]
    found[longest] = 0.0
    return np.asarray(found, dtype=np.float64)


def _waste(
    spending: Spending,
    place: PausePlace,
    columns: Ints,
    taken: Floats,
    shares: dict[Kind, float],
    works: bool,
    apart: bool,
) -> Waste:
    """Return the Waste of one pausing function, with evidence of when it pauses, which ranks, and what it does.

    `columns`: the judged steps in which a rank pauses, not all of them; `taken`: seconds, ranks x judged
    steps; `shares`: its seconds per step by kind; `works`: it mostly computes; `apart`: ranks do it in
    steps of their own.
    """
    each_s = float(np.median(taken[taken > 0])) if taken.any() else 0.0
    evidence = [Evidence("stacks", "pauses", f"{often(spending, columns)}, of {seconds(each_s)}", None, "")]
    does = max(_WORDS, key=lambda kind: shares[kind])
    if shares[does] > 0 and not works:
        evidence.append(Evidence("stacks", "it mostly waits for", _WORDS[does], None, ""))
    ranks = np.flatnonzero(taken.any(axis=1))
    function = Function("python", place.name, place.file, place.line)
    if apart:
        evidence.append(
            Evidence("stacks", "ranks do it by turns", "each in steps of its own, and all others wait", None, "")
        )
        action = f"Let all ranks do it at the same step: each call of {function.words} is waited for by all others."
        return Waste("python", "pause", SEEN, tuple(evidence), action, function)
    numbers = tuple(int(number) for number in spending.fleet.ranks.number[ranks])
    who = "all others wait meanwhile" if len(ranks) < len(spending.fleet.ranks) else "on all ranks"
    evidence.append(Evidence("stacks", f"{rank_list(numbers)}", who, None, ""))
    action = f"Do less often, or beside the training, what {function.words} does there" + (
        f" (its call of {place.inside})." if place.inside else "."
    )
    return Waste("python", "pause", SEEN, tuple(evidence), action, function, floor=FLOOR_OF_WORK)
