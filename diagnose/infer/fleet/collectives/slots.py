"""Stays of every collective of every step, from the window table `collectives`.

Slot by slot within each rank's own steps, where these add up to all the waiting; else in the order
of the collectives (sequence.py).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.collectives.sequence import in_sequence
from rankscope.diagnose.infer.fleet.collectives.stays import StayRows, columns_of, least_stays, stay_rows
from rankscope.diagnose.infer.fleet.model import Slots, Steps
from rankscope.probes.base.arrays import Floats, Ints


def read_slots(table: pa.Table, rows: Ints, steps: Steps) -> Slots | None:
    """Build `Slots` from the table `collectives`; `rows`: row in Ranks by table row, -1 for others.

    None where there are none, where ranks make different collectives, or where stays are not the
    steps' waiting.
    """
    if table.num_rows == 0 or steps.number is None or steps.count == 0:
        return None
    stays = stay_rows(table, rows, int(steps.number.max(initial=-1)))
    if len(stays.rank) == 0 or steps.number.shape[0] * (int(stays.step.max()) + 2) > budgets.CELLS_MOST:
        return None
    return _by_steps(stays, steps) or in_sequence(stays, steps)


def _by_steps(stays: StayRows, steps: Steps) -> Slots | None:
    """Put the k-th collective of each rank's own step in slot k.

    None if operations differ or stays are not waiting.
    """
    if steps.number is None:
        return None
    _, of_a_step = np.unique(stays.rank * (int(stays.step.max()) + 1) + stays.step, return_counts=True)
    width = int(np.median(of_a_step))
    if not 1 <= width <= budgets.EXAMINED or steps.number.size * width > budgets.CELLS_MOST:
        return None
    cube = _cube(stays, steps.number, width)
    ops = _operations(stays, width)
    return Slots(cube, ops) if ops and _is_the_waiting(cube, steps.wait_s) else None


def _cube(stays: StayRows, number: Ints, width: int) -> Floats:
    """Ranks x columns x slots of stays in seconds, NaN if unknown.

    `number`: ranks x columns, step number in the rank's window. A step with more than `width`
    collectives is left out, since they cannot be identified.
    """
    at = columns_of(stays, number)
    inside = (at >= 0) & (stays.slot < width)
    cube = np.full((*number.shape, width), np.nan)
    cube[stays.rank[inside], at[inside], stays.slot[inside]] = stays.stay_s[inside]
    beyond = (at >= 0) & (stays.slot >= width)
    cube[stays.rank[beyond], at[beyond]] = np.nan
    return cube


def _operations(stays: StayRows, width: int) -> tuple[str, ...]:
    """Most frequent operation by slot; () where it is below nine of ten in some slot."""
    count = np.zeros((width, len(stays.names)), dtype=np.int64)
    inside = stays.slot < width
    np.add.at(count, (stays.slot[inside], stays.op[inside]), 1)
    if (count.max(axis=1) < 0.9 * np.maximum(count.sum(axis=1), 1)).any():
        return ()
    return tuple(stays.names[index] for index in count.argmax(axis=1))


def _is_the_waiting(cube: Floats, wait: Floats) -> bool:
    """Whether the stays of nearly all steps add up to their waiting, within 10 % and 2 ms."""
    total = cube.sum(axis=2)
    known = np.isfinite(total) & np.isfinite(wait)
    if known.sum() < limits.NEARLY_ALL * np.isfinite(wait).sum():
        return False
    off = np.abs(total[known] - wait[known])
    return bool(np.mean(off <= limits.FEW * np.maximum(wait[known], total[known]) + 0.002) >= limits.NEARLY_ALL)


def transfer(slots: Slots) -> Floats:
    """Transfer time per step: sum over slots of the least stay, seconds.

    NaN where some rank lacks a slot.
    """
    least = least_stays(slots.stay_s)
    return np.asarray(least.sum(axis=1), dtype=np.float64)
