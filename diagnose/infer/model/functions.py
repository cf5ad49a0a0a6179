"""Seconds per step by function, of one rank compared with the median of its peers.

excess(f) = t(f, rank) - median over peers p of t(f, p), t: seconds per step on the training thread

A function is one entry here, whatever lies above it on the stack; attribute.py finds the location
of an excess in the stacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.labels import GilHolder, distinct_rows
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.waits import waits
from rankscope.diagnose.stats.integers import distinct
from rankscope.diagnose.stats.medians import medians_of_sums
from rankscope.diagnose.stats.robust import median, nan_median
from rankscope.probes.base.arrays import Bools, Floats, Ints


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
    holder: GilHolder | None = None  # the thread that had the GIL, where the wait is for the GIL

    @property
    def excess_s(self) -> float:
        return self.own_s - self.peers_s


@dataclass(frozen=True, slots=True)
class _ByFunction:
    """Seconds per step by function, by ascending key, with the function's first row of the
    table.
    """

    keys: Ints
    first: Ints
    seconds: Floats


class Functions:
    """Seconds per step by function, for any ranks of a fleet; built once."""

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
        self._waits = waits(table)
        self._last_asked: tuple[Ints, Ints] | None = None  # ranks and their rows: a suspect's are needed several times
        self._last_peers: tuple[Ints, dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self._table)

    def functions(self, rank: int, peers: Ints, thread: str = "training") -> tuple[FunctionExcess, ...]:
        """Every function of the rank's or its peers' own work on a thread, largest excess first."""
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
        """Median over peers, by step, of a matrix of the fleet's steps; cached until the peers change.

        `name`: of the matrix, such as 'own_s'; `peers`: rows.
        """
        peers = sample(peers)
        known, key = self._beside(peers), f"steps {name}"
        if key not in known:
            known[key] = nan_median(getattr(self._steps, name)[peers], 0)
        found: Floats = known[key]
        return found

    def native_in(self, rank: int, name: str) -> str:
        """Native function that takes most of a rank's running time in Python functions of this name.

        '' if none takes half of it, or it is unknown.
        """
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

    def queued_s(self, ranks: Ints) -> Floats:
        """Seconds per step that the training thread of each of these ranks queues for a CPU."""
        table, rows = self._table, self._rows(ranks)
        queue = table.kind.codes[rows] == table.kind.code("sched")
        queue &= (table.thread.codes[rows] == table.thread.code("training")) & (
            table.detail.codes[rows] == table.detail.code("queue")
        )
        return self._sum(rows[queue], np.zeros(int(queue.sum()), dtype=np.int64), 1, ranks)[:, 0]

    def queue_per_second(self, ranks: Ints) -> float:
        """Median over ranks of seconds of queueing for a CPU per second of computing; cached."""
        ranks = sample(ranks)
        known, key = self._beside(ranks), "queue"
        if key not in known:
            known[key] = self._queue_per_second(ranks) if len(ranks) else 0.0
        found: float = known[key]
        return found

    def _queue_per_second(self, ranks: Ints) -> float:
        """Compute `queue_per_second` for these ranks, of which there is at least one."""
        table, rows = self._table, self._rows(ranks)
        rows = rows[table.thread.codes[rows] == table.thread.code("training")]
        waits = rows[table.kind.codes[rows] == table.kind.code("sched")]
        runs = rows[
            (table.kind.codes[rows] == table.kind.code("python")) & (table.detail.codes[rows] == table.detail.code(""))
        ]
        one = np.zeros(len(rows), dtype=np.int64)
        queue, run = (self._sum(part, one[: len(part)], 1, ranks)[:, 0] for part in (waits, runs))
        return median(queue / np.maximum(run, 1e-9))

    # ---- inside ----------------------------------------------------------------------------------------------

    def _beside(self, peers: Ints) -> dict[str, Any]:
        """Cache of results for these peers, emptied when the peers change."""
        if self._last_peers is None or not np.array_equal(self._last_peers[0], peers):
            self._last_peers = peers.copy(), {}
        return self._last_peers[1]

    def _usual(self, peers: Ints, thread: str) -> _ByFunction:
        """Median over the peers of their seconds by function on a thread; cached until the peers change."""
        known, key = self._beside(peers), f"functions {thread}"
        if key not in known:
            known[key] = self._by_function(peers, thread)
        found: _ByFunction = known[key]
        return found

    def _by_function(self, ranks: Ints, thread: str) -> _ByFunction:
        """Own work of these ranks by function; for several ranks the median."""
        rows = self._rows(ranks)
        rows = rows[self._own_work(rows, thread)]
        keys, place = distinct(self._key[rows])
        first = np.empty(len(keys), dtype=np.int64)
        first[place[::-1]] = rows[::-1]  # of several rows the first of the table remains
        number = self._numbers(ranks)[self._table.rank[rows]]
        seconds = medians_of_sums(number, place, self._table.per_step_s[rows], len(ranks), len(keys))
        return _ByFunction(keys, first, seconds)

    def _rows(self, ranks: Ints) -> Ints:
        """Pattern rows of these ranks, in the order of the table."""
        if len(ranks) == 1:  # one rank: its rows are in order
            return self._order[self._edges[ranks[0]] : self._edges[ranks[0] + 1]]
        if self._last_asked is not None and np.array_equal(self._last_asked[0], ranks):
            return self._last_asked[1]
        start, count = self._edges[ranks], self._edges[ranks + 1] - self._edges[ranks]
        inside = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        rows: Ints = np.sort(self._order[np.repeat(start, count) + inside], kind="stable")  # nearly sorted already
        rows.flags.writeable = False
        self._last_asked = ranks.copy(), rows
        return rows

    def _own_work(self, rows: Ints, thread: str) -> Bools:
        """Mask of these pattern rows: on this kind of thread, and not waiting for other ranks."""
        table = self._table
        mask: Bools = (table.thread.codes[rows] == table.thread.code(thread)) & ~self._waits[rows]
        return mask

    def _sum(self, rows: Ints, column: Ints, width: int, ranks: Ints) -> Floats:
        """Sum per_step_s of `rows` into a matrix of `ranks` x `width` columns."""
        where = self._numbers(ranks)[self._table.rank[rows]] * width + column
        total = np.bincount(where, weights=self._table.per_step_s[rows], minlength=len(ranks) * width)
        return np.asarray(total, dtype=np.float64).reshape(len(ranks), width)

    def _numbers(self, ranks: Ints) -> Ints:
        """Index of every rank of the fleet in `ranks`; -1 for others."""
        place = np.full(self._ranks, -1, dtype=np.int64)
        place[ranks] = np.arange(len(ranks))
        return place

    def _describe(self, row: int, own_s: float, peers_s: float) -> FunctionExcess:
        """Build the result for one function; `row`: a row of the pattern table with it."""
        table = self._table
        kind = table.kind.at(row)
        caller = "" if kind == "python" else table.caller.at(row)
        return FunctionExcess(kind, table.name.at(row), table.file.at(row), int(table.line[row]), table.detail.at(row),
                              caller, own_s, peers_s, table.holder.at(row) if table.holder is not None else None)  # fmt: skip


def sample(peers: Ints) -> Ints:
    """Pick at most limits.PEERS_SAMPLED peers, evenly spaced: a median needs no more."""
    if len(peers) <= limits.PEERS_SAMPLED:
        return peers
    return peers[np.linspace(0, len(peers) - 1, limits.PEERS_SAMPLED).astype(np.int64)]
