"""Steps of all ranks as matrices: a column is one iteration of the job, a step of one reference
rank.

A rank's step belongs to the column whose start is nearest in time, within three quarters of a usual
step. Windows begin at different times and clocks differ: times are compared in Unix time, corrected
by host with the offsets from align.py.

`Grid` holds all that is needed of the reference rank: with it, workers of a large fleet can put the
steps of any hosts in columns independently (large/placed.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.clocks.align import STEPS_MOST, Clocks, align, clock_notes
from rankscope.diagnose.infer.fleet.labels import floats, ints
from rankscope.diagnose.infer.fleet.model import Steps
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import median
from rankscope.probes.base.arrays import Bools, Floats, Ints
from rankscope.probes.base.errors import BadData

# Waiting for servers of the run counts as waiting for others, not as the rank's own time.
_MOVED = {"own_s": -1.0, "sync_s": -1.0, "wait_s": 1.0}
COLUMNS = ("seconds", "own_s", "wait_s", "io_s", "sched_s", "sync_s")


class NoRoomForSteps(BadData):
    """The matrices of a job would be far larger than the steps that were read."""

    help = "Record a shorter window (--window): with fewer steps there is room for more ranks."


@dataclass(frozen=True, slots=True)
class Hosts:
    """Host index by rank, and the Unix time at which the window of each host begins."""

    names: tuple[str, ...]
    of_rank: Ints
    begins_s: Floats


@dataclass(frozen=True, slots=True)
class Grid:
    """The iterations of a job, as steps of its reference rank.

    `origin_s`: Unix time at which that rank's window begins, by its host's clock; `begins_s`,
    `ends_s`: of its steps, relative to that, rising; `step_s`: usual step of ranks with a usual
    number of steps; `window_s`: usual window.
    """

    rank: int
    origin_s: float
    begins_s: Floats
    ends_s: Floats
    step_s: float
    window_s: float


@dataclass(frozen=True, slots=True)
class Columns:
    """The starts of the reference rank's steps, with which the steps of other ranks are compared.

    `added_s`: by host, the seconds to add to its times first; `step_s`: usual step.
    """

    grid_s: Floats
    added_s: Floats
    step_s: float

    @property
    def near_s(self) -> float:
        """Largest distance in seconds between a step and its column."""
        return (1 - limits.LARGE_SHARE) * self.step_s

    @classmethod
    def of(cls, grid: Grid | None, hosts: Hosts, clocks: Clocks) -> Columns:
        """Build from the grid and clock offsets. `grid`: None where there are no steps."""
        if grid is None:
            return cls(np.empty(0), np.zeros(len(hosts.names)), 0.0)
        return cls(grid.begins_s, hosts.begins_s - grid.origin_s + clocks.offset_s, grid.step_s)


def read_steps(table: pa.Table, rows: Ints, numbers: Ints, hosts: Hosts, window_s: float, notes: list[Note]) -> Steps:
    """Build the step matrices of all ranks.

    `rows`: row in Ranks by table row, -1 for others; `numbers`: of the ranks. Adds notes on steps
    that were left out, and on clocks.
    """
    rows = possible(table, rows, window_s, notes)
    counts = steps_of_each(rows, len(numbers))
    note_counts(counts, notes)
    grid = grid_of(table, rows, numbers, hosts, window_s)
    clocks = clocks_against(grid, table, rows, numbers, hosts)
    notes += clock_notes(hosts.names, clocks)
    return filled(table, rows, hosts, Columns.of(grid, hosts, clocks))


def possible(table: pa.Table, rows: Ints, window_s: float, notes: list[Note]) -> Ints:
    """Set `rows` to -1 for steps with impossible durations, and add a note on them."""
    keep = can_be(table, window_s)
    note_absurd(int(((rows >= 0) & ~keep).sum()), notes)
    return np.where(keep, rows, -1)


def can_be(table: pa.Table, window_s: float) -> Bools:
    """Mark table rows whose durations are possible; works in blocks, to save memory."""
    keep = np.ones(table.num_rows, dtype=np.bool_)
    for first in range(0, len(keep), budgets.BLOCK):
        keep[first : first + budgets.BLOCK] = _sane(table.slice(first, budgets.BLOCK), window_s)
    return keep


def note_absurd(count: int, notes: list[Note]) -> None:
    """Add a note on `count` steps left out as impossible, if any."""
    if count:
        notes.append(Note(NoteCode.STEPS_IMPOSSIBLE, f"{count} steps had impossible durations and were left out"))


def steps_of_each(rows: Ints, ranks: int) -> Ints:
    """Number of steps by rank; `rows` of -1 are ignored."""
    return np.asarray(np.bincount(rows + 1, minlength=ranks + 1)[1:], dtype=np.int64)


def note_counts(counts: Ints, notes: list[Note]) -> None:
    """Add a note if some ranks show an unusual number of steps."""
    if not counts.any():
        return
    odd = int((~_as_usual(counts)).sum())
    if odd:
        who = "1 rank shows" if odd == 1 else f"{odd} ranks show"
        notes.append(Note(NoteCode.STEPS_DIFFER, f"{who} another number of steps than the others ({_usual(counts)})"))


def grid_of(table: pa.Table, rows: Ints, numbers: Ints, hosts: Hosts, window_s: float) -> Grid | None:
    """Choose the reference rank and build the grid of its steps; None if there are no steps.

    `rows`: rank (row) of each row of `table`, -1: ignored; `numbers`: rank numbers by row. The
    reference is the first rank with a usual number of steps, among those whose windows begin when
    most do: steps of others outside its window cannot be compared.
    """
    known = rows >= 0
    if not known.any():
        return None
    counts = steps_of_each(rows, len(numbers))
    seconds = floats(table, "seconds")
    away = np.where(counts > 0, np.abs(counts - _usual(counts)), int(counts.sum()))
    alike = _as_usual(counts)
    begins_s = hosts.begins_s[hosts.of_rank]
    steps_later = np.abs(begins_s - median(begins_s)) // median(seconds[known])
    reference = int(np.lexsort((numbers, away, steps_later, ~alike))[0])
    mine = np.flatnonzero(rows == reference)
    alike[reference] = True
    usual = known & alike[rows]
    start = floats(table, "start_s")[mine]
    return Grid(
        rank=int(numbers[reference]),
        origin_s=float(hosts.begins_s[hosts.of_rank[reference]]),
        begins_s=np.sort(start),
        ends_s=np.sort((start + seconds[mine])[:STEPS_MOST]),
        step_s=median(seconds if usual.all() else seconds[usual]),
        window_s=window_s,
    )


def clocks_against(grid: Grid | None, table: pa.Table, rows: Ints, numbers: Ints, hosts: Hosts) -> Clocks:
    """Estimate each host's clock offset to the reference rank, from step ends of one rank per host.

    Uses the rank with most steps, or the reference rank itself on its host; 0 for hosts without
    steps. `rows`: rank (row) of each row of `table`, -1: ignored; `numbers`: rank numbers by row.
    """
    unknown = Clocks(np.zeros(len(hosts.names)), np.zeros(len(hosts.names), dtype=np.bool_))
    if grid is None or not (rows >= 0).any():
        return unknown
    host, added = hosts.of_rank, hosts.begins_s - grid.origin_s
    counts = steps_of_each(rows, len(numbers))
    longest = np.full(len(hosts.names), -1, dtype=np.int64)
    order = np.argsort(counts, kind="stable")
    longest[host[order]] = order  # the last write has most steps
    reference = np.flatnonzero((numbers == grid.rank) & (added[host] == 0))
    longest[host[reference]] = reference
    shown = np.zeros(len(numbers) + 1, dtype=np.bool_)  # index -1: steps of no rank
    shown[longest[longest >= 0]] = True
    mine = np.flatnonzero(shown[rows])
    owner = host[rows[mine]]
    ends = floats(table, "start_s")[mine] + floats(table, "seconds")[mine] + added[owner]
    by_host = np.argsort(owner, kind="stable")
    owner, ends = owner[by_host], ends[by_host]
    place = np.arange(len(owner)) - np.searchsorted(owner, np.arange(len(longest)))[owner]
    first = place < STEPS_MOST
    matrix = np.full((len(longest), int(place[first].max(initial=-1)) + 1), np.nan)
    matrix[owner[first], place[first]] = ends[first]
    matrix.sort(axis=1)  # NaN last
    return align(grid.ends_s, matrix, grid.step_s)


def filled(table: pa.Table, rows: Ints, hosts: Hosts, columns: Columns, names: Sequence[str] = COLUMNS) -> Steps:
    """Fill the step matrices: each step goes to the nearest column; too distant ones are left out.

    `rows`: rank (row) of each row of `table`, -1: ignored. Matrices not in `names` have no columns.
    """
    grid, ranks = columns.grid_s, len(hosts.of_rank)
    if not len(grid) or not (rows >= 0).any():
        return Steps(grid[:0], *(np.empty((ranks, 0)) for _ in COLUMNS))
    hold(ranks, len(grid), int((rows >= 0).sum()))
    matrices = {
        name: np.full((ranks, len(grid)), np.nan) if name in names else np.empty((ranks, 0)) for name in COLUMNS
    }
    asked_s: Floats | None = None
    number = np.full((ranks, len(grid)), -1, dtype=np.int64) if "step" in table.column_names else None
    for keep, own_number in _blocks(rows):
        part = table.slice(int(keep[0]), int(keep[-1] - keep[0]) + 1)
        inside, row = keep - keep[0], rows[keep]
        start = floats(part, "start_s")[inside]
        start += columns.added_s[hosts.of_rank[row]]
        cell = _nearest(grid, start)
        crowded = _crowded(grid, start, cell, own_number, columns.near_s)
        if crowded.any():
            _in_phase(start, cell, np.flatnonzero(crowded[own_number]), own_number, columns)
        away = np.abs(start - grid[cell])
        near = np.flatnonzero(away <= columns.near_s)
        if crowded.any():
            near = near[np.argsort(-away[near], kind="stable")]  # of two steps for one column the nearer wins
        at, chosen = (row[near], cell[near]), inside[near]
        asked = (
            np.nan_to_num(floats(part, "asked_s")[chosen]) if "asked_s" in part.column_names else np.zeros(len(near))
        )
        for name in names:
            matrices[name][at] = np.maximum(
                np.nan_to_num(floats(part, name)[chosen]) + _MOVED.get(name, 0.0) * asked, 0.0
            )
        if asked.any():
            asked_s = np.zeros((ranks, len(grid))) if asked_s is None else asked_s
            asked_s[at] = asked
        if number is not None:
            number[at] = ints(part, "step")[chosen]
    return Steps(grid, *matrices.values(), number=number, asked_s=asked_s)


def hold(ranks: int, columns: int, steps: int) -> None:
    """Raise NoRoomForSteps if the matrices would be far larger than the steps read."""
    if not has_room(ranks, columns, steps):
        raise NoRoomForSteps(
            f"{ranks} ranks are claimed and show {steps} steps in all, where one has {columns}: they cannot be compared"
        )


def has_room(ranks: int, columns: int, steps: int) -> bool:
    """Whether the matrices are not far larger than the steps that were read.

    A host may claim any number of ranks without steps, and each would get a full row.
    """
    return ranks * columns <= max(budgets.CELLS_MOST, budgets.EMPTY_MOST * steps)


def _crowded(grid: Floats, start: Floats, cell: Ints, number: Ints, near_s: float) -> Bools:
    """Mark ranks with two steps in one column.

    `grid`: start of each column; `start`, `cell`, `number`: start, nearest column and rank index of
    each step; `near_s`: largest distance that counts, seconds.
    """
    near = np.abs(start - grid[cell]) <= near_s
    places = (int(number.max(initial=-1)) + 1, len(grid))
    count = np.bincount(number[near] * len(grid) + cell[near], minlength=places[0] * places[1])
    return np.asarray((count > 1).reshape(places).any(axis=1), dtype=np.bool_)


def _in_phase(start: Floats, cell: Ints, those: Ints, number: Ints, columns: Columns) -> None:
    """Correct a rank's constant distance to the columns where this fills more columns.

    Changes arrays in place. Steps that begin half a step from the reference's fall sometimes into
    the column before, sometimes into the one after: columns would have two, or none. The distance
    is known modulo whole steps, like an angle:

    distance = step / 2π · angle of the mean over its steps of exp(2πi · (start - nearest column) /
    step)

    It is subtracted from `start` of the corrected ranks. `those`: indices of the steps to treat.
    """
    grid, mine = columns.grid_s, number[those]
    turn = np.exp(2j * np.pi * (start[those] - grid[cell[those]]) / columns.step_s)
    mean = np.bincount(mine, turn.real) + 1j * np.bincount(mine, turn.imag)
    moved = start[those] - np.angle(mean)[mine] * columns.step_s / (2 * np.pi)
    place = _nearest(grid, moved)
    before, after = (np.bincount(np.unique(mine * len(grid) + at) // len(grid)) for at in (cell[those], place))
    better = after[mine] > before[mine]
    cell[those[better]], start[those[better]] = place[better], moved[better]


def _blocks(rows: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield blocks of table rows with the rank index of each within its block; a rank is in one block.

    If the steps of a rank are not contiguous in the table, all rows are one block.
    """
    keep = np.flatnonzero(rows >= 0)
    row = rows[keep]
    begins = np.concatenate(([0], np.flatnonzero(row[1:] != row[:-1]) + 1))
    if np.bincount(row[begins]).max() > 1:  # a rank's steps are not contiguous
        yield keep, row
        return
    cuts = [0]
    while cuts[-1] < len(keep):
        after = np.searchsorted(begins, cuts[-1] + budgets.BLOCK)
        cuts.append(int(begins[after]) if after < len(begins) else len(keep))
    for first, last in pairwise(cuts):
        mine = row[first:last]
        yield keep[first:last], np.concatenate(([0], np.cumsum(mine[1:] != mine[:-1])))


def _sane(table: pa.Table, window_s: float) -> Bools:
    """Mark rows whose durations are finite, not negative and within twice the window."""
    start, length, own, wait = (floats(table, name) for name in ("start_s", "seconds", "own_s", "wait_s"))
    sane = np.isfinite(start) & np.isfinite(length) & (length > 0) & (length <= 2 * window_s)
    sane &= np.isfinite(own) & np.isfinite(wait) & (own >= 0) & (wait >= 0) & (own <= 2 * window_s)
    return np.asarray(sane)


def _usual(counts: Ints) -> int:
    """Median number of steps of the ranks that have any."""
    return int(median(counts[counts > 0]))


def _as_usual(counts: Ints) -> Bools:
    """Mark ranks with about the usual number of steps, within 20 % or 2."""
    usual = _usual(counts)
    return np.asarray(np.abs(counts - usual) <= max(2, 0.2 * usual), dtype=np.bool_)


def _nearest(grid: Floats, start: Floats) -> Ints:
    """Column whose start is nearest; the earlier one of two at equal distance."""
    after = np.clip(np.searchsorted(grid, start), 1, max(len(grid) - 1, 1))
    before, after = after - 1, np.minimum(after, len(grid) - 1)
    return np.where(np.abs(start - grid[before]) <= np.abs(grid[after] - start), before, after)
