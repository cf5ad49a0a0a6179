"""Stays in single collectives: rows of the window table `collectives`, and matrices of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rankscope.diagnose.infer.fleet.labels import floats, ints, labels
from rankscope.diagnose.infer.fleet.model import Steps
from rankscope.diagnose.stats.robust import median
from rankscope.probes.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class StayRows:
    """Rows of the table, as columns: each is the stay of a rank in one collective of one step."""

    rank: Ints
    step: Ints  # step number in the rank's window
    slot: Ints
    sequence: Ints  # index of the collective in the rank's window
    stay_s: Floats
    op: Ints  # index in `names`
    names: tuple[str, ...]


def stay_rows(table: pa.Table, rows: Ints, last_step: int) -> StayRows:
    """Select the valid rows: of a rank of the job, in an existing step, with a finite stay >= 0.

    `rows`: row in Ranks by table row, -1 for other jobs; `last_step`: largest step number of any
    rank.
    """
    step, slot, stay, op = ints(table, "step"), ints(table, "slot"), floats(table, "stay_s"), labels(table, "op")
    kept: Bools = (rows >= 0) & (step >= 0) & (step <= last_step) & (slot >= 0) & np.isfinite(stay) & (stay >= 0)
    names = tuple(map(str, op.values))
    return StayRows(
        rows[kept], step[kept], slot[kept], ints(table, "sequence")[kept], stay[kept], op.codes[kept], names
    )


def made_each(table: pa.Table, rows: Ints, steps: Steps) -> float:
    """Return the median over ranks of the number of collectives per step, at least 1; 1 if unknown.

    `rows`: row in Ranks by table row, -1 for others. Collectives that overlap count as one:

    = 1 + (made - 1) · min(Σ waiting / Σ stays, 1)
    """
    stay_s = floats(table, "stay_s")
    counted = (rows >= 0) & np.isfinite(stay_s) & (stay_s >= 0)
    ranks = len(steps.seconds)
    made = np.bincount(rows[counted], minlength=ranks) / steps.of_each
    stays_s = np.bincount(rows[counted], stay_s[counted], ranks)
    waits_s = np.where(np.isfinite(steps.wait_s), steps.wait_s, 0.0).sum(axis=1)
    apart = np.divide(waits_s, stays_s, out=np.ones(ranks), where=stays_s > waits_s)
    each = 1 + (made - 1) * apart
    return max(median(each[made > 0]), 1.0) if made.any() else 1.0


def columns_of(stays: StayRows, number: Ints) -> Ints:
    """Return the column of each row's step in the step matrices, -1 if it has none.

    `number`: ranks x columns, step number in the rank's window.
    """
    last = int(stays.step.max())
    column = np.full((len(number), last + 1), -1, dtype=np.int64)  # by rank and step number
    owner, place = np.nonzero((number >= 0) & (number <= last))
    column[owner, number[owner, place]] = place
    return np.asarray(column[stays.rank, stays.step], dtype=np.int64)


def least_stays(stay: Floats) -> Floats:
    """Return the least stay over ranks by step and slot (`stay`: ranks x steps x slots).

    Only ranks that have the step count; NaN where one of them has no known stay.
    """
    has_step = np.asarray(np.isfinite(stay).any(axis=2))
    missing = (np.isnan(stay) & has_step[:, :, None]).any(axis=0)
    least = np.where(np.isfinite(stay), stay, np.inf).min(axis=0)
    return np.where(missing | ~np.isfinite(least), np.nan, least)
