"""Where a rank waits for its GPU: the places of its code, how often, and for how long. Pure.

In: calls that wait (role gpu-wait) with their call sites. Out: rows of the table `patterns`, thread
`gpu`, kind `sync`. They lie beside what the GPU does meanwhile, so they are on no critical path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread.functions import NO_STACK, FunctionKey, StackName
from rankscope.observer.thread.patterns import MeasuredPattern
from rankscope.probes.base.arrays import Floats
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.row import CallRow

_MOST = 16  # rows of a rank: a loop has a handful of such places


def wait_patterns(
    waits: Events, start_s: Floats, stacks: Mapping[int, StackName], table: Sequence[CallRow], steps: FoundSteps
) -> tuple[MeasuredPattern, ...]:
    """Build rows of a thread's waits, by function and place, the longest first. `start_s`: when each
    began, s.
    """
    calls, of_call = np.unique(waits[["what", "ready_ns"]], return_inverse=True)
    keys = [
        FunctionKey("sync", table[row].name, resource="gpu").called_from(stacks.get(stack, NO_STACK))
        for row, stack in calls.tolist()
    ]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}  # stacks of other lines have equal names
    place = np.array([numbers[key] for key in keys], dtype=np.int64)[of_call]
    seconds = waits["dur_ns"].astype(np.float64) / 1e9
    inside = steps.index(start_s) >= 0
    found = []
    for function, number in numbers.items():
        rows = place == number
        mine = seconds[rows]
        found.append(
            MeasuredPattern(
                function,
                beta=0.0,
                mu=None,
                sigma=None,
                count=len(mine),
                total_s=float(mine.sum()),
                p50_s=float(np.quantile(mine, 0.5)),
                p99_s=float(np.quantile(mine, 0.99)),
                max_s=float(mine.max()),
                per_step_s=float(seconds[rows & inside].sum()) / steps.count if steps.count else None,
                per_step_sd_s=None,
                bytes=0,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.total_s)[:_MOST])
