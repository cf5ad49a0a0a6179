"""Steps of all ranks as matrices: the columns are the steps of one reference rank, the same iteration of the job in every row.

A rank's step belongs to the column that began nearest to it in time, within three quarters of a usual step. Windows begin at different
times and clocks differ: times are compared in Unix time, each host's moved by what align.py finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rankscope.diagnose.fleet.clocks.align import STEPS_MOST, Clocks, align, clock_notes
from rankscope.diagnose.fleet.labels import floats, ints
from rankscope.diagnose.fleet.model import Steps
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Bools, Floats, Ints

_NEAR = 0.75  # of a usual step
COLUMNS = ("seconds", "own_s", "wait_s", "io_s", "sched_s", "sync_s")


@dataclass(frozen=True, slots=True)
class Hosts:
    """Which host each rank is on, and the Unix time at which the window of each begins."""

    names: tuple[str, ...]
    of_rank: Ints
    begins_s: Floats


@dataclass(frozen=True, slots=True)
class Columns:
    """When the steps of the reference rank begin, and what is to be added to the times of each host to compare them with that."""

    grid_s: Floats
    added_s: Floats
    near_s: float  # a step belongs to no column that is farther away

    @classmethod
    def none(cls, hosts: Hosts) -> Columns:
        """Where there are no steps."""
        return cls(np.empty(0), np.zeros(len(hosts.names)), 0.0)


def read_steps(table: pa.Table, rows: Ints, hosts: Hosts, window_s: float, notes: list[Note]) -> Steps:
    """The steps of all ranks. `rows`: row in Ranks of every table row, -1 for others.

    Notes are added on steps that were left out, and on clocks.
    """
    rows = possible(table, rows, window_s, notes)
    return filled(table, rows, hosts, columns_of(table, rows, hosts, notes))


def possible(table: pa.Table, rows: Ints, window_s: float, notes: list[Note]) -> Ints:
    """`rows` with -1 for steps whose durations cannot be."""
    keep = _sane(table, floats(table, "start_s"), floats(table, "seconds"), window_s)
    absurd = int(((rows >= 0) & ~keep).sum())
    if absurd:
        notes.append(Note(NoteCode.STEPS_IMPOSSIBLE, f"{absurd} steps had impossible durations and were left out"))
    return np.where(keep, rows, -1)


def columns_of(table: pa.Table, rows: Ints, hosts: Hosts, notes: list[Note]) -> Columns:
    """The iterations of the job, as its reference rank has them."""
    keep = np.flatnonzero(rows >= 0)
    if not len(keep):
        return Columns.none(hosts)
    row, start, length = rows[keep], floats(table, "start_s")[keep], floats(table, "seconds")[keep]
    host = hosts.of_rank
    counts = np.bincount(row, minlength=len(host))
    reference = _reference(counts, notes)
    step_s = float(np.median(length))
    added = hosts.begins_s - hosts.begins_s[host[reference]]
    start += added[host[row]]
    if len(hosts.names) > 1:
        clocks = _clocks(row, counts, reference, host, start + length, step_s)
        notes += clock_notes(hosts.names, clocks)
        added = added + clocks.offset_s
        start[row == reference] += clocks.offset_s[host[reference]]
    return Columns(np.sort(start[row == reference]), added, _NEAR * step_s)


def filled(table: pa.Table, rows: Ints, hosts: Hosts, columns: Columns, names: Sequence[str] = COLUMNS) -> Steps:
    """The matrices; what is not named is left empty."""
    keep = np.flatnonzero(rows >= 0)
    grid, ranks = columns.grid_s, len(hosts.of_rank)
    if not len(grid):
        return Steps(np.empty(0), *(np.empty((ranks, 0)) for _ in COLUMNS))
    row = rows[keep]
    start = floats(table, "start_s")[keep]
    start += columns.added_s[hosts.of_rank[row]]
    cell = _nearest(grid, start)
    away = np.abs(start - grid[cell])
    near = np.flatnonzero(away <= columns.near_s)
    if np.bincount(row[near] * len(grid) + cell[near]).max(initial=0) > 1:
        near = near[np.argsort(-away[near], kind="stable")]  # of two for one column the nearer is written last
    at, chosen = (row[near], cell[near]), keep[near]
    matrices = []
    for name in COLUMNS:
        matrix = np.full((ranks, len(grid)), np.nan) if name in names else np.empty((ranks, 0))
        if name in names:
            matrix[at] = np.nan_to_num(floats(table, name)[chosen])
        matrices.append(matrix)
    if "step" not in table.column_names:
        return Steps(grid, *matrices)
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
        who = "1 rank shows" if odd == 1 else f"{odd} ranks show"
        notes.append(Note(NoteCode.STEPS_DIFFER, f"{who} another number of steps than the others ({usual})"))
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
