"""The median of each column of sums, of which most rows may have none."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.stats.robust import nan_median
from rankscope.probes.arrays import Floats, Ints


def medians_of_sums(row: Ints, column: Ints, value: Floats, rows: int, columns: int) -> Floats:
    """Of each column the median over rows of what the values of a row add up to; 0 in rows that have none.

    It is 0 where more than half of the rows have none. So only columns with at least half as many values as there are rows get room of
    their own, at most twice as much as there are values: nobody knows how many columns others name.
    """
    common = np.bincount(column, minlength=columns) * 2 >= rows
    place = np.cumsum(common) - 1
    kept = common[column]
    found, width = np.zeros(columns), int(common.sum())
    if width:
        where = row[kept] * width + place[column[kept]]
        total = np.bincount(where, weights=value[kept], minlength=rows * width).reshape(rows, width)
        found[common] = nan_median(np.asarray(total, dtype=np.float64), 0)
    return found
