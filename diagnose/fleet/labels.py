"""A column of texts of which few are different: codes, and the texts they stand for."""

from __future__ import annotations

from dataclasses import dataclass

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
