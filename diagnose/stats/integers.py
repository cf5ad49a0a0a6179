"""Distinct integers of a column, and membership in a few integers, without sorting.

Sorting millions of integers costs seconds; codes of labels are close together and need no sorting.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rankscope.probes.base.arrays import Bools, Ints


def distinct(values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct values in rising order, and for each value its index among them.

    As np.unique with return_inverse.
    """
    if not len(values):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    least = int(values.min())
    span = int(values.max()) - least + 1
    if span > max(2 * len(values), 1 << 16):  # far apart: the table would be larger than the column
        found, place = np.unique(values, return_inverse=True)
        return found.astype(np.int64), place.reshape(-1).astype(np.int64)
    there = np.zeros(span, dtype=np.bool_)
    there[values - least] = True
    place = np.cumsum(there) - 1
    return np.flatnonzero(there) + least, place[values - least]


def one_of(values: Ints, few: Iterable[int]) -> Bools:
    """Tell for each value whether it is one of these few: np.isin, several times as fast."""
    found = np.zeros(len(values), dtype=np.bool_)
    for each in few:
        found |= values == each
    return found
