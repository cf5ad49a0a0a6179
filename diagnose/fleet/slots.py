"""The stays of every collective of every step, out of the windows' table `collectives`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.fleet.labels import floats, ints, labels
from rankscope.diagnose.fleet.model import Slots, Steps
from rankscope.probes.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class _StayRows:
    """Rows of the table `collectives`, one entry each: who stayed how long in the how-many-th collective of its how-many-th step."""

    kept: Bools  # which rows of the table these are
    rank: Ints
    step: Ints  # as the rank's window numbers it
    slot: Ints
    stay_s: Floats


def read_slots(table: pa.Table, rows: Ints, steps: Steps) -> Slots | None:
    """The stays of a job from the table `collectives`; `rows`: row in Ranks of every table row, -1 for others.

    None where there are none, where ranks make different collectives, or where they are not the waiting of the steps.
    """
    if table.num_rows == 0 or steps.number is None or steps.count == 0:
        return None
    stays = _stays(table, rows, int(steps.number.max(initial=-1)))
    if len(stays.rank) == 0 or steps.number.shape[0] * (int(stays.step.max()) + 2) > budgets.CELLS_MOST:
        return None
    _, of_a_step = np.unique(stays.rank * (int(stays.step.max()) + 1) + stays.step, return_counts=True)
    width = int(np.median(of_a_step))
    if not 1 <= width <= budgets.EXAMINED or steps.number.size * width > budgets.CELLS_MOST:
        return None
    cube = _cube(stays, steps.number, width)
    ops = _operations(table, stays, width)
    return Slots(cube, ops) if ops and _is_the_waiting(cube, steps.wait_s) else None


def _stays(table: pa.Table, rows: Ints, last_step: int) -> _StayRows:
    """The rows that can be: of a rank of the job, in a step that it has, with a number in place of its stay."""
    step, slot, stay = ints(table, "step"), ints(table, "slot"), floats(table, "stay_s")
    kept = (rows >= 0) & (step >= 0) & (step <= last_step) & (slot >= 0) & np.isfinite(stay) & (stay >= 0)
    return _StayRows(kept, rows[kept], step[kept], slot[kept], stay[kept])


def _cube(stays: _StayRows, number: Ints, width: int) -> Floats:
    """Ranks x columns x slots, seconds, NaN where nothing is known. `number`: ranks x columns, the step's number in its rank's window.

    A step with more collectives than usual is left out: which of them is which is not known.
    """
    ranks, columns = number.shape
    last = int(stays.step.max())
    column = np.full((ranks, last + 1), -1, dtype=np.int64)  # of each rank's step number
    owner, place = np.nonzero((number >= 0) & (number <= last))
    column[owner, number[owner, place]] = place
    at = column[stays.rank, stays.step]
    inside = (at >= 0) & (stays.slot < width)
    cube = np.full((ranks, columns, width), np.nan)
    cube[stays.rank[inside], at[inside], stays.slot[inside]] = stays.stay_s[inside]
    beyond = (at >= 0) & (stays.slot >= width)
    cube[stays.rank[beyond], at[beyond]] = np.nan
    return cube


def _operations(table: pa.Table, stays: _StayRows, width: int) -> tuple[str, ...]:
    """The operation in each slot; () where it is not the same in nine of ten."""
    names = labels(table, "op")
    count = np.zeros((width, len(names.values)), dtype=np.int64)
    inside = stays.slot < width
    np.add.at(count, (stays.slot[inside], names.codes[stays.kept][inside]), 1)
    if (count.max(axis=1) < 0.9 * np.maximum(count.sum(axis=1), 1)).any():
        return ()
    return tuple(str(names.values[index]) for index in count.argmax(axis=1))


def _is_the_waiting(cube: Floats, wait: Floats) -> bool:
    """Whether the stays of a step add up to its waiting, within 10 % and 2 ms, on most ranks and steps."""
    total = cube.sum(axis=2)
    known = np.isfinite(total) & np.isfinite(wait)
    if known.sum() < limits.NEARLY_ALL * np.isfinite(wait).sum():
        return False
    off = np.abs(total[known] - wait[known])
    return bool(np.mean(off <= limits.FEW * np.maximum(wait[known], total[known]) + 0.002) >= limits.NEARLY_ALL)


def transfer(slots: Slots) -> Floats:
    """Per step, the sum over slots of the least stay, seconds; NaN where a slot is not known of every rank that has the step."""
    least = least_stays(slots.stay_s)
    return np.asarray(least.sum(axis=1), dtype=np.float64)


def least_stays(stay: Floats) -> Floats:
    """Least stay per step and slot over the ranks that have the step; NaN where it is not known of all of them."""
    has_step = np.asarray(np.isfinite(stay).any(axis=2))
    missing = (np.isnan(stay) & has_step[:, :, None]).any(axis=0)
    least = np.where(np.isfinite(stay), stay, np.inf).min(axis=0)
    return np.where(missing | ~np.isfinite(least), np.nan, least)
