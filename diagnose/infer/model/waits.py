"""Which rows of the pattern table are waiting for other ranks, not work, as the steps count it.

waits  collectives, except those known to be transfer alone; on the training thread also waits for a
       GPU that does not show when it computes: their reason is unknown, and the steps count them as
       waiting (observer/thread/step_times.py)
shows  a rank's GPU shows this if it has kernels that no call waits for: the GPU's own activity
       separated them from collectives (observer/gpu/rows.py)

A late rank waits for its GPU that much less. Counted as its own work, that would hide the cause of
its lateness.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.infer.fleet.model import Patterns
from rankscope.probes.base.arrays import Bools, Floats, Ints

TRANSFER = "transfer"  # detail of a collective known to contain no waiting: own time after all

_COLLECTIVE, _GPU = "collective", "gpu"


def waits(table: Patterns) -> Bools:
    """Mask of the pattern rows that are waiting for other ranks."""
    waiting: Bools = collectives(table) & (table.detail.codes != table.detail.code(TRANSFER))
    waiting[_for_gpu(table)] = True
    return waiting


def collectives(table: Patterns) -> Bools:
    """Mask of the pattern rows that are collectives.

    Against a rank's own past only these are waiting: all ranks wait longer for a GPU that has more
    to do.
    """
    found: Bools = table.kind.codes == table.kind.code(_COLLECTIVE)
    return found


def for_gpu_s(table: Patterns, ranks: int) -> Floats:
    """Seconds per step of each rank in waits for its GPU whose reason is unknown."""
    rows = _for_gpu(table)
    found = np.bincount(table.rank[rows], weights=np.nan_to_num(table.per_step_s[rows]), minlength=ranks)
    return np.asarray(found, dtype=np.float64)


def _for_gpu(table: Patterns) -> Ints:
    """Rows of training threads that wait for a GPU that does not show when it computes."""
    found = (table.kind.codes == table.kind.code("sync")) & (table.name.codes == table.name.code(_GPU))
    rows = np.flatnonzero(found & (table.thread.codes == table.thread.code("training")))
    return rows[~np.isin(table.rank[rows], table.rank[_kernels(table)])] if len(rows) else rows


def _kernels(table: Patterns) -> Bools:
    """Mask of the rows with kernels of a rank's GPU that no call waits for."""
    shown: Bools = (table.kind.codes == table.kind.code(_GPU)) & (table.detail.codes == table.detail.code(""))
    shown &= table.thread.codes == table.thread.code("training")
    return shown
