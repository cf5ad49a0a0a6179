"""Steps of all ranks as matrices: the columns are the steps of one reference rank, the same iteration of the job in every row.

A rank's step belongs to the column that began nearest to it in time, within three quarters of a usual step. Windows begin at different
times and clocks differ: times are compared in Unix time, each host's moved by what align.py finds.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rankscope.diagnose.fleet.align import STEPS_MOST, Clocks, align, clock_notes
from rankscope.diagnose.fleet.columns import floats, ints
from rankscope.diagnose.fleet.model import Steps
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Bools, Floats, Ints

_COLUMNS = ("seconds", "own_s", "wait_s", "io_s", "sched_s", "sync_s")
_NEAR = 0.75  # of a usual step


def read_steps(
    table: pa.Table, rows: Ints, ranks: int, window_s: float, begins_s: dict[str, float], notes: list[Note]
) -> Steps:
    """The steps of `ranks` ranks. `rows`: row in Ranks of every table row, -1 for others; `begins_s`: Unix time at which each
    host's window (column observed_on) begins.

    Notes are added on steps that were left out, and on clocks.
    """
    start, length = floats(table, "start_s"), floats(table, "seconds")
    keep = (rows >= 0) & _sane(table, start, length, window_s)
    absurd = int(((rows >= 0) & ~keep).sum())
    if absurd:
        notes.append(Note(NoteCode.STEPS_IMPOSSIBLE, f"{absurd} steps had impossible durations and were left out"))
    row, start, length = rows[keep], start[keep], length[keep]
    if len(row) == 0:
        return Steps(np.empty(0), *(np.empty((ranks, 0)) for _ in _COLUMNS))
    reference = _reference(row, ranks, notes)
    host, names = _hosts(table, keep)
    step_s = float(np.median(np.nan_to_num(length)))
    begins = np.array([begins_s[name] for name in names])
    start = start + (begins - begins[host[row == reference][0]])[host]
    if len(names) > 1:
        clocks = _clocks(row, reference, host, len(names), start, length)
        notes += clock_notes(names, clocks)
        start = start + clocks.offset_s[host]
    grid = np.sort(start[row == reference])
    cell = _nearest(grid, start)
    away = np.abs(start - grid[cell])
    near = np.flatnonzero(away <= _NEAR * step_s)
    if len(np.unique(row[near] * len(grid) + cell[near])) < len(near):
        near = near[np.argsort(-away[near], kind="stable")]  # of two for one column the nearer is written last
    at = row[near], cell[near]
    matrices = []
    for name in _COLUMNS:
        matrix = np.full((ranks, len(grid)), np.nan)
        matrix[at] = np.nan_to_num(floats(table, name)[keep][near])
        matrices.append(matrix)
    number = np.full((ranks, len(grid)), -1, dtype=np.int64)
    number[at] = ints(table, "step")[keep][near]
    return Steps(grid, *matrices, number=number)


def _sane(table: pa.Table, start: Floats, length: Floats, window_s: float) -> Bools:
    """Which rows have durations that can be."""
    own, wait = floats(table, "own_s"), floats(table, "wait_s")
    sane = np.isfinite(start) & np.isfinite(length) & (length > 0) & (length <= 2 * window_s)
    sane &= np.isfinite(own) & np.isfinite(wait) & (own >= 0) & (wait >= 0) & (own <= 2 * window_s)
    return np.asarray(sane)


def _reference(row: Ints, ranks: int, notes: list[Note]) -> int:
    """The first rank with the usual number of steps; a note where many have another number."""
    counts = np.bincount(row, minlength=ranks)
    usual = int(np.median(counts[counts > 0]))
    odd = int((np.abs(counts - usual) > max(2, 0.2 * usual)).sum())
    if odd:
        notes.append(Note(NoteCode.STEPS_DIFFER, f"{odd} ranks show another number of steps than the others ({usual})"))
    return int(np.argmin(np.where(counts > 0, np.abs(counts - usual), len(row))))


def _hosts(table: pa.Table, keep: Bools) -> tuple[Ints, tuple[str, ...]]:
    """Which observed host each row is of, and their names."""
    column = table["observed_on"].filter(pa.array(keep)).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    encoded = column.dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64), tuple(
        encoded.dictionary.to_pylist()
    )


def _clocks(row: Ints, reference: int, host: Ints, hosts: int, start: Floats, length: Floats) -> Clocks:
    """Every host's clock against the reference rank's, by the ends of the steps of its rank with most steps."""
    steps = np.bincount(row)
    most = np.full(hosts, -1, dtype=np.int64)
    order = np.argsort(steps[row], kind="stable")
    most[host[order]] = row[order]  # the last one written has most steps
    most[host[row == reference][0]] = reference
    mine = row == most[host]
    by_time = np.lexsort((start[mine], host[mine]))
    owner, ends = host[mine][by_time], (start + length)[mine][by_time]
    first = np.searchsorted(owner, np.arange(hosts))
    place = np.arange(len(owner)) - first[owner]
    shown = place < STEPS_MOST
    matrix = np.full((hosts, int(place[shown].max(initial=-1)) + 1), np.nan)
    matrix[owner[shown], place[shown]] = ends[shown]
    known = matrix[host[row == reference][0]]
    return align(np.sort(known[np.isfinite(known)]), matrix, float(np.median(length)))


def _nearest(grid: Floats, start: Floats) -> Ints:
    """The column whose start is nearest, the earlier one of two that are equally near."""
    after = np.clip(np.searchsorted(grid, start), 1, max(len(grid) - 1, 1))
    before, after = after - 1, np.minimum(after, len(grid) - 1)
    return np.where(np.abs(start - grid[before]) <= np.abs(grid[after] - start), before, after)
