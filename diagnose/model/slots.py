"""Stays in the collectives of a step, one by one: the k-th collective of a step (its slot) is the same one on all ranks.

stay(r,s,k) = wait + transfer.  Collectives end together, so per slot the least stay is the transfer and the rest is waiting:

transfer(s)  = Σ over k of min over r of stay(r,s,k)           <= least sum of stays: of two ranks that wait for each other in turn,
                                                                  each in another slot, the sums hide the waiting
gain         = Σ over k of (min over r of stay'(r,s,k) - min over r of stay(r,s,k)),  stay' the suspects' raised to their innocent
               peers' median: each slot is as much shorter as its last rank comes sooner
late(r,k)    = trimmed mean over s of (median over peers of stay(·,s,k) - stay(r,s,k))   how long the others wait for r there

Used only where the stays are the waiting that the steps show: the sums agree with the time in collectives within 15 % on most ranks
and steps. Collectives that overlap the rank's own work (buckets reduced during the backward pass) do not; then the steps' sums count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.fleet.model import Floats, Ints, Pipelines, Slots, Steps
from rankscope.diagnose.model import waiting
from rankscope.diagnose.model.excess import nan_median, trimmed_mean
from rankscope.diagnose.verdict.contract import Evidence

SLOTS_MOST = 64
_CELLS_MOST = 60_000_000
_AGREE = 0.15
_MOST_CELLS = 0.8


@dataclass(frozen=True, slots=True)
class Late:
    """The slot at which the others wait longest for a rank."""

    slot: int
    of: int
    op: str
    late_s: float


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
    least = _least(slots.stay_s)
    return np.asarray(least.sum(axis=1), dtype=np.float64)


def least_stay(wait: Floats, pipelines: Pipelines | None, stays: Slots | None) -> Floats:
    """Per step, the transfer by what is known best: seconds in collectives in which nobody waits for anybody."""
    if pipelines is not None:
        return pipelines.transfer_s
    least = waiting.transfer(wait)
    return least if stays is None else np.fmin(least, transfer(stays))


def gain(slots: Slots, roles: Ints, suspects: Ints) -> float:
    """Seconds per step regained if the suspects (rows) came to every collective when their innocent peers do."""
    if len(suspects) == 0 or len(suspects) >= len(roles):
        return 0.0
    stay = slots.stay_s
    better = stay.copy()
    for role in np.unique(roles[suspects]):
        mine = suspects[roles[suspects] == role]
        innocent = np.setdiff1d(np.flatnonzero(roles == role), mine)
        if len(innocent):
            better[mine] = np.fmax(stay[mine], nan_median(stay[innocent], 0)[None])
    better[np.isnan(stay)] = np.nan
    shorter = (_least(better) - _least(stay)).sum(axis=1)
    return max(float(np.nan_to_num(trimmed_mean(shorter[None, :])[0])), 0.0)


def latest(slots: Slots, roles: Ints, row: int) -> Late | None:
    """Where in the step the others wait for a rank; None where they do nowhere."""
    peers = np.setdiff1d(np.flatnonzero(roles == roles[row]), [row])
    if len(peers) == 0:
        return None
    late = trimmed_mean((nan_median(slots.stay_s[peers], 0) - slots.stay_s[row]).T)
    if not np.isfinite(late).any():
        return None
    slot = int(np.nanargmax(late))
    if not late[slot] > 0:
        return None
    return Late(slot, len(slots.ops), slots.ops[slot], float(late[slot]))


def late_evidence(slots: Slots | None, roles: Ints, row: int) -> tuple[Evidence, ...]:
    """Evidence for a suspect: at which of several collectives the others wait for it."""
    if slots is None or len(slots.ops) < 2 or (late := latest(slots, roles, row)) is None:
        return ()
    measure = f"the others wait for it at collective {late.slot + 1} of {late.of} ({late.op})"
    return (Evidence("calls", measure, late.late_s, None, "s/step"),)


def _least(stay: Floats) -> Floats:
    """Least stay per step and slot over the ranks that have the step; NaN where it is not known of all of them."""
    has_step = np.asarray(np.isfinite(stay).any(axis=2))
    missing = (np.isnan(stay) & has_step[:, :, None]).any(axis=0)
    least = np.where(np.isfinite(stay), stay, np.inf).min(axis=0)
    return np.where(missing | ~np.isfinite(least), np.nan, least)
