"""Columns: the types of the arrays that a fleet is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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
