"""Steps of all ranks as matrices: the columns are the steps of one reference rank, the same iteration of the job in every row.

A rank's step belongs to the column that began nearest to it in time, within three quarters of a usual step. Windows begin at different
times and clocks differ: times are compared in Unix time, each host's moved by what align.py finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from rankscope.diagnose.fleet.clocks.align import STEPS_MOST, Clocks, align, clock_notes
from rankscope.diagnose.fleet.labels import floats, ints
from rankscope.diagnose.fleet.model import Steps
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.probes.arrays import Bools, Floats, Ints

_NEAR = 0.75  # of a usual step
_BLOCK = 1 << 20  # steps that are worked on at once: what is made of them on the way is megabytes
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
    keep = np.ones(len(rows), dtype=np.bool_)
    for first in range(0, len(rows), _BLOCK):
        keep[first : first + _BLOCK] = _sane(table.slice(first, _BLOCK), window_s)
    absurd = int(((rows >= 0) & ~keep).sum())
    if absurd:
        notes.append(Note(NoteCode.STEPS_IMPOSSIBLE, f"{absurd} steps had impossible durations and were left out"))
    return np.where(keep, rows, -1) if absurd else rows


def columns_of(table: pa.Table, rows: Ints, hosts: Hosts, notes: list[Note]) -> Columns:
    """The iterations of the job, as its reference rank has them."""
    known = rows >= 0
    if not known.any():
        return Columns.none(hosts)
    host = hosts.of_rank
    seconds = floats(table, "seconds")
    step_s = float(np.median(seconds if known.all() else seconds[known]))
    counts = np.bincount(rows + 1, minlength=len(host) + 1)[1:]
    reference = _reference(counts, notes)
    added = hosts.begins_s - hosts.begins_s[host[reference]]
    shown = np.zeros(len(counts) + 1, dtype=np.bool_)  # the last one: of steps of nobody
    shown[_longest(counts, host, reference)] = True
    mine = np.flatnonzero(shown[rows])
    row = rows[mine]
    start = floats(table, "start_s")[mine] + added[host[row]]
    if len(hosts.names) > 1:
        clocks = _clocks(row, reference, host, start + seconds[mine], step_s)
        notes += clock_notes(hosts.names, clocks)
        added = added + clocks.offset_s
        start[row == reference] += clocks.offset_s[host[reference]]
    return Columns(np.sort(start[row == reference]), added, _NEAR * step_s)


def filled(table: pa.Table, rows: Ints, hosts: Hosts, columns: Columns, names: Sequence[str] = COLUMNS) -> Steps:
    """The matrices; what is not named is left empty."""
    grid, ranks = columns.grid_s, len(hosts.of_rank)
    if not len(grid) or not (rows >= 0).any():
        return Steps(grid[:0], *(np.empty((ranks, 0)) for _ in COLUMNS))
    matrices = {
        name: np.full((ranks, len(grid)), np.nan) if name in names else np.empty((ranks, 0)) for name in COLUMNS
    }
    number = np.full((ranks, len(grid)), -1, dtype=np.int64) if "step" in table.column_names else None
    for keep, own_number in _blocks(rows):
        part = table.slice(int(keep[0]), int(keep[-1] - keep[0]) + 1)
        inside, row = keep - keep[0], rows[keep]
        start = floats(part, "start_s")[inside]
        start += columns.added_s[hosts.of_rank[row]]
        cell = _nearest(grid, start)
        away = np.abs(start - grid[cell])
        near = np.flatnonzero(away <= columns.near_s)
        if np.bincount(own_number[near] * len(grid) + cell[near]).max(initial=0) > 1:
            near = near[np.argsort(-away[near], kind="stable")]  # of two for one column the nearer is written last
        at, chosen = (row[near], cell[near]), inside[near]
        for name in names:
            matrices[name][at] = np.nan_to_num(floats(part, name)[chosen])
        if number is not None:
            number[at] = ints(part, "step")[chosen]
    return Steps(grid, *matrices.values(), number=number)


def _blocks(rows: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Which rows of the table are worked on together, and the number of each one's rank among these; all steps of a rank in one block."""
    keep = np.flatnonzero(rows >= 0)
    row = rows[keep]
    begins = np.concatenate(([0], np.flatnonzero(row[1:] != row[:-1]) + 1))
    if np.bincount(row[begins]).max() > 1:  # a rank's steps lie in several places
        yield keep, row
        return
    cuts = [0]
    while cuts[-1] < len(keep):
        after = np.searchsorted(begins, cuts[-1] + _BLOCK)
        cuts.append(int(begins[after]) if after < len(begins) else len(keep))
    for first, last in pairwise(cuts):
        mine = row[first:last]
        yield keep[first:last], np.concatenate(([0], np.cumsum(mine[1:] != mine[:-1])))


def _sane(table: pa.Table, window_s: float) -> Bools:
    """Which rows have durations that can be."""
    start, length, own, wait = (floats(table, name) for name in ("start_s", "seconds", "own_s", "wait_s"))
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


def _longest(counts: Ints, host: Ints, reference: int) -> Ints:
    """Of each host the rank with most steps; of the reference rank's host this."""
    longest = np.zeros(int(host.max()) + 1, dtype=np.int64)
    order = np.argsort(counts, kind="stable")
    longest[host[order]] = order  # the last one written has most steps
    longest[host[reference]] = reference
    return longest


def _clocks(row: Ints, reference: int, host: Ints, ends: Floats, step_s: float) -> Clocks:
    """Every host's clock against the reference rank's, by the ends of the steps of one rank of each.

    `row`, `ends`: one entry per step, its rank and its end; `host`: of each rank.
    """
    hosts = int(host.max()) + 1
    by_host = np.argsort(host[row], kind="stable")
    owner, ends = host[row[by_host]], ends[by_host]
    place = np.arange(len(owner)) - np.searchsorted(owner, np.arange(hosts))[owner]
    first = place < STEPS_MOST
    matrix = np.full((hosts, int(place[first].max(initial=-1)) + 1), np.nan)
    matrix[owner[first], place[first]] = ends[first]
    matrix.sort(axis=1)  # NaN last
    known = matrix[host[reference]]
    return align(known[np.isfinite(known)], matrix, step_s)


def _nearest(grid: Floats, start: Floats) -> Ints:
    """The column whose start is nearest, the earlier one of two that are equally near."""
    after = np.clip(np.searchsorted(grid, start), 1, max(len(grid) - 1, 1))
    before, after = after - 1, np.minimum(after, len(grid) - 1)
    return np.where(np.abs(start - grid[before]) <= np.abs(grid[after] - start), before, after)
