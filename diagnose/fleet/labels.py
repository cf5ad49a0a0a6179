"""Columns of a fleet: those of the window's tables (observer/window/store/columns.py), who held the GIL, and rows that are different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.stats.integers import distinct
from rankscope.observer.window.store.columns import Labels, equals, floats, ints, labels, texts
from rankscope.probes.arrays import Ints

__all__ = [
    "GilHolder",
    "Holders",
    "Labels",
    "distinct_rows",
    "distinct_texts",
    "equals",
    "floats",
    "ints",
    "labels",
    "texts",
]


@dataclass(frozen=True, slots=True)
class GilHolder:
    """Who held the GIL: a function ('' and 0 where it was not seen) on a thread."""

    name: str
    file: str
    line: int
    thread: str

    @property
    def text(self) -> str:
        """For people."""
        place = f"{self.name} ({self.file.rpartition('/')[2]}:{self.line}) on " if self.name else ""
        return f"held by {place}{self.thread}"


@dataclass(frozen=True, slots=True)
class Holders:
    """One code per row, a number in `values`; -1 where nobody knows or something else was waited for."""

    codes: Ints
    values: tuple[GilHolder, ...]

    def at(self, row: int) -> GilHolder | None:
        number = int(self.codes[row])
        return self.values[number] if number >= 0 else None

    def followed_by(self, other: Holders, rows: Ints) -> Holders:
        """The rows of both, of `other` only these."""
        codes = other.codes[rows]
        moved = np.where(codes >= 0, codes + len(self.values), -1)
        return Holders(np.concatenate([self.codes, moved]), (*self.values, *other.values))


def distinct_rows(columns: tuple[Ints, ...]) -> Ints:
    """One integer per distinct row of the columns."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        if len(column) == 0:
            return key
        codes = column - column.min()
        key = key * (int(codes.max()) + 1) + codes
        if int(key.max(initial=0)) > 2**31:
            key = distinct(key)[1]
    return distinct(key)[1]


def distinct_texts(texts: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """The distinct texts in rising order, and for each text its place among them. An array of numpy's would give each the room of the
    longest, and whoever writes a window chooses how long that is."""
    found = sorted(set(texts))
    place = {text: number for number, text in enumerate(found)}
    return tuple(found), np.fromiter(map(place.__getitem__, texts), dtype=np.int64, count=len(texts))
