"""Pipelines recognised from outside: ranks that wait for messages (send, recv) besides collectives.

A slow stage makes later stages wait for its activations and earlier ones for its gradients; with a
flush at the end of the step all ranks wait for all. The most affected rank waits longest, so own
time is compared, not waiting: ranks of one stage with each other, and the replay (model/replay.py)
runs each pipeline of m micro-batches.

The k-th ranks of the stages form one pipeline; m is the number of receives per step of the median
rank that receives. The transfer time is the least stay in the collectives that are no messages
(slots.py), if known, else 0.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.collectives import slots
from rankscope.diagnose.infer.fleet.model import Fleet, Pipelines
from rankscope.diagnose.stats.robust import median
from rankscope.probes.base.arrays import Ints

MESSAGES = ("send", "recv", "receive", "isend", "irecv", "p2p")


def message_names(fleet: Fleet) -> Ints:
    """Codes of the pattern names that are point-to-point messages."""
    names = fleet.patterns.name.values
    return np.array(
        [code for code, name in enumerate(map(str.lower, names)) if any(word in name for word in MESSAGES)],
        dtype=np.int64,
    )


def find_pipelines(fleet: Fleet, roles: Ints) -> Pipelines | None:
    """Pipelines of an observed job; None where no messages are passed or stages differ in size."""
    table = fleet.patterns
    rows = np.flatnonzero(
        (table.kind.codes == table.kind.code("collective")) & np.isin(table.name.codes, message_names(fleet))
    )
    stages, sizes = np.unique(roles, return_counts=True)
    if len(rows) == 0 or len(stages) < 2 or len(set(sizes.tolist())) > 1:
        return None
    if len(np.unique(table.rank[rows])) < limits.HOLDS_LEAST * len(fleet.ranks):
        return None
    steps = fleet.steps.of_each
    receives = np.array([not any(word in name.lower() for word in ("send",)) for name in table.name.values], dtype=bool)
    counted = rows[receives[table.name.codes[rows]]]
    each = np.bincount(table.rank[counted], table.count[counted], len(fleet.ranks)) / steps
    batches = max(round(median(each[each > 0.5])), 1) if (each > 0.5).any() else 1
    member = np.empty(len(roles), dtype=np.int64)
    for stage in stages:
        mine = np.flatnonzero(roles == stage)
        member[mine] = np.arange(len(mine))
    stays = fleet.slots if fleet.slots is not None and fleet.slots.whole else None
    least = slots.transfer(stays) if stays is not None else np.zeros(fleet.steps.count)
    once = np.zeros_like(fleet.steps.own_s)
    return Pipelines(member, batches, once, once, np.nan_to_num(least))
