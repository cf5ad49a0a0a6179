"""Steps of all ranks as matrices: the columns are the steps of one reference rank, the same iteration of the job in every row.

A rank's step belongs to the column that began nearest to it in time, within three quarters of a usual step. Windows begin at different
times and clocks differ: times are compared in Unix time, each host's moved by what align.py finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from rankscope.diagnose.fleet.align import STEPS_MOST, Clocks, align, clock_notes
from rankscope.diagnose.fleet.labels import floats, ints
from rankscope.diagnose.fleet.model import Steps
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Bools, Floats, Ints

_COLUMNS = ("seconds", "own_s", "wait_s", "io_s", "sched_s", "sync_s")
_NEAR = 0.75  # of a usual step


def read_steps(
    table: pa.Table,
    rows: Ints,
    observed_on: Sequence[str],
    begins_s: Mapping[str, float],
    window_s: float,
    notes: list[Note],
) -> Steps:
    """The steps of all ranks. `rows`: row in Ranks of every table row, -1 for others; `observed_on`: the host of each rank;
    `begins_s`: Unix time at which the window of each host begins.

    Notes are added on steps that were left out, and on clocks.
    """
    start, length = floats(table, "start_s"), floats(table, "seconds")
    keep = (rows >= 0) & _sane(table, start, length, window_s)
    absurd = int(((rows >= 0) & ~keep).sum())
    if absurd:
        notes.append(Note(NoteCode.STEPS_IMPOSSIBLE, f"{absurd} steps had impossible durations and were left out"))
    row, start, length = rows[keep], start[keep], length[keep]
    ranks = len(observed_on)
    if len(row) == 0:
        return Steps(np.empty(0), *(np.empty((ranks, 0)) for _ in _COLUMNS))
    counts = np.bincount(row, minlength=ranks)
    reference = _reference(counts, notes)
    names, host = np.unique(np.array(observed_on, dtype=str), return_inverse=True)
    host = host.reshape(-1)
    begins = np.array([begins_s[name] for name in names.tolist()])
    start = start + (begins - begins[host[reference]])[host[row]]
    if len(names) > 1:
        clocks = _clocks(row, counts, reference, host, start + length, float(np.median(length)))
        notes += clock_notes(tuple(names.tolist()), clocks)
        start = start + clocks.offset_s[host[row]]
    grid = np.sort(start[row == reference])
    cell = _nearest(grid, start)
    away = np.abs(start - grid[cell])
    near = np.flatnonzero(away <= _NEAR * float(np.median(length)))
    if np.bincount(row[near] * len(grid) + cell[near]).max(initial=0) > 1:
        near = near[np.argsort(-away[near], kind="stable")]  # of two for one column the nearer is written last
    return _filled(table, np.flatnonzero(keep)[near], (row[near], cell[near]), ranks, grid)


def _filled(table: pa.Table, chosen: Ints, at: tuple[Ints, Ints], ranks: int, grid: Floats) -> Steps:
    """The matrices, from the chosen rows of the table; `at`: rank and column of each."""
    matrices = []
    for name in _COLUMNS:
        matrix = np.full((ranks, len(grid)), np.nan)
        matrix[at] = np.nan_to_num(floats(table, name)[chosen])
        matrices.append(matrix)
    number = np.full((ranks, len(grid)), -1, dtype=np.int64)
    number[at] = ints(table, "step")[chosen]
    return Steps(grid, *matrices, number=number)


def _sane(table: pa.Table, start: Floats, length: Floats, window_s: float) -> Bools:
    """Which rows have durations that can be."""
    own, wait = floats(table, "own_s"), floats(table, "wait_s")
    sane = np.isfinite(start) & np.isfinite(length) & (length > 0) & (length <= 2 * window_s)
    sane &= np.isfinite(own) & np.isfinite(wait) & (own >= 0) & (wait >= 0) & (own <= 2 * window_s)
    return np.asarray(sane)


def _reference(counts: Ints, notes: list[Note]) -> int:
    """The first rank with the usual number of steps; a note where many have another number."""
    usual = int(np.median(counts[counts > 0]))
    odd = int((np.abs(counts - usual) > max(2, 0.2 * usual)).sum())
    if odd:
        notes.append(Note(NoteCode.STEPS_DIFFER, f"{odd} ranks show another number of steps than the others ({usual})"))
    return int(np.argmin(np.where(counts > 0, np.abs(counts - usual), int(counts.sum()))))


def _clocks(row: Ints, counts: Ints, reference: int, host: Ints, ends: Floats, step_s: float) -> Clocks:
    """Every host's clock against the reference rank's, by the ends of the steps of its rank with most steps.

    `row`, `ends`: one entry per step, its rank and its end; `counts`, `host`: one entry per rank.
    """
    hosts = int(host.max()) + 1
    order = np.argsort(counts, kind="stable")
    longest = np.zeros(hosts, dtype=np.int64)
    longest[host[order]] = order  # the last one written has most steps
    longest[host[reference]] = reference
    shown = np.zeros(len(counts), dtype=np.bool_)
    shown[longest] = True
    mine = np.flatnonzero(shown[row])
    owner, ends = host[row[mine]], ends[mine]
    by_time = np.lexsort((ends, owner))
    owner, ends = owner[by_time], ends[by_time]
    place = np.arange(len(owner)) - np.searchsorted(owner, np.arange(hosts))[owner]
    first = place < STEPS_MOST
    matrix = np.full((hosts, int(place[first].max(initial=-1)) + 1), np.nan)
    matrix[owner[first], place[first]] = ends[first]
    known = matrix[host[reference]]
    return align(known[np.isfinite(known)], matrix, step_s)


def _nearest(grid: Floats, start: Floats) -> Ints:
    """The column whose start is nearest, the earlier one of two that are equally near."""
    after = np.clip(np.searchsorted(grid, start), 1, max(len(grid) - 1, 1))
    before, after = after - 1, np.minimum(after, len(grid) - 1)
    return np.where(np.abs(start - grid[before]) <= np.abs(grid[after] - start), before, after)
