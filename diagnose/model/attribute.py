"""Which function explains a rank's excess?

Seconds per step by function, this rank against the median of its peers:

excess(f) = t(f, rank) - median over peers p of t(f, p)         t: seconds per step on the training thread

For Python, a function is sought in the stacks, because the time may be spread over the helpers that the culprit calls:
incl(g, r) = seconds per step in which frame g is anywhere on the stack of rank r, and the same difference of it,
share(g) = excess(g) / incl(g).

d  the deepest frame that holds 70 % of the whole Python excess
u  the function that is named: the lowest frame of the user's code (users_code.py) at d or above it that holds as much.
   What lies between u and d is detail: the leaf in which the time goes.
c  named in place of u where u is a helper that is as fast as the peers' under other functions of the user's: u's nearest caller of
   the user's, if it holds as much and 80 % of its time is excess. A training loop is not blamed for what its helper does.

The seconds told are those of the named function if its share is at least half of d's, else those of d. Every part of the step grew
alike, and nobody is named, where neither that function nor d has a share far above the whole step's: what a named function does besides,
as on its peers, does not acquit it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.fleet.labels import GilHolder, distinct_rows
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.stats.integers import distinct
from rankscope.diagnose.stats.robust import nan_median
from rankscope.diagnose.verdict.function import Function
from rankscope.observer.window.stacks import StackFrame
from rankscope.observer.window.users_code import UsersCode, users_code
from rankscope.probes.arrays import Bools, Floats, Ints

WAITING = ("collective",)  # kinds in which a rank waits for others: never its own work
TRANSFER = "transfer"  # detail of a collective that is known to contain no waiting: own time after all


@dataclass(frozen=True, slots=True)
class FunctionExcess:
    """Seconds per step of one function (not split by stack) on the rank and on its peers."""

    kind: str
    name: str
    file: str
    line: int
    detail: str
    caller: str
    own_s: float
    peers_s: float
    holder: GilHolder | None = None  # who held the GIL, where that is what was waited for

    @property
    def excess_s(self) -> float:
        return self.own_s - self.peers_s


@dataclass(frozen=True, slots=True)
class Located:
    """Where in the code an excess sits. `leaf`: the function below it, a library's or a helper, if that is where the time goes."""

    function: Function
    excess_s: float
    own_s: float
    peers_s: float
    spread: bool  # every part of the step grew alike: no function is odd
    leaf: Function | None
    callers: tuple[str, ...] = ()  # the user's functions that call it, outermost first: the nearest ones
    of_leaf: bool = False  # the seconds are the leaf's alone: the function spends more, which its peers do, too

    @property
    def share(self) -> float:
        """Which part of the function's inclusive time is excess."""
        return self.excess_s / self.own_s if self.own_s > 0 else 0.0

    @property
    def shared(self) -> bool:
        """The peers spend time in it as well: a quarter of the rank's at least."""
        return self.peers_s >= limits.LARGE_SHARE * self.own_s


@dataclass(frozen=True, slots=True)
class _ByFrame:
    """One entry per frame, seconds per step: inclusive (`own`, `expected` of the peers, `over` these) and as leaf; depth, 0 the root."""

    frames: Ints
    own: Floats
    expected: Floats
    over: Floats
    leaf_over: Floats
    depth: Floats  # mean, weighted by the rank's time


@dataclass(frozen=True, slots=True)
class _ByFunction:
    """One entry per function, by rising key: its first row of the table, and seconds per step."""

    keys: Ints
    first: Ints
    seconds: Floats


class Profiles:
    """Seconds per step by function and by frame, for any ranks of one fleet. Built once, queried per suspect."""

    def __init__(self, fleet: Fleet) -> None:
        table = fleet.patterns
        self._table = table
        self._ranks = len(fleet.ranks)
        self._steps = fleet.steps
        # Rows in the order of ranks: a suspect and its peers are a small part of a large fleet.
        self._order = np.argsort(table.rank, kind="stable")
        self._edges = np.searchsorted(table.rank[self._order], np.arange(len(fleet.ranks) + 1))
        python = table.kind.code("python")
        caller = np.where(table.kind.codes == python, -1, table.caller.codes)
        columns = (table.thread.codes, table.kind.codes, table.name.codes, table.file.codes, table.line,
                   table.detail.codes, caller)  # fmt: skip
        self._key = distinct_rows(columns)
        self._frames: list[StackFrame] = []
        self._frame_code: dict[StackFrame, int] = {}
        self._paths: dict[int, list[int]] = {}
        self._users_of: dict[int, UsersCode] = {}
        self._last_asked: tuple[Ints, Ints] | None = (
            None  # ranks and their rows: of a suspect the same ones are wanted several times
        )
        self._last_peers: tuple[Ints, dict[str, Any]] | None = None
        # A row without a stack (the observer drops the stacks of small functions) is a stack of its leaf alone.
        self._stack = np.where(table.stack.codes < 0, len(table.stack.parent) + self._key, table.stack.codes)
        self._row_of_key = np.zeros(int(self._key.max(initial=-1)) + 1, dtype=np.int64)
        self._row_of_key[self._key] = np.arange(len(table))

    def __len__(self) -> int:
        return len(self._table)

    def functions(self, rank: int, peers: Ints, thread: str = "training") -> tuple[FunctionExcess, ...]:
        """Every function of the rank's own work or of its peers', largest excess first."""
        theirs, mine = self._usual(sample(peers), thread), self._by_function(np.array([rank]), thread)
        keys = np.union1d(theirs.keys, mine.keys)
        ours, of_peers = np.searchsorted(keys, mine.keys), np.searchsorted(keys, theirs.keys)
        own, expected = np.zeros(len(keys)), np.zeros(len(keys))
        own[ours], expected[of_peers] = mine.seconds, theirs.seconds
        first = np.full(len(keys), len(self._table), dtype=np.int64)
        first[of_peers] = theirs.first
        first[ours] = np.minimum(first[ours], mine.first)
        order = np.argsort(-(own - expected), kind="stable")
        return tuple(self._describe(int(first[k]), float(own[k]), float(expected[k])) for k in order)

    def usual_steps(self, name: str, peers: Ints) -> Floats:
        """The median over peers of a matrix of the steps, by step; remembered as long as they are the same ones."""
        peers = sample(peers)
        known, key = self._beside(peers), f"steps {name}"
        if key not in known:
            known[key] = nan_median(getattr(self._steps, name)[peers], 0)
        found: Floats = known[key]
        return found

    def in_kernel(self, rank: int, name: str) -> float:
        """The share of the running time of the rank's Python functions of this name that was mostly spent in the kernel."""
        table = self._table
        if table.native is None:
            return 0.0
        rows = self._rows(np.array([rank]))
        mine = rows[
            (table.name.codes[rows] == table.name.code(name)) & (table.kind.codes[rows] == table.kind.code("python"))
        ]
        kernel = table.native.codes[mine] == table.native.code("kernel")
        seconds = table.per_step_s[mine]
        return float(seconds[kernel].sum() / max(seconds.sum(), 1e-12))

    def native_in(self, rank: int, name: str) -> str:
        """The native function in which half of the running time of the rank's Python functions of this name is spent, if there is one."""
        table = self._table
        if table.native is None:
            return ""
        rows = self._rows(np.array([rank]))
        running = table.kind.codes[rows] == table.kind.code("python")
        running &= (table.name.codes[rows] == table.name.code(name)) & (
            table.detail.codes[rows] == table.detail.code("")
        )
        mine = rows[running]
        seconds = np.bincount(table.native.codes[mine], weights=table.per_step_s[mine], minlength=1)
        if seconds.sum() <= 0 or seconds.max() < 0.5 * seconds.sum():
            return ""
        return table.native.values[int(np.argmax(seconds))]

    def locate(
        self, rank: int, peers: Ints, kinds: Iterable[str], whole_share: float, thread: str = "training",
        details: Iterable[str] | None = None,
    ) -> Located | None:  # fmt: skip
        """The frame that explains the rank's excess in functions of these kinds; None if there is no excess in them.

        `whole_share`: which part of the rank's own time is excess, all kinds together.
        """
        table = self._table
        codes = [table.kind.code(kind) for kind in kinds]
        detail = None if details is None else [table.detail.code(each) for each in details]

        def those(ranks: Ints) -> tuple[Ints, Floats]:
            rows = self._rows(ranks)
            mask = np.isin(table.kind.codes[rows], codes) & (table.thread.codes[rows] == table.thread.code(thread))
            if detail is not None:
                mask &= np.isin(table.detail.codes[rows], detail)
            rows = rows[mask]
            return rows, self._sum(rows, np.zeros(len(rows), dtype=np.int64), 1, ranks)[:, 0]

        mine, spent = those(np.array([rank]))
        if len(mine) == 0:
            return None
        peers = sample(peers)
        known, key = self._beside(peers), f"{codes} {thread} {detail}"
        if key not in known:
            known[key] = those(peers)
        theirs, total = known[key]
        excess = float(spent[0] - (np.median(total) if len(peers) else 0.0))
        if excess <= 0:
            return None
        rows, ranks = np.sort(np.concatenate((theirs, mine)), kind="stable"), np.append(rank, peers)
        by_frame = self._by_frame(rows, ranks)
        found = self._deepest(by_frame, mine, rows, ranks, excess, whole_share, limits.MOST)
        if found is not None and found.spread:
            # Sampling noise of other functions may hide the odd one: it then holds a little less.
            closer = self._deepest(by_frame, mine, rows, ranks, excess, whole_share, limits.HOLDS_LEAST)
            found = found if closer is None or closer.spread else closer
        return found

    # ---- inside ----------------------------------------------------------------------------------------------

    def _beside(self, peers: Ints) -> dict[str, Any]:
        """What is known of these peers: several suspects, asked one after the other, have the same ones."""
        if self._last_peers is None or not np.array_equal(self._last_peers[0], peers):
            self._last_peers = peers.copy(), {}
        return self._last_peers[1]

    def _usual(self, peers: Ints, thread: str) -> _ByFunction:
        """Of the peers the median."""
        known, key = self._beside(peers), f"functions {thread}"
        if key not in known:
            known[key] = self._by_function(peers, thread)
        found: _ByFunction = known[key]
        return found

    def _by_function(self, ranks: Ints, thread: str) -> _ByFunction:
        """Own work of these ranks by function, of several ranks the median."""
        rows = self._rows(ranks)
        rows = rows[self._own_work(rows, thread)]
        keys, place = distinct(self._key[rows])
        first = np.empty(len(keys), dtype=np.int64)
        first[place[::-1]] = rows[::-1]  # of several the last one written stays
        seconds = self._sum(rows, place, len(keys), ranks)
        return _ByFunction(keys, first, nan_median(seconds, 0) if len(keys) else np.empty(0))

    def _rows(self, ranks: Ints) -> Ints:
        """Rows of these ranks, in the order of the table."""
        if len(ranks) == 1:  # few: they lie there in order
            return self._order[self._edges[ranks[0]] : self._edges[ranks[0] + 1]]
        if self._last_asked is not None and np.array_equal(self._last_asked[0], ranks):
            return self._last_asked[1]
        start, count = self._edges[ranks], self._edges[ranks + 1] - self._edges[ranks]
        inside = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        rows: Ints = np.sort(self._order[np.repeat(start, count) + inside], kind="stable")  # nearly in order already
        rows.flags.writeable = False
        self._last_asked = ranks.copy(), rows
        return rows

    def _own_work(self, rows: Ints, thread: str) -> Bools:
        table = self._table
        waiting = np.isin(table.kind.codes[rows], [table.kind.code(kind) for kind in WAITING])
        if (transfer := table.detail.code(TRANSFER)) >= 0:
            waiting &= table.detail.codes[rows] != transfer
        mask: Bools = (table.thread.codes[rows] == table.thread.code(thread)) & ~waiting
        return mask

    def _sum(self, rows: Ints, column: Ints, width: int, ranks: Ints) -> Floats:
        """Sum per_step_s of `rows` into a matrix of `ranks` x `width` columns."""
        place = np.full(self._ranks, -1, dtype=np.int64)
        place[ranks] = np.arange(len(ranks))
        where = place[self._table.rank[rows]] * width + column
        total = np.bincount(where, weights=self._table.per_step_s[rows], minlength=len(ranks) * width)
        return np.asarray(total, dtype=np.float64).reshape(len(ranks), width)

    def _describe(self, row: int, own_s: float, peers_s: float) -> FunctionExcess:
        table = self._table
        kind = table.kind.at(row)
        caller = "" if kind == "python" else table.caller.at(row)
        return FunctionExcess(kind, table.name.at(row), table.file.at(row), int(table.line[row]), table.detail.at(row),
                              caller, own_s, peers_s, table.holder.at(row) if table.holder is not None else None)  # fmt: skip

    def _frames_of(self, stack: int) -> list[int]:
        """Frame codes of a stack, root first, each once (recursion)."""
        known = self._paths.get(stack)
        if known is None:
            known = []
            for frame in self._stack_of(stack):
                code = self._frame_code.setdefault(frame, len(self._frames))
                if code == len(self._frames):
                    self._frames.append(frame)
                if code not in known:
                    known.append(code)
            self._paths[stack] = known
        return known

    def _stack_of(self, stack: int) -> list[StackFrame]:
        table = self._table
        if stack < len(table.stack.parent):
            return table.stack.of(stack)
        row = int(self._row_of_key[stack - len(table.stack.parent)])
        name = table.name.at(row) if table.kind.at(row) == "python" else table.caller.at(row)
        return [StackFrame(name, table.file.at(row), int(table.line[row]))] if name and table.file.at(row) else []

    def _deepest(
        self,
        found: _ByFrame | None,
        mine: Ints,
        rows: Ints,
        ranks: Ints,
        excess: float,
        whole_share: float,
        part: float,
    ) -> Located | None:
        holding = np.flatnonzero(found.over >= part * excess) if found is not None else ()
        if found is None or len(holding) == 0:
            return self._by_leaf(mine, rows, ranks, excess)
        # The deepest; of two that are equally deep the one with more excess.
        deepest = int(holding[np.argmax(found.depth[holding] + 1e-6 * found.over[holding] / excess)])
        share = np.divide(found.over, found.own, out=np.zeros(len(found.own)), where=found.own > 0)
        users = self._users(int(ranks[0]))
        path = [deepest, *self._callers(deepest, found.frames, mine)]
        of_user = [each for each in path if users.has(self._frames[int(found.frames[each])].file)]
        enough = [each for each in of_user if found.over[each] >= part * excess]
        named = next(iter(enough or of_user), deepest)
        if named in enough and (caller := self._tool_of(found, named, enough, share, rows, ranks, users)) is not None:
            named = caller

        def odd(index: int) -> bool:
            return bool(share[index] >= limits.CONCENTRATED * whole_share or share[index] >= limits.NEARLY_ALL)

        told = named if share[named] >= 0.5 * share[deepest] else deepest
        alone = bool(found.leaf_over[told] >= 0.5 * found.over[told]) and told in of_user
        calling = (
            [self._frames[int(found.frames[each])].name for each in of_user[of_user.index(named) + 1 :]]
            if of_user
            else []
        )
        return Located(
            self._function(int(found.frames[named])), float(found.over[told]), float(found.own[told]),
            float(found.expected[told]), not (odd(told) or odd(deepest) or alone),
            None if named == deepest else self._function(int(found.frames[deepest])),
            tuple(reversed([name for name in calling if name != "<module>"][: budgets.TOLD - 1])), told != named,
        )  # fmt: skip

    def _users(self, rank: int) -> UsersCode:
        """What on the stacks of a rank is the user's."""
        if rank not in self._users_of:
            rows = self._rows(np.array([rank]))
            self._users_of[rank] = users_code(
                (self._stack_of(int(self._stack[row])), float(self._table.per_step_s[row])) for row in rows
            )
        return self._users_of[rank]

    def _tool_of(
        self, found: _ByFrame, helper: int, path: list[int], share: Floats, rows: Ints, ranks: Ints, users: UsersCode
    ) -> int | None:
        """The nearest caller (of `path`, nearest first) whose excess it is that lies in a helper; None where it is the helper's own.

        other(r) = seconds of the helper under other functions of the user's. It is the caller's if the caller has share >= 0.8, the
        peers have other > 0, and (other(rank) - other(peers)) / other(rank) is less than half of share(helper).
        """
        caller = next(iter(path[path.index(helper) + 1 :]), None)
        if caller is None or share[caller] < limits.NEARLY_ALL:
            return None
        wanted, ours = int(found.frames[helper]), int(found.frames[caller])
        stacks, inverse = distinct(self._stack[rows])
        under = np.array([self._calls_beside(int(stack), wanted, ours, users) for stack in stacks])[inverse]
        other = self._sum(rows[under], np.zeros(int(under.sum()), dtype=np.int64), 1, ranks)[:, 0]
        peers = float(np.median(other[1:])) if len(other) > 1 else 0.0
        slow_there = other[0] - peers >= 0.5 * share[helper] * other[0]
        return caller if peers > 0 and not (slow_there and other[0] > 0) else None

    def _calls_beside(self, stack: int, helper: int, caller: int, users: UsersCode) -> bool:
        """Whether another function of the user's than `caller` calls the helper on this stack."""
        path = self._frames_of(stack)
        if helper not in path:
            return False
        above = path[: path.index(helper)]
        return next((each for each in reversed(above) if users.has(self._frames[each].file)), -1) not in (caller, -1)

    def _by_frame(self, rows: Ints, ranks: Ints) -> _ByFrame | None:
        """Seconds per step in every frame of these rows, on the first of the ranks against the others; None without stacks."""
        stacks, inverse = distinct(self._stack[rows])
        paths = [self._frames_of(int(stack)) for stack in stacks]
        length = np.array([len(path) for path in paths], dtype=np.int64)
        if length.sum() == 0:
            return None
        frames, local = np.unique([frame for path in paths for frame in path], return_inverse=True)
        # Seconds by rank and stack, and of each frame those of the stacks that it is on; the leaf's once more for itself.
        spent = self._sum(rows, inverse, len(stacks), ranks)
        stack = np.repeat(np.arange(len(stacks)), length)
        by_frame = np.argsort(local, kind="stable")
        inclusive = np.add.reduceat(
            spent[:, stack[by_frame]], np.searchsorted(local[by_frame], np.arange(len(frames))), axis=1
        )
        ends = np.cumsum(length)
        leaf = np.zeros_like(inclusive)
        for number in np.flatnonzero(length):
            leaf[:, local[ends[number] - 1]] += spent[:, number]
        expected, leaf_expected = (
            nan_median(seconds[1:], 0) if len(ranks) > 1 else np.zeros(len(frames)) for seconds in (inclusive, leaf)
        )
        # How deep a frame lies, 0 the root, on the stacks of the first of the ranks, by what it spends there.
        weight = np.where(
            np.isin(np.arange(len(stacks)), inverse[self._table.rank[rows] == ranks[0]]), spent[0] + 1e-12, 0.0
        )
        depth = np.arange(len(local)) - np.repeat(ends - length, length)
        total = np.bincount(local, weights=weight[stack], minlength=len(frames))
        deep = np.bincount(local, weights=weight[stack] * depth, minlength=len(frames))
        mean_depth = np.divide(deep, total, out=np.zeros(len(frames)), where=total > 0)
        return _ByFrame(frames, inclusive[0], expected, inclusive[0] - expected, leaf[0] - leaf_expected, mean_depth)

    def excess_through(self, rank: int, peers: Ints, kind: str, function: Function) -> float:
        """Seconds per step of the rank, above its peers' median, in functions of this kind with this function on their stacks."""
        table, peers = self._table, sample(peers)
        rows = self._rows(np.append(peers, rank))
        rows = rows[
            (table.kind.codes[rows] == table.kind.code(kind))
            & (table.thread.codes[rows] == table.thread.code("training"))
        ]
        found = self._by_frame(rows, np.append(rank, peers)) if len(rows) else None
        if found is None:
            return 0.0
        wanted = (function.name, function.file)
        same = [i for i, code in enumerate(found.frames) if self._frames[int(code)][:2] == wanted]
        return float(found.over[same].sum())

    def queue_per_second(self, ranks: Ints) -> float:
        """How long these ranks stand in the queue for each second that they compute, median."""
        table, ranks = self._table, sample(ranks)
        rows = self._rows(ranks)
        rows = rows[table.thread.codes[rows] == table.thread.code("training")]
        waits = rows[table.kind.codes[rows] == table.kind.code("sched")]
        runs = rows[
            (table.kind.codes[rows] == table.kind.code("python")) & (table.detail.codes[rows] == table.detail.code(""))
        ]
        one = np.zeros(len(rows), dtype=np.int64)
        queue, run = (self._sum(part, one[: len(part)], 1, ranks)[:, 0] for part in (waits, runs))
        return float(np.median(queue / np.maximum(run, 1e-9))) if len(ranks) else 0.0

    def seconds_through(self, rank: int, kind: str, files: Iterable[str], thread: str = "training") -> float:
        """Seconds per step of the rank in functions of this kind with a frame of these files anywhere on their stack."""
        table, marks = self._table, tuple(files)
        mask = (table.kind.codes == table.kind.code(kind)) & (table.thread.codes == table.thread.code(thread))
        total = 0.0
        for row in np.flatnonzero(mask & (table.rank == rank)):
            if any(mark in file for _, file, _ in self._stack_of(int(self._stack[row])) for mark in marks):
                total += float(table.per_step_s[row])
        return total

    def _callers(self, chosen: int, frames: Ints, mine: Ints) -> list[int]:
        """Indices into `frames` of the frames above `chosen`, nearest first, on the rank's longest stack through it."""
        code = int(frames[chosen])
        best: list[int] = []
        longest = -1.0
        for row in mine[np.argsort(-self._table.per_step_s[mine])][:200]:
            path = self._frames_of(int(self._stack[row]))
            if code in path and float(self._table.per_step_s[row]) > longest:
                longest = float(self._table.per_step_s[row])
                best = path[: path.index(code)]
        return [int(np.searchsorted(frames, frame)) for frame in reversed(best)]

    def _function(self, frame: int) -> Function:
        name, file, line = self._frames[frame]
        return Function("python", name, file, line)

    def _by_leaf(self, mine: Ints, rows: Ints, ranks: Ints, excess: float) -> Located | None:
        """Without stacks: the leaf with most excess."""
        keys, inverse = distinct(self._key[rows])
        seconds = self._sum(rows, inverse, len(keys), ranks)
        expected = nan_median(seconds[1:], 0) if len(ranks) > 1 else np.zeros(len(keys))
        over = seconds[0] - expected
        best = int(np.argmax(over))
        row = int(rows[np.flatnonzero(inverse == best)[0]])
        table = self._table
        leaf = Function(table.kind.at(row), table.name.at(row), table.file.at(row), int(table.line[row]))
        return Located(leaf, float(over[best]), float(seconds[0, best]), float(expected[best]),
                       bool(over[best] < 0.5 * excess), None)  # fmt: skip


def sample(peers: Ints) -> Ints:
    """At most limits.PEERS_SAMPLED of them, evenly spread: a median needs no more."""
    if len(peers) <= limits.PEERS_SAMPLED:
        return peers
    return peers[np.linspace(0, len(peers) - 1, limits.PEERS_SAMPLED).astype(np.int64)]
