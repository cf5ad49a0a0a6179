"""Counters of a fleet as columns, found by name and then by rank without a search.

100,000 ranks bring millions of counters: rows stay in arrays, sorted once by (name, rank), and
become `Counter` objects only on demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.infer.fleet.labels import Labels
from rankscope.probes.base.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class Counter:
    """One hardware or kernel counter over the window."""

    observed_on: str
    scope: str
    instance: str
    rank: int  # row in Ranks; -1: all of the host
    name: str
    unit: str
    kind: str
    value: float
    maximum: float
    limit: float  # NaN where there is none
    comm: str = ""  # name of the process that took or holds it
    pid: int = -1


@dataclass(frozen=True, slots=True)
class Columns:
    """Table of counters, one row each; `rank` is the row in Ranks, -1 for the whole host.

    `minimum`, `maximum` and `limit` are NaN where there is none.
    """

    observed_on: Labels
    scope: Labels
    instance: Labels
    rank: Ints
    name: Labels
    unit: Labels
    kind: Labels
    value: Floats
    minimum: Floats
    maximum: Floats
    limit: Floats
    comm: Labels
    pid: Ints  # -1: no process


class Counters:
    """All counters of a fleet, indexed once by name and rank; a row is a row number of `table`."""

    def __init__(self, table: Columns | None = None) -> None:
        self.table = table if table is not None else _nothing()
        self._order = np.lexsort((self.table.rank, self.table.name.codes))
        self._rank = self.table.rank[self._order]
        codes = self.table.name.codes[self._order]
        edges = np.searchsorted(codes, np.arange(len(self.table.name.values) + 1))
        self._edges = {
            name: (int(edges[code]), int(edges[code + 1])) for code, name in enumerate(self.table.name.values)
        }

    def __len__(self) -> int:
        return len(self.table.rank)

    def __iter__(self) -> Iterator[Counter]:
        return (self.at(row) for row in range(len(self)))

    def __contains__(self, name: str) -> bool:
        first, last = self._edges.get(name, (0, 0))
        return last > first

    def names(self, prefix: str = "") -> tuple[str, ...]:
        """Counter names that occur and begin with `prefix`, sorted."""
        return tuple(sorted(name for name in self._edges if name.startswith(prefix) and name in self))

    def rows(self, name: str) -> Ints:
        """Rows of the counters with this name, ordered by rank."""
        first, last = self._edges.get(name, (0, 0))
        return self._order[first:last]

    def rows_of(self, name: str, ranks: Ints | int) -> Ints:
        """Rows of the counters with this name on these ranks, rank after rank.

        `ranks`: rows in Ranks; -1: counters of the hosts themselves.
        """
        first, last = self._edges.get(name, (0, 0))
        if first == last:
            return self._order[:0]
        wanted = np.atleast_1d(np.asarray(ranks, dtype=np.int64))
        if len(wanted) == 1:  # nearly always
            begin, end = np.searchsorted(self._rank[first:last], (wanted[0], wanted[0] + 1))
            return self._order[first + begin : first + end]
        start = np.searchsorted(self._rank[first:last], wanted)
        count = np.searchsorted(self._rank[first:last], wanted, side="right") - start
        inside = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        rows: Ints = self._order[first + np.repeat(start, count) + inside]
        return rows

    def total(self, name: str, ranks: Ints, without: Ints | None = None) -> Floats:
        """Sum of the counters with this name by rank; NaN for a rank that has none.

        `ranks`: rows in Ranks. `without`: by row in Ranks, the pid whose counters are excluded.
        """
        table, rows = self.table, self.rows_of(name, ranks)
        if without is not None:
            rows = rows[table.pid[rows] != without[table.rank[rows]]]
        size = int(ranks.max(initial=-1)) + 1
        total = np.bincount(table.rank[rows], weights=table.value[rows], minlength=size)
        return np.where(np.bincount(table.rank[rows], minlength=size) > 0, total, np.nan)[ranks]

    def at(self, row: int) -> Counter:
        """Build the `Counter` of one row."""
        table = self.table
        return Counter(
            observed_on=table.observed_on.at(row),
            scope=table.scope.at(row),
            instance=table.instance.at(row),
            rank=int(table.rank[row]),
            name=table.name.at(row),
            unit=table.unit.at(row),
            kind=table.kind.at(row),
            value=float(table.value[row]),
            maximum=float(table.maximum[row]),
            limit=float(table.limit[row]),
            comm=table.comm.at(row),
            pid=int(table.pid[row]),
        )

    def named(self, name: str) -> Iterator[Counter]:
        """Yield every counter with this name."""
        return (self.at(int(row)) for row in self.rows(name))

    def moved(self, name: str) -> Iterator[Counter]:
        """Yield the counters with this name whose value is above 0."""
        rows = self.rows(name)
        return (self.at(int(row)) for row in rows[self.table.value[rows] > 0])

    def of(self, name: str, ranks: Ints | int) -> Iterator[Counter]:
        """Yield the counters with this name on these ranks (rows in Ranks; -1: the host's own)."""
        return (self.at(int(row)) for row in self.rows_of(name, ranks))


def _nothing() -> Columns:
    """Return a table of counters without rows."""
    no_text, no_rank, no_value = Labels(np.empty(0, np.int64), ()), np.empty(0, np.int64), np.empty(0)
    return Columns(
        no_text, no_text, no_text, no_rank, no_text, no_text, no_text, no_value, no_value, no_value, no_value,
        no_text, no_rank,
    )  # fmt: skip
