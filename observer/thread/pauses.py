"""Find pauses: what a training thread does in a few of its steps only, making them longer. Pure.

An evaluation, a checkpoint, a barrier, a flushed log comes every Nth iteration: it lies inside a
step, and that step is longer by it. t(f, s) are the seconds of activities of function f that began
in step s, without queues for the CPU (the host's doing). Stacks make a tree, its leaves what the
thread ran or waited in; t(g, s) of a node g sums over all leaves below it, and

S(g)       the steps with t(g, s) >= 0.1 · max t(g, ·): on a busy host one evaluation was four times as long as the next

Walking down from the root, g is a pause if

rare       S(g) are at most 40 % of the steps, and all others together contain at most a tenth of what g takes
matters    the median of t(g, s) over S(g) is at least `LONGER` of a median step, and S(g) are longer than that by half of it or more
no chance  what runs briefly in every step is sampled in few of them: C(n, k) · p^m · F <= 1 %, where m samples of g lie in k of n steps,
           which take the share p of the time, and there are F functions. Not required where g calls a collective in most of S(g), or
           waits for half of its time there: no wait is ever missed

The outermost such g is the pause: what is above it occurs in every step, what is below is a part of
it. It is named by the user's function: g itself, or what g calls where it is a decorator's wrapper;
else the outermost user function with half of it (a validation loop of a library calls the user's);
else the user's function that calls it, and what it calls there. Garbage collections count as a
function of their own, whatever they interrupt.

A step is long if it exceeds the median by max(`LONGER` of it, 4 · 1.4826 MAD). What pauses do not
explain of the long steps may be more of what every step does (an evaluation written into the loop
itself): it is reported, as `more`, under the lowest user function with at least 70 % of it,
relative to its median. Whether that is periodic, or the noise of a host, is not decided here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread.activities import Activities
from rankscope.observer.thread.functions import FunctionKey
from rankscope.observer.window.stacks import StackFrame
from rankscope.observer.window.users_code import UsersCode, users_code
from rankscope.probes.base.arrays import Bools, Floats, Ints

LONGER = 0.25  # of the median step: smaller pauses drown in the noise of a busy host, and cost little
GC = StackFrame("gc", "", 0)
_SPREADS = 4.0
_MOST_LONG = 0.4  # of the steps: with more of them the median step is not the ordinary one
_STEPS_LEAST = 10
_OF_LONGEST = 0.3
_PRESENT = 0.1  # share of the most it takes in a step
_ELSEWHERE = 0.1
_HALF = 0.5
_BY_CHANCE = 0.01
_ROWS_MOST = 8
_HOLDS = 0.7  # as for locating a rank's excess (diagnose/infer/model/attribute.py)
_REPEATS_LEAST = 3  # fewer have no rhythm


@dataclass(frozen=True, slots=True)
class Pause:
    """A user's function, with what it calls there ('' for itself), and its seconds in each of its
    steps.

    `more`: the function is in other steps as well, and the seconds are the excess over those.
    """

    function: StackFrame
    inside: str
    steps: Ints
    seconds: Floats
    wait_s: float  # part of the seconds inside collectives
    more: bool = False


@dataclass(frozen=True, slots=True)
class _Tree:
    """Leaves of the tree: path from the root, the steps with their seconds, the total, and their
    kinds.

    Sparse, as most functions are in few steps: a dense matrix of many functions and steps would
    fill the memory.
    """

    paths: Sequence[tuple[StackFrame, ...]]
    count: int  # of steps
    steps: Sequence[Ints]
    seconds: Sequence[Floats]
    total_s: Sequence[float]
    runs: Bools  # sampled while running
    waits: Bools  # for other ranks
    queued: Bools
    hz: float
    users: UsersCode

    def spent_s(self, leaves: Sequence[int] | Ints) -> Floats:
        """Return the seconds of these leaves together in each step."""
        if not len(leaves):
            return np.zeros(self.count)
        at = np.concatenate([self.steps[leaf] for leaf in leaves])
        seconds = np.concatenate([self.seconds[leaf] for leaf in leaves])
        return np.bincount(at, seconds, self.count).astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True)
class _Lengths:
    """Each step's excess over the median step, the threshold for long ones, and each step's share
    of the time.
    """

    extra_s: Floats
    median_s: float
    long_s: float
    share: Floats


def find_pauses(found: Mapping[FunctionKey, Activities], steps: FoundSteps, hz: float) -> tuple[Pause, ...]:
    """Find the pauses of one thread, the largest first, at most `_ROWS_MOST`; then excess of usual work (`more`).

    `found`: its activities, with stacks; `hz`: sampling rate.
    """
    lengths = _lengths(steps)
    if lengths is None or not found:
        return ()
    tree = _tree(found, steps.count, hz)
    together: dict[tuple[StackFrame, str], list[int]] = {}
    for depth, leaves in _nodes(tree, lengths):
        told = _find_function(tree, depth, leaves)
        if told[0].file or told[0] == GC:  # else no stack was seen
            together.setdefault(told, []).extend(leaves)
    pauses = [_pause(tree, *told, leaves) for told, leaves in together.items()]
    pauses.sort(key=lambda pause: -float(pause.seconds.sum()))
    more = _more_of_the_usual(tree, lengths, pauses)
    return (*pauses[:_ROWS_MOST], *([more] if more is not None else []))


def _lengths(steps: FoundSteps) -> _Lengths | None:
    """Compare the steps with the median step; None for fewer than `_STEPS_LEAST` steps, or a median of 0."""
    if steps.count < _STEPS_LEAST:
        return None
    seconds = np.diff(steps.edge_s)
    median = float(np.median(seconds))
    extra = seconds - median
    long = max(LONGER * median, _SPREADS * 1.4826 * float(np.median(np.abs(extra))))
    return _Lengths(extra, median, long, seconds / seconds.sum()) if median > 0 else None


def _tree(found: Mapping[FunctionKey, Activities], count: int, hz: float) -> _Tree:
    """Arrange activities as leaves of a tree of stacks, with their seconds in each of `count` steps."""
    functions = [function for function, activities in found.items() if activities.durations]
    steps, seconds, total_s = [], [], []
    for function in functions:
        spent = found[function].per_step(count)
        steps.append(np.flatnonzero(spent).astype(np.int64))
        seconds.append(spent[steps[-1]])
        total_s.append(float(spent.sum()))
    return _Tree(
        [_path(function) for function in functions],
        count,
        steps,
        seconds,
        total_s,
        runs=np.array([function.kind == "python" and not function.detail for function in functions], dtype=bool),
        waits=np.array([function.kind == "collective" for function in functions], dtype=bool),
        queued=np.array([function.kind == "sched" for function in functions], dtype=bool),
        hz=hz,
        users=users_code(zip((each.stack for each in functions), total_s, strict=True)),
    )


def _path(function: FunctionKey) -> tuple[StackFrame, ...]:
    """Return a function's frames, root first, and a last one that names the wait or operation; an
    empty one if it runs.
    """
    if function.detail == "gc":
        return (GC,)
    if function.kind == "python" and not function.detail:
        return (*function.stack, StackFrame("", "", 0))
    return (*function.stack, StackFrame(function.detail if function.kind == "python" else function.name, "", 0))


def _children(tree: _Tree, depth: int, leaves: Sequence[int]) -> list[list[int]]:
    """Group the leaves of a node at this depth (-1: above all roots) by the frame below it."""
    children: dict[StackFrame, list[int]] = {}
    for leaf in leaves:
        if len(tree.paths[leaf]) > depth + 1:
            children.setdefault(tree.paths[leaf][depth + 1], []).append(leaf)
    return list(children.values())


def _nodes(tree: _Tree, lengths: _Lengths) -> Iterator[tuple[int, list[int]]]:
    """Yield depth and leaves of each node that is a pause, the outermost ones only."""
    left = [(-1, list(range(len(tree.paths))))]
    while left:
        depth, leaves = left.pop()
        for below in _children(tree, depth, leaves):
            # an only child takes what its caller takes
            alike = depth >= 0 and len(below) == len(leaves)
            spent = np.empty(0) if alike else tree.spent_s(below)
            if alike or float(spent.max(initial=0.0)) >= LONGER * lengths.median_s:
                if not alike and _is_pause(tree, np.array(below), lengths):
                    yield depth + 1, below
                else:
                    left.append((depth + 1, below))


def _is_pause(tree: _Tree, leaves: Ints, lengths: _Lengths) -> bool:
    """Tell whether this work is a pause: in few steps only, long enough, and not by chance.

    The rules are in the module's docstring.
    """
    leaves = leaves[~tree.queued[leaves]]
    spent = tree.spent_s(leaves)
    if not len(leaves) or float(spent.max()) < LONGER * lengths.median_s:
        return False
    at = spent >= _PRESENT * spent.max()
    total = float(spent[at].sum())
    if at.sum() > _MOST_LONG * len(at) or total < (1 - _ELSEWHERE) * float(spent.sum()):
        return False
    usual = float(np.median(spent[at]))
    if usual < LONGER * lengths.median_s or float(np.median(lengths.extra_s[at])) < _HALF * usual:
        return False
    if np.mean(tree.spent_s(leaves[tree.waits[leaves]])[at] > 0) >= _HALF:
        return True
    ran_s = float(tree.spent_s(leaves[tree.runs[leaves]])[at].sum())
    if ran_s <= _HALF * total:
        return True
    count, chosen, share = len(at), int(at.sum()), float(lengths.share[at].sum())
    ways = math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)
    by_chance = ways + ran_s * tree.hz * math.log(share) + math.log(len(tree.paths))
    return by_chance <= math.log(_BY_CHANCE)


def _pause(tree: _Tree, function: StackFrame, inside: str, leaves: Sequence[int]) -> Pause:
    """Build a pause from the leaves of its work: its steps are those with at least `_PRESENT` of the most seconds."""
    spent = tree.spent_s(leaves)
    at = np.flatnonzero(spent >= _PRESENT * spent.max()).astype(np.int64)
    waits = [leaf for leaf in leaves if tree.waits[leaf]]
    return Pause(function, inside, at, spent[at], float(tree.spent_s(waits)[at].sum()))


def _more_of_the_usual(tree: _Tree, lengths: _Lengths, pauses: Sequence[Pause]) -> Pause | None:
    """Find a function that most long steps have more of, where no pause explains them; None if
    there is none.
    """
    rest = lengths.extra_s.copy()
    for pause in pauses:
        rest[pause.steps] -= pause.seconds
    at = np.flatnonzero(rest >= max(lengths.long_s, _OF_LONGEST * float(rest.max()))).astype(np.int64)
    if not _REPEATS_LEAST <= len(at) <= _MOST_LONG * len(rest):
        return None
    found: tuple[StackFrame, Floats, list[int]] | None = None
    depth, leaves = -1, [leaf for leaf in range(len(tree.paths)) if not tree.queued[leaf]]
    while leaves:
        below, spent = max(
            ((below, _above_median(tree, below, at)) for below in _children(tree, depth, leaves)),
            key=lambda item: float(item[1].sum()),
            default=([], np.zeros(len(at))),
        )
        if float(spent.sum()) < _HOLDS * float(rest[at].sum()):
            break
        depth, leaves = depth + 1, below
        frame = tree.paths[below[0]][depth]
        if frame.file and tree.users.has(frame.file):
            found = frame, spent, below
    if found is None:
        return None
    function, spent, leaves = found
    waits_s = float(_above_median(tree, [leaf for leaf in leaves if tree.waits[leaf]], at).sum())
    spent = np.maximum(spent, 0.0)
    return Pause(function, "", at, spent, min(max(waits_s, 0.0), float(spent.sum())), more=True)


def _above_median(tree: _Tree, leaves: Sequence[int], at: Ints) -> Floats:
    """Return the seconds of these leaves in the steps `at`, less their median over all steps."""
    spent = tree.spent_s(leaves)
    more: Floats = spent[at] - float(np.median(spent))
    return more


def _find_function(tree: _Tree, depth: int, leaves: Sequence[int]) -> tuple[StackFrame, str]:
    """Return the user's function of a pause, and the library function it calls there, '' if it is
    the pause itself.
    """
    path = tree.paths[leaves[0]][: depth + 1]
    if path == (GC,) or (path[-1].file and tree.users.has(path[-1].file)):
        return _decorated(tree, depth, leaves), ""
    total = sum(tree.total_s[leaf] for leaf in leaves)
    below = _heaviest(tree, leaves, lambda path: _first_of_users(tree.users, path[depth + 1 :]))
    if below is not None and below[1] >= _HALF * total:
        return below[0], ""
    above = _first_of_users(tree.users, path[-2::-1])
    what = _heaviest(tree, leaves, lambda path: next((each for each in path[depth:] if _is_named(each)), None))
    if above is not None:
        return above, what[0].name if what else ""
    return (what[0] if what else path[-1]), ""


def _decorated(tree: _Tree, depth: int, leaves: Sequence[int]) -> StackFrame:
    """Return the user's function that a decorator's `wrapper` calls by itself for nearly all of its time; else the frame."""
    frame = tree.paths[leaves[0]][depth]
    while not _is_named(frame):
        depth += 1
        inner = _heaviest(tree, leaves, _user_at(tree.users, depth))
        if inner is None or inner[1] < (1 - _ELSEWHERE) * sum(tree.total_s[leaf] for leaf in leaves):
            break
        frame = inner[0]
    return frame


def _user_at(users: UsersCode, depth: int) -> Callable[[tuple[StackFrame, ...]], StackFrame | None]:
    """Return a function that gives the frame of a path at this depth if it is the user's code; else None."""
    return lambda path: _first_of_users(users, path[depth : depth + 1])


def _first_of_users(users: UsersCode, frames: Sequence[StackFrame]) -> StackFrame | None:
    """Return the first of these frames that is the user's code; None if none is."""
    return next((frame for frame in frames if frame.file and users.has(frame.file)), None)


def _is_named(frame: StackFrame) -> bool:
    """Tell whether a frame has a meaningful name, unlike a decorator's `wrapper`."""
    return bool(frame.name) and "<locals>" not in frame.name


def _heaviest(
    tree: _Tree, leaves: Sequence[int], chosen: Callable[[tuple[StackFrame, ...]], StackFrame | None]
) -> tuple[StackFrame, float] | None:
    """Return the frame that `chosen` gives for most of the time of these leaves, and that time (s); None if none.

    `chosen`: maps the path of a leaf to a frame, or None.
    """
    seconds: dict[StackFrame, float] = {}
    for leaf in leaves:
        frame = chosen(tree.paths[leaf])
        if frame is not None:
            seconds[frame] = seconds.get(frame, 0.0) + tree.total_s[leaf]
    return max(seconds.items(), key=lambda item: item[1], default=None)
