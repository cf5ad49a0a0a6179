"""Which rows of the pattern table are waiting for other ranks, and no work of one's own: the same as the steps say.

waits  collectives, but for those that are known to be transfer alone; of the training thread also its waits for the GPU, on ranks whose
       GPU does not show when it computes: nobody knows for what of it they wait, and the steps count them as waiting
       (observer/thread/step_times.py)
shows  a rank has kernels that no call waits for: they were told from collectives by the GPU's own activity (observer/gpu/rows.py)

Who comes late waits for its GPU as much less. Taken for its own work, that would hide whatever made it late.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.fleet.model import Patterns
from rankscope.probes.arrays import Bools, Floats, Ints

TRANSFER = "transfer"  # detail of a collective that is known to contain no waiting: own time after all

_COLLECTIVE, _GPU = "collective", "gpu"


def waits(table: Patterns) -> Bools:
    """One per row."""
    waiting: Bools = collectives(table) & (table.detail.codes != table.detail.code(TRANSFER))
    waiting[_for_gpu(table)] = True
    return waiting


def collectives(table: Patterns) -> Bools:
    """One per row. Beside one's own past these alone: a GPU that has more to do is waited for longer by all ranks."""
    found: Bools = table.kind.codes == table.kind.code(_COLLECTIVE)
    return found


def for_gpu_s(table: Patterns, ranks: int) -> Floats:
    """Seconds per step of each rank in waits for its GPU of which nobody knows for what they are."""
    rows = _for_gpu(table)
    found = np.bincount(table.rank[rows], weights=np.nan_to_num(table.per_step_s[rows]), minlength=ranks)
    return np.asarray(found, dtype=np.float64)


def _for_gpu(table: Patterns) -> Ints:
    """Rows of the training thread that wait for a GPU that does not show when it computes."""
    found = (table.kind.codes == table.kind.code("sync")) & (table.name.codes == table.name.code(_GPU))
    rows = np.flatnonzero(found & (table.thread.codes == table.thread.code("training")))
    return rows[~np.isin(table.rank[rows], table.rank[_kernels(table)])] if len(rows) else rows


def _kernels(table: Patterns) -> Bools:
    shown: Bools = (table.kind.codes == table.kind.code(_GPU)) & (table.detail.codes == table.detail.code(""))
    shown &= table.thread.codes == table.thread.code("training")
    return shown
