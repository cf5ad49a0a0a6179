"""Align the collectives of all ranks by their order in the window, wherever each rank's own steps
begin.

The k-th collective of a rank is the k-th of all others, even if its step begins at another
collective. Windows of hosts do not begin together, and a running collective may be the first of one
rank only: a rank is shifted by at most one position, to where most operations equal those of the
reference rank (the one with most collectives). A collective belongs to the step in which most ranks
have it; steps with an unusual number of collectives are left out.

Stays count as far as they can be waiting: Σ over k of (stay(r,s,k) - least stay of any rank in k)
<= waiting of r in s, within 10 % and 2 ms. Stays may include run-queue waits and own work that all
ranks share: these are in the least stay. Collectives made by several threads at once, or not
awaited before the next, exceed all waiting: then only the part Σ waiting / Σ excess stays counts,
for lost time and not as evidence."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.collectives.stays import StayRows, columns_of, least_stays
from rankscope.diagnose.infer.fleet.model import Slots, Steps
from rankscope.diagnose.stats.robust import nan_median
from rankscope.probes.base.arrays import Floats, Ints

_SHIFTS = (0, -1, 1)  # on a tie the first


def in_sequence(stays: StayRows, steps: Steps) -> Slots | None:
    """Build `Slots` by the order of collectives.

    None where ranks differ in them, or stays are not waiting.
    """
    if steps.number is None or not len(stays.rank):
        return None
    ranks, columns = steps.number.shape
    length = int(stays.sequence.max()) + 1
    if ranks < 2 or stays.sequence.min() < 0 or ranks * length > budgets.CELLS_MOST:
        return None
    at = stays.rank, stays.sequence
    op, column, stay = (np.full((ranks, length), empty) for empty in (-1, -1, np.nan))
    op[at], column[at], stay[at] = stays.op, columns_of(stays, steps.number), stays.stay_s
    reference = int(np.argmax((op >= 0).sum(axis=1)))
    moved = np.stack([_moved(op, shift) for shift in _SHIFTS])
    both = (moved >= 0) & (op[reference] >= 0)
    alike = (both & (moved == op[reference])).sum(axis=2) / np.maximum(both.sum(axis=2), 1)
    if (alike.max(axis=0) < limits.NEARLY_ALL).any():
        return None
    source = np.arange(length) - np.array(_SHIFTS)[alike.argmax(axis=0)][:, None]
    inside = (source >= 0) & (source < length)
    source = np.clip(source, 0, length - 1)
    op, column, stay = (
        np.where(inside, np.take_along_axis(matrix, source, axis=1), empty)
        for matrix, empty in ((op, -1), (column, -1), (stay, np.nan))
    )
    whole = np.flatnonzero((op >= 0).all(axis=0) & (op == op[reference]).all(axis=0) & (column >= 0).any(axis=0))
    where = nan_median(np.where(column >= 0, column, np.nan)[:, whole], 0)
    cube, slots = _cube(stay[:, whole], np.floor(where).astype(np.int64), columns)
    if not len(slots) or (part := _part_waited(cube, steps.wait_s)) <= 0:
        return None
    made = op[reference, whole]
    usual = [int(np.bincount(made[slots == slot]).argmax()) for slot in range(cube.shape[2])]
    return Slots(part * cube, tuple(stays.names[code] for code in usual), whole=False, part=part)


def _moved(values: Ints, shift: int) -> Ints:
    """Shift each row by `shift` positions; -1 fills the gap."""
    result = np.full_like(values, -1)
    result[:, max(shift, 0) : values.shape[1] + min(shift, 0)] = values[
        :, max(-shift, 0) : values.shape[1] - max(shift, 0)
    ]
    return result


def _cube(stay: Floats, column: Ints, columns: int) -> tuple[Floats, Ints]:
    """Arrange stays as ranks x columns x slots, and number the slot of each collective (-1: left out).

    `stay`: ranks x collectives; `column`: step column of each collective. Columns with an unusual
    number of collectives are left out. Returns no slots if there are none or too many.
    """
    nothing = np.empty((len(stay), columns, 0)), np.empty(0, dtype=np.int64)
    if not len(column):
        return nothing
    column = np.maximum.accumulate(column)
    counts = np.bincount(column, minlength=columns)
    width = int(np.median(counts[counts > 0]))
    fits = counts[column] == width
    if not fits.any() or width > budgets.EXAMINED or counts.size * len(stay) * width > budgets.CELLS_MOST:
        return nothing
    slot = np.where(fits, np.arange(len(column)) - np.searchsorted(column, column), -1)
    cube = np.full((len(stay), columns, width), np.nan)
    cube[:, column[fits], slot[fits]] = stay[:, fits]
    return cube, slot


def _part_waited(cube: Floats, wait: Floats) -> float:
    """Share (0..1) of the excess stays, ranks x steps x slots, that is waiting (`wait`: ranks x steps).

    1 if the excess is within the wait in nearly all steps; 0 if too few steps are known.
    """
    waiting = (cube - least_stays(cube)[None]).sum(axis=2)
    known = np.isfinite(waiting) & np.isfinite(wait)
    if known.any(axis=0).sum() < limits.STEPS_LEAST:
        return 0.0
    if np.mean(waiting[known] <= (1 + limits.FEW) * wait[known] + 0.002) >= limits.NEARLY_ALL:
        return 1.0
    return min(float(wait[known].sum() / waiting[known].sum()), 1.0)
