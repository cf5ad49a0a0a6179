"""The stays of every collective of every step, out of the windows' table `collectives`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.fleet.model import Slots, Steps
from rankscope.probes.arrays import Floats, Ints

SLOTS_MOST = 64


_CELLS_MOST = 60_000_000


_AGREE = 0.15


_MOST_CELLS = 0.8


def read_slots(table: pa.Table, rows: Ints, steps: Steps) -> Slots | None:
    """The stays of a job from the table `collectives`; `rows`: row in Ranks of every table row, -1 for others.

    None where there are none, where ranks make different collectives, or where they are not the waiting of the steps.
    """
    if table.num_rows == 0 or steps.number is None or steps.count == 0:
        return None
    numbers = {name: pc.fill_null(table[name].cast(pa.int64()), -1).to_numpy() for name in ("step", "slot")}
    stay = np.asarray(pc.fill_null(table["stay_s"].cast(pa.float64()), np.nan).to_numpy(), dtype=np.float64)
    last = int(steps.number.max(initial=-1))
    keep = (rows >= 0) & (numbers["step"] >= 0) & (numbers["step"] <= last) & (numbers["slot"] >= 0)
    keep &= np.isfinite(stay) & (stay >= 0)
    if not keep.any() or steps.number.shape[0] * (last + 2) > _CELLS_MOST:
        return None
    rank, step, slot, stay = rows[keep], numbers["step"][keep], numbers["slot"][keep], stay[keep]
    ranks, columns = steps.number.shape
    width = int(
        np.median(np.bincount(np.unique(rank * (int(step.max()) + 1) + step, return_inverse=True)[1].reshape(-1)))
    )
    if not 1 <= width <= SLOTS_MOST or ranks * columns * width > _CELLS_MOST:
        return None
    # Column of each rank's step number: the numbers of one rank rise with the columns.
    column = np.full((ranks, int(step.max()) + 2), -1, dtype=np.int64)
    there = (steps.number >= 0) & (steps.number <= int(step.max()))
    owner, place = np.nonzero(there)
    column[owner, steps.number[there]] = place
    at = column[rank, step]
    inside = (at >= 0) & (slot < width)
    cube = np.full((ranks, columns, width), np.nan)
    cube[rank[inside], at[inside], slot[inside]] = stay[inside]
    many = np.zeros((ranks, columns), dtype=bool)
    many[rank[at >= 0][slot[at >= 0] >= width], at[at >= 0][slot[at >= 0] >= width]] = True
    cube[many] = np.nan  # other collectives than usual: which is which is not known
    ops = _operations(table, keep, slot, rank, width)
    return Slots(cube, ops) if ops and _is_the_waiting(cube, steps.wait_s) else None


def _operations(
    table: pa.Table, keep: np.ndarray[tuple[int], np.dtype[np.bool_]], slot: Ints, rank: Ints, width: int
) -> tuple[str, ...]:
    """The operation in each slot; () where ranks differ."""
    column = pc.fill_null(table["op"].cast(pa.string()), "").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    encoded = column.dictionary_encode()
    code = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)[keep]
    names = encoded.dictionary.to_pylist()
    count = np.zeros((width, len(names)), dtype=np.int64)
    inside = slot < width
    np.add.at(count, (slot[inside], code[inside]), 1)
    best = count.argmax(axis=1)
    if (count.max(axis=1) < 0.9 * np.maximum(count.sum(axis=1), 1)).any():
        return ()
    return tuple(str(names[index]) for index in best)


def _is_the_waiting(cube: Floats, wait: Floats) -> bool:
    total = cube.sum(axis=2)
    known = np.isfinite(total) & np.isfinite(wait)
    if known.sum() < _MOST_CELLS * np.isfinite(wait).sum():
        return False
    off = np.abs(total[known] - wait[known])
    return bool(np.mean(off <= _AGREE * np.maximum(wait[known], total[known]) + 0.002) >= _MOST_CELLS)


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
