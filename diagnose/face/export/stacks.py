"""Stacks of a fleet with their seconds, for profilers: each rank's critical path, Python and leaves below it.

seconds = β · length of the window: time on the rank's critical path. A rank's stacks add up to its window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.text import clean
from rankscope.observer.window.stacks import StackFrame


@dataclass(frozen=True, slots=True)
class Sample:
    """One stack of one rank, root first.

    A last frame in square brackets, without a file, is no Python function.
    """

    rank: int
    host: str
    role: str
    kind: str
    frames: tuple[StackFrame, ...]
    seconds: float
    count: int


def samples_of(fleet: Fleet) -> Iterator[Sample]:
    """Yield the stacks of all training threads with their seconds, rank by rank, the longest first."""
    table, ranks = fleet.patterns, fleet.ranks
    share = table.share
    rows = np.flatnonzero((table.thread.codes == table.thread.code("training")) & (share > 0))
    order = rows[np.lexsort((-share[rows], table.rank[rows]))]
    for row in order.tolist():
        who, kind, name = int(table.rank[row]), table.kind.at(row), table.name.at(row)
        frames = tuple(table.stack.of(int(table.stack.codes[row])))
        if kind != "python":
            frames += (StackFrame(f"[{kind}: {name}]", "", 0),)
        elif not frames:
            frames = (StackFrame(name, table.file.at(row), int(table.line[row])),)
        yield Sample(
            rank=int(ranks.number[who]),
            host=clean(ranks.host[who]),
            role=clean(ranks.role[who]),
            kind=clean(kind, 20),
            frames=tuple(StackFrame(clean(each.name), clean(each.file, 4096), each.line) for each in frames),
            seconds=float(share[row]) * fleet.seconds,
            count=int(table.count[row]),
        )


def rank_name(sample: Sample) -> str:
    """Name the sample's rank, 'rank 3 on node-0'."""
    return f"rank {sample.rank}{' on ' + sample.host if sample.host else ''}"
