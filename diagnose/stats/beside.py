"""Medians by column of many fixed rows and a few varying ones: the many are sorted once.

The median of n values is the m-th smallest. With k varying values it is among the many's values
from the (m - k)-th to the m-th, and the k.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.stats.robust import nan_median
from rankscope.probes.base.arrays import Floats


class Medians:
    """Medians by column of fixed rows together with a few others; the fixed rows are sorted once. NaN is ignored."""

    def __init__(self, rows: Floats) -> None:
        self._ordered = np.sort(rows, axis=0)  # NaN last
        self._known = (~np.isnan(rows)).sum(axis=0)

    def beside(self, few: Floats) -> Floats:
        """Return the median of each column over all fixed rows and these few; NaN where no value is known."""
        most = len(self._ordered) - 1
        if most < 0:
            return nan_median(few, 0)
        known = self._known + (~np.isnan(few)).sum(axis=0)
        low, high = (known - 1) // 2, known // 2
        first = np.maximum(low - len(few), 0)  # earlier values are smaller, whatever the few are
        place = np.minimum(first + np.arange(len(few) + 2)[:, None], most + 1)
        around = np.take_along_axis(self._ordered, place.clip(0, most), 0)
        around[place > most] = np.nan
        ordered = np.sort(np.concatenate((around, few)), axis=0)
        below, above = (np.take_along_axis(ordered, (at - first)[None].clip(0), 0)[0] for at in (low, high))
        return np.asarray(np.where(below == above, below, 0.5 * (below + above)), dtype=np.float64)
