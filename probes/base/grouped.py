"""Group rows by a number (their owner, say) with one sort, instead of one scan per number. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankscope.probes.base.arrays import Ints


@dataclass(frozen=True, slots=True)
class Grouped:
    """Row indices sorted by number; rows of one number keep their order."""

    order: Ints
    edges: dict[int, tuple[int, int]]  # number -> begin and end of its rows in `order`

    def rows(self, number: int) -> Ints:
        """Return the row indices of a number, in their original order; none where it has none."""
        return self.order[slice(*self.edges.get(number, (0, 0)))]


def grouped(numbers: npt.NDArray[Any]) -> Grouped:
    """Group rows by their `numbers`."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = np.flatnonzero(np.concatenate((np.ones(min(len(ordered), 1), dtype=bool), ordered[1:] != ordered[:-1])))
    ends = np.append(first[1:], len(ordered))
    edges = zip(first.tolist(), ends.tolist(), strict=True) if len(ordered) else ()
    return Grouped(order, dict(zip(ordered[first].tolist(), edges, strict=True)))
