"""Column types of a fleet: labels of the window tables (observer/window/store/columns.py), GIL
holders, and numbering of distinct rows and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.stats.integers import distinct
from rankscope.observer.window.store.columns import Labels, equals, floats, ints, labels, texts
from rankscope.probes.base.arrays import Ints

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
    """The function and thread that held the GIL; '' and 0 where the function was not seen."""

    name: str
    file: str
    line: int
    thread: str

    @property
    def text(self) -> str:
        """The holder in words, for a pattern's detail."""
        place = f"{self.name} ({self.file.rpartition('/')[2]}:{self.line}) on " if self.name else ""
        return f"held by {place}{self.thread}"


@dataclass(frozen=True, slots=True)
class Holders:
    """GIL holder by row, as an index into `values`; -1: unknown, or not a wait for the GIL."""

    codes: Ints
    values: tuple[GilHolder, ...]

    def at(self, row: int) -> GilHolder | None:
        """GIL holder of a row; None where unknown, or where the row is no wait for the GIL."""
        number = int(self.codes[row])
        return self.values[number] if number >= 0 else None

    def followed_by(self, other: Holders, rows: Ints) -> Holders:
        """Append the given rows of another column."""
        codes = other.codes[rows]
        moved = np.where(codes >= 0, codes + len(self.values), -1)
        return Holders(np.concatenate([self.codes, moved]), (*self.values, *other.values))


def distinct_rows(columns: tuple[Ints, ...]) -> Ints:
    """Number the distinct rows of the columns: equal rows have equal numbers, from 0."""
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
    """Distinct texts, sorted, and the index of each text among them.

    A numpy array would give each text the room of the longest, which whoever writes a window
    chooses.
    """
    found = sorted(set(texts))
    place = {text: number for number, text in enumerate(found)}
    return tuple(found), np.fromiter(map(place.__getitem__, texts), dtype=np.int64, count=len(texts))
