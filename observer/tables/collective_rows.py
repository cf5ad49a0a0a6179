"""Build rows of the table `collectives`: how long a rank stayed in each of its collectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.window.rows import CollectiveRow
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls import collectives
from rankscope.probes.calls.row import CallRow

MAX_COLLECTIVES = 600  # rows per rank; of a longer window every k-th step is included whole


def collective_rows(
    rank: int, raw: RawProcess, calls: Events, table: Sequence[CallRow], steps: FoundSteps
) -> list[CollectiveRow]:
    """Build rows of the table `collectives`, oldest first; beyond MAX_COLLECTIVES only every k-th step's.

    `calls`: the rank's library calls in order of begin; `table`: their functions. Collectives that
    began outside the window are left out.
    """
    own = calls[np.array([row.role == "collective" for row in table])[calls["what"]]]
    start = raw.since_start_s(own["ts_ns"])
    inside = (start >= 0) & (start < raw.window_s)
    own, start = own[inside], start[inside]
    step = steps.index(start)
    stride = max(-(-len(own) // MAX_COLLECTIVES), 1)
    rows: list[CollectiveRow] = []
    slot, previous = 0, -2
    for sequence, (call, index) in enumerate(zip(own, step.tolist(), strict=True)):
        slot = slot + 1 if index == previous else 0
        previous = index
        if (index if index >= 0 else sequence) % stride:
            continue
        row = table[int(call["what"])]
        moved = collectives.call_bytes(row, int(call["arg"]), int(call["aux"]))
        rows.append(CollectiveRow(rank, sequence, index, slot, row.name, float(call["dur_ns"]) / 1e9, moved))
    return rows
