"""Find the function that explains a rank's excess, in the stacks.

The time may be spread over helpers that the slow function calls, so all frames of a stack count:

incl(g, r) = seconds per step in which frame g is anywhere on the stack of rank r (as in
             functions.py)
excess(g)  = incl(g, rank) - median over peers p of incl(g, p)
share(g)   = excess(g) / incl(g, rank)

d  the deepest frame with 70 % of the whole Python excess
u  the function that is named: the lowest frame of the user's code (users_code.py), at d or above
   it, with as much. What lies between u and d is detail: the leaf that takes the time.
c  named instead of u where u is a helper that is as fast as the peers' under the user's other
   functions: u's nearest caller in the user's code, if it has as much excess and 80 % of its time
   is excess. So a training loop is not named for what its helper does.

The reported seconds are those of the named function if its share is at least half of d's, else
those of d. Where neither has a share far above the whole step's, every part of the step grew alike
and no function is named. What a named function does besides, as on the peers, is no evidence
against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.evidence.known_code import OF_MEMORY
from rankscope.diagnose.infer.model.functions import Functions, sample
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.integers import distinct, one_of
from rankscope.diagnose.stats.robust import median, nan_median
from rankscope.observer.window.stacks import LEFT_OUT, StackFrame
from rankscope.observer.window.users_code import UsersCode, users_code
from rankscope.probes.base.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Located:
    """The location of an excess in the code: a function, with seconds per step.

    `leaf`: the function below it, of a library or a helper, if that takes the time.
    """

    function: Function
    excess_s: float
    own_s: float
    peers_s: float
    spread: bool  # every part of the step grew alike: no function is odd
    leaf: Function | None
    callers: tuple[str, ...] = ()  # nearest of the user's functions that call it, outermost first
    of_leaf: bool = False  # the seconds are the leaf's alone: the function takes more, as on the peers

    @property
    def deepest(self) -> Function:
        """The leaf, or the function itself if there is no leaf."""
        return self.leaf or self.function

    @property
    def share(self) -> float:
        """Share of the function's inclusive time that is excess."""
        return self.excess_s / self.own_s if self.own_s > 0 else 0.0

    @property
    def shared(self) -> bool:
        """Whether the peers spend at least a quarter of the rank's time in the function."""
        return self.peers_s >= limits.LARGE_SHARE * self.own_s


@dataclass(frozen=True, slots=True)
class _ByFrame:
    """Seconds per step by frame of a rank: with all that it calls, expected from the peers, the excess.

    `own`, `expected`, `over` = own - expected: frame anywhere on the stack; `leaf_over`: the excess
    with the frame as leaf; depth 0 is the root.
    """

    frames: Ints
    own: Floats
    expected: Floats
    over: Floats
    leaf_over: Floats
    depth: Floats  # mean, weighted by the rank's time


@dataclass(frozen=True, slots=True)
class _Frames:
    """Seconds per step, ranks x frames, inclusive and as leaf; frame codes ascend.

    `depth`: mean depth of each frame on the first rank.
    """

    frames: Ints
    inclusive: Floats
    leaf: Floats
    depth: Floats


class Profiles(Functions):
    """Seconds per step by function and by frame, for any ranks of a fleet; built once."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        table = self._table
        self._frames: list[StackFrame] = []
        self._frame_code: dict[StackFrame, int] = {}
        self._paths: dict[int, list[int]] = {}
        self._users_of: dict[int, UsersCode] = {}
        # A row without a stack (the observer drops stacks of small functions) counts as its leaf alone.
        self._stack = np.where(table.stack.codes < 0, len(table.stack.parent) + self._key, table.stack.codes)
        self._row_of_key = np.zeros(int(self._key.max(initial=-1)) + 1, dtype=np.int64)
        self._row_of_key[self._key] = np.arange(len(table))

    def locate(
        self, rank: int, peers: Ints, kinds: Iterable[str], whole_share: float, thread: str = "training",
        details: Iterable[str] | None = None, sampled: bool = False,
    ) -> Located | None:  # fmt: skip
        """Return the function that explains a rank's excess in functions of these kinds; None without an excess.

        `peers`: rows to compare with. `whole_share`: share of the rank's own time that is excess,
        all kinds together. `thread`, `details`: restrict the patterns. `sampled`: only patterns
        with a stack.
        """
        table = self._table
        codes = [table.kind.code(kind) for kind in kinds]
        detail = None if details is None else [table.detail.code(each) for each in details]

        def those(ranks: Ints) -> tuple[Ints, Floats]:
            """Select the patterns of these ranks; return their rows, and their seconds per step by rank."""
            rows = self._rows(ranks)
            mask = one_of(table.kind.codes[rows], codes) & self._own_work(rows, thread)
            if detail is not None:
                mask &= one_of(table.detail.codes[rows], detail)
            if sampled:
                mask &= table.stack.codes[rows] >= 0
            rows = rows[mask]
            return rows, self._sum(rows, np.zeros(len(rows), dtype=np.int64), 1, ranks)[:, 0]

        mine, spent = those(np.array([rank]))
        if len(mine) == 0:
            return None
        peers = sample(peers)
        known, key = self._beside(peers), f"{codes} {thread} {detail} {sampled}"
        if key not in known:
            known[key] = those(peers)
        theirs, total = known[key]
        excess = float(spent[0] - (median(total) if len(peers) else 0.0))
        if excess <= 0:
            return None
        by_frame = self._by_frame(mine, rank, self._usual_frames(theirs, peers, key))

        def together() -> tuple[Ints, Ints]:
            """Pattern rows of the rank and its peers, sorted, and the ranks: the rank itself first."""
            others = theirs[table.rank[theirs] != rank]
            return np.sort(np.concatenate((others, mine)), kind="stable"), np.append(rank, peers[peers != rank])

        found = self._deepest(by_frame, mine, together, rank, excess, whole_share, limits.MOST)
        if found is not None and (found.spread or found.function.kind != "python"):
            # Sampling noise of other functions may hide the odd one, and short waits have no stack:
            # try a lower share.
            closer = self._deepest(by_frame, mine, together, rank, excess, whole_share, limits.HOLDS_LEAST)
            found = found if closer is None or closer.spread or closer.function.kind != "python" else closer
        return found

    def excess_through(self, rank: int, peers: Ints, kind: str, function: Function) -> float:
        """Excess over the peers' median, seconds per step, in a kind with this function on the stack.

        0 where neither has a stack.
        """
        table, peers = self._table, sample(peers)

        def those(ranks: Ints) -> Ints:
            """Pattern rows of these ranks that are of the kind, on training threads."""
            rows = self._rows(ranks)
            of_kind = table.kind.codes[rows] == table.kind.code(kind)
            found: Ints = rows[of_kind & (table.thread.codes[rows] == table.thread.code("training"))]
            return found

        known, key = self._beside(peers), f"through {kind}"
        if key not in known:
            known[key] = those(peers)
        found = self._by_frame(those(np.array([rank])), rank, self._usual_frames(known[key], peers, key))
        if found is None:
            return 0.0
        wanted = (function.name, function.file)
        same = [i for i, code in enumerate(found.frames) if self._frames[int(code)][:2] == wanted]
        return float(found.over[same].sum())

    def seconds_through(self, rank: int, kind: str, files: Iterable[str], thread: str = "training") -> float:
        """Sum the rank's seconds per step in functions of `kind` called through these files.

        Of stacks with a frame whose path contains one of `files` (parts of paths).
        """
        table, marks = self._table, tuple(files)
        rows, total = self._rows(np.array([rank])), 0.0
        for row in rows[(table.kind.codes[rows] == table.kind.code(kind)) & self._own_work(rows, thread)]:
            if any(mark in file for _, file, _ in self._stack_of(int(self._stack[row])) for mark in marks):
                total += float(table.per_step_s[row])
        return total

    def in_kernel(self, rank: int, function: Function) -> float:
        """Share (0..1) of a rank's Python time in a function and below in which the kernel gives it memory.

        In older windows, which do not say what the kernel does: in which it is mostly in the
        kernel. 0 if unknown.
        """
        table, rows = self._table, self._rows(np.array([rank]))
        if table.native is None:
            return 0.0
        rows = rows[table.kind.codes[rows] == table.kind.code("python")]
        wanted, leaf = (function.name, function.file), table.name.codes[rows] == table.name.code(function.name)
        stacks, inverse = distinct(self._stack[rows])
        below = np.array([any(each[:2] == wanted for each in self._stack_of(int(stack))) for stack in stacks])
        rows = rows[leaf | below[inverse]] if len(rows) else rows
        seconds = table.per_step_s[rows]
        part = (table.native.codes[rows] == table.native.code("kernel")).astype(np.float64)
        if table.kernel_share is not None and table.kernel_for is not None:
            share = table.kernel_share[rows]
            part = np.where(np.isfinite(share), share * table.kernel_for.among(rows, OF_MEMORY), part)
        return float((seconds * part).sum() / max(seconds.sum(), 1e-12))

    # ---- inside ----------------------------------------------------------------------------------------------

    def _frames_of(self, stack: int) -> list[int]:
        """Frame codes of a stack, root first, each once, without the mark of omitted frames."""
        known = self._paths.get(stack)
        if known is None:
            known = []
            for frame in self._stack_of(stack):
                code = self._frame_code.setdefault(frame, len(self._frames))
                if code == len(self._frames):
                    self._frames.append(frame)
                if code not in known and frame != LEFT_OUT:
                    known.append(code)
            self._paths[stack] = known
        return known

    def _stack_of(self, stack: int) -> list[StackFrame]:
        """Frames of a stack, root first; for a pattern without a stack its function or caller alone, if known.

        `stack`: a tree node, or from the number of nodes on, number of nodes + key of the pattern.
        """
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
        together: Callable[[], tuple[Ints, Ints]],
        rank: int,
        excess: float,
        whole_share: float,
        part: float,
    ) -> Located | None:
        """Locate the excess at the deepest frame with `part` of it, and name a user's function there.

        By leaf where no frame has so much. `found`: seconds by frame; `mine`: the rank's pattern
        rows; `together()`: pattern rows of rank and peers, and these ranks, the rank first;
        `excess`: seconds per step; `whole_share`: share of the rank's own time that is excess.
        """
        holding = np.flatnonzero(found.over >= part * excess) if found is not None else ()
        if found is None or len(holding) == 0:
            return self._by_leaf(*together(), excess)
        # The deepest; of two equally deep frames the one with more excess.
        deepest = int(holding[np.argmax(found.depth[holding] + 1e-6 * found.over[holding] / excess)])
        share = np.divide(found.over, found.own, out=np.zeros(len(found.own)), where=found.own > 0)
        users = self._users(rank)
        path = [deepest, *self._callers(deepest, found.frames, mine)]
        of_user = [each for each in path if users.has(self._frames[int(found.frames[each])].file)]
        enough = [each for each in of_user if found.over[each] >= part * excess]
        named = next(iter(enough or of_user), deepest)
        if named in enough and (caller := self._tool_of(found, named, enough, share, together, users)) is not None:
            named = caller

        def odd(index: int) -> bool:
            """Whether nearly all of the frame's time is excess, or twice the share that the whole step has."""
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
        """Return which files on a rank's stacks are the user's code."""
        if rank not in self._users_of:
            rows = self._rows(np.array([rank]))
            self._users_of[rank] = users_code(
                (self._stack_of(int(self._stack[row])), float(self._table.per_step_s[row])) for row in rows
            )
        return self._users_of[rank]

    def _tool_of(
        self,
        found: _ByFrame,
        helper: int,
        path: list[int],
        share: Floats,
        together: Callable[[], tuple[Ints, Ints]],
        users: UsersCode,
    ) -> int | None:
        """Return the nearest caller (index) that owns the excess in a helper; None if the helper itself is slow.

        other(r) = seconds of the helper under other functions of the user's. The excess is the
                   caller's if the caller has share >= 0.8, the peers have other > 0, and
                   (other(rank) - other(peers)) / other(rank) is less than half of share(helper).
                   `path`: candidates, nearest first.
        """
        caller = next(iter(path[path.index(helper) + 1 :]), None)
        if caller is None or share[caller] < limits.NEARLY_ALL:
            return None
        wanted, ours = int(found.frames[helper]), int(found.frames[caller])
        rows, ranks = together()
        stacks, inverse = distinct(self._stack[rows])
        under = np.array([self._calls_beside(int(stack), wanted, ours, users) for stack in stacks])[inverse]
        other = self._sum(rows[under], np.zeros(int(under.sum()), dtype=np.int64), 1, ranks)[:, 0]
        peers = median(other[1:]) if len(other) > 1 else 0.0
        slow_there = other[0] - peers >= 0.5 * share[helper] * other[0]
        return caller if peers > 0 and not (slow_there and other[0] > 0) else None

    def _calls_beside(self, stack: int, helper: int, caller: int, users: UsersCode) -> bool:
        """Whether a function of the user's other than `caller` calls the helper on this stack."""
        path = self._frames_of(stack)
        if helper not in path:
            return False
        above = path[: path.index(helper)]
        return next((each for each in reversed(above) if users.has(self._frames[each].file)), -1) not in (caller, -1)

    def _by_frame(self, mine: Ints, rank: int, usual: _Frames) -> _ByFrame | None:
        """Seconds per step by frame of these pattern rows of a rank, with its peers'; None without stacks.

        `mine`: rows of the rank; `usual`: the peers' medians.
        """
        own = self._spent(mine, np.array([rank]))
        frames = np.union1d(own.frames, usual.frames)
        if not len(frames):
            return None

        def placed(of: _Frames, values: Floats) -> Floats:
            """Put values by frame of one side into the order of all frames; 0 for others."""
            found = np.zeros(len(frames))
            found[np.searchsorted(frames, of.frames)] = values
            return found

        inclusive, expected = placed(own, own.inclusive[0]), placed(usual, usual.inclusive[0])
        leaf_over = placed(own, own.leaf[0]) - placed(usual, usual.leaf[0])
        return _ByFrame(frames, inclusive, expected, inclusive - expected, leaf_over, placed(own, own.depth))

    def _usual_frames(self, rows: Ints, peers: Ints, key: str) -> _Frames:
        """Median over these peers of their seconds by frame; cached until the peers change.

        `rows`: their pattern rows; `key`: names this selection of rows in the cache.
        """
        known, key = self._beside(peers), f"frames {key}"
        if key not in known:
            spent = self._spent(rows, peers)
            inclusive, leaf = (nan_median(each, 0)[None] for each in (spent.inclusive, spent.leaf))
            known[key] = replace(spent, inclusive=inclusive, leaf=leaf)
        found: _Frames = known[key]
        return found

    def _spent(self, rows: Ints, ranks: Ints) -> _Frames:
        """Seconds per step by rank and frame of these pattern rows."""
        stacks, inverse = distinct(self._stack[rows])
        paths = [self._frames_of(int(stack)) for stack in stacks]
        length = np.array([len(path) for path in paths], dtype=np.int64)
        if length.sum() == 0 or not len(ranks):
            none = np.zeros((len(ranks), 0))
            return _Frames(np.empty(0, dtype=np.int64), none, none, np.zeros(0))
        frames, local = np.unique([frame for path in paths for frame in path], return_inverse=True)
        # Seconds by rank and stack; each frame sums the stacks that contain it; leaves are summed
        # once more.
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
        # Depth of each frame, 0 the root, weighted by the first rank's time.
        weight = spent[0] + 1e-12
        depth = np.arange(len(local)) - np.repeat(ends - length, length)
        total = np.bincount(local, weights=weight[stack], minlength=len(frames))
        deep = np.bincount(local, weights=weight[stack] * depth, minlength=len(frames))
        return _Frames(frames, inclusive, leaf, deep / total)

    def _callers(self, chosen: int, frames: Ints, mine: Ints) -> list[int]:
        """Return the frames above `chosen`, nearest first, on the stack with most time (indices into `frames`).

        `mine`: pattern rows of the rank, of which the 200 longest are looked at.
        """
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
        """Return the Python function of a frame (by code)."""
        name, file, line = self._frames[frame]
        return Function("python", name, file, line)

    def _by_leaf(self, rows: Ints, ranks: Ints, excess: float) -> Located:
        """Return the leaf function with the largest excess over the peers' median, seconds per step.

        `ranks`: the rank, then its peers; `rows`: their pattern rows; `excess`: the rank's whole
        excess, of which less than half in the leaf sets `spread`.
        """
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
