"""Rows by a number that they have (whose they are), sorted once: to look at all rows for each of thousands of numbers takes minutes.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.probes.arrays import Ints


@dataclass(frozen=True, slots=True)
class Grouped:
    """`order`: the rows, number after number; those of one number in the order in which they came."""

    order: Ints
    edges: dict[int, tuple[int, int]]  # of each number, where in `order` its rows begin and end

    def rows(self, number: int) -> Ints:
        """The rows of a number, in the order in which they came; none where it has none."""
        return self.order[slice(*self.edges.get(number, (0, 0)))]


def grouped(numbers: npt.NDArray[Any]) -> Grouped:
    """Rows by their `numbers`."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = np.flatnonzero(np.concatenate((np.ones(min(len(ordered), 1), dtype=bool), ordered[1:] != ordered[:-1])))
    ends = np.append(first[1:], len(ordered))
    edges = zip(first.tolist(), ends.tolist(), strict=True) if len(ordered) else ()
    return Grouped(order, dict(zip(ordered[first].tolist(), edges, strict=True)))
