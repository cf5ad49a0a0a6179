"""Medians by column of many rows, which stay, and of few others beside them, which are other ones each time: the many are sorted once.

Of n values the median is the m-th smallest. Beside k others it is among the many's values from the (m - k)-th to the m-th and the k.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.stats.robust import nan_median
from rankscope.probes.arrays import Floats


class Medians:
    """Of these rows; NaN is passed over."""

    def __init__(self, rows: Floats) -> None:
        self._ordered = np.sort(rows, axis=0)  # NaN last
        self._known = (~np.isnan(rows)).sum(axis=0)

    def beside(self, few: Floats) -> Floats:
        """The median of each column of all rows and of these few; NaN where nothing is known."""
        most = len(self._ordered) - 1
        if most < 0:
            return nan_median(few, 0)
        known = self._known + (~np.isnan(few)).sum(axis=0)
        low, high = (known - 1) // 2, known // 2
        first = np.maximum(low - len(few), 0)  # what comes before is smaller, whatever the few are
        place = np.minimum(first + np.arange(len(few) + 2)[:, None], most + 1)
        around = np.take_along_axis(self._ordered, place.clip(0, most), 0)
        around[place > most] = np.nan
        ordered = np.sort(np.concatenate((around, few)), axis=0)
        below, above = (np.take_along_axis(ordered, (at - first)[None].clip(0), 0)[0] for at in (low, high))
        return np.asarray(np.where(below == above, below, 0.5 * (below + above)), dtype=np.float64)
