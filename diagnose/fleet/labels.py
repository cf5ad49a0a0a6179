"""A column of texts of which few are different: codes, and the texts they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.probes.arrays import Ints


@dataclass(frozen=True, slots=True)
class Labels:
    """A text column: one code per row, and the texts the codes stand for."""

    codes: Ints
    values: tuple[str, ...]

    def code(self, text: str) -> int:
        """Code of `text`; -1 if it does not occur."""
        try:
            return self.values.index(text)
        except ValueError:
            return -1

    def at(self, row: int) -> str:
        return self.values[int(self.codes[row])]


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
