"""Medians by column of sums per row, where most rows may have no value."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.stats.robust import nan_median
from rankscope.probes.base.arrays import Floats, Ints


def medians_of_sums(row: Ints, column: Ints, value: Floats, rows: int, columns: int) -> Floats:
    """Return for each column the median over all rows of the row's sum there; a row without values counts as 0.

    Entry i adds `value[i]` to the sum of row `row[i]` and column `column[i]`. The median is 0 if more than half of
    the rows have none. So only columns with at least half as many values as rows get memory, at most twice as much as
    there are values: the number of other columns is not limited.
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
