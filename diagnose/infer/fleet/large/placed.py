"""Put steps in columns where they are read: workers get a job's grid and return matrices.

A few windows of a large job, evenly spread, define its iterations (`grids_of`), so that the columns
are known before the other windows are read. What compares all ranks is done in one process
(crowd.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankscope.diagnose.infer.fleet.clocks.align import Clocks
from rankscope.diagnose.infer.fleet.labels import equals, ints
from rankscope.diagnose.infer.fleet.roll_call import RollCall, jobs_in, largest, windows_of
from rankscope.diagnose.infer.fleet.sources import Source
from rankscope.diagnose.infer.fleet.step_matrix import (
    Columns,
    Grid,
    Hosts,
    can_be,
    clocks_against,
    filled,
    grid_of,
    has_room,
    steps_of_each,
)
from rankscope.diagnose.stats.robust import median
from rankscope.observer.window.store.summary import WINDOW
from rankscope.probes.base.arrays import Ints
from rankscope.probes.base.errors import NoRanks

ROW = "row"  # column of the steps table: row of the step's rank in the ranks table
SEEN = ("own_s", "wait_s")  # matrices of all ranks; others only for ranks read in full
MANY = 256  # windows of a job: below this, one process places all steps, without a sample
_SAMPLE = 32  # windows: 256 ranks, enough for the median number of steps


@dataclass(frozen=True, slots=True)
class Placed:
    """Steps of one job's ranks in the columns of its grid.

    `rows`: of the table of ranks; `matrices`: by name of SEEN, ranks x columns; `counts`, `absurd`:
    steps of each rank, and those left out as impossible; `windows`, `clocks`: the windows of these
    ranks, and their clocks against the reference rank's.
    """

    rows: Ints
    matrices: Mapping[str, npt.NDArray[np.float32]]
    counts: Ints
    absurd: Ints
    windows: Ints
    clocks: Clocks


def sample_of(sources: Sequence[Source]) -> list[Source]:
    """A few evenly spread sources of each job with many objects in a store."""
    of_job: dict[str, list[Source]] = {}
    for each in sources:
        if each.store:  # a window folder's path does not name its job
            of_job.setdefault(each.path.rpartition("/window=")[0], []).append(each)
    chosen: list[Source] = []
    for mine in of_job.values():
        if len(mine) > MANY:
            chosen += (mine[at] for at in np.linspace(0, len(mine) - 1, _SAMPLE).astype(np.int64).tolist())
    return chosen


def grids_of(roll: RollCall, begins_s: Sequence[float], steps: pa.Table) -> dict[str, Grid]:
    """Grids of the jobs in a sample of windows, by job."""
    try:
        jobs = jobs_in(roll) if roll.manifests else {}
    except NoRanks:
        return {}
    found = {}
    for job in largest(roll, jobs, []):
        windows = windows_of(roll, job, [])
        window_s = median([roll.manifests[number].seconds for number in windows])
        mine = _Members.of(roll.ranks, job, np.array(windows), begins_s)
        rows = mine.rows_of(steps)
        grid = grid_of(steps, np.where(can_be(steps, window_s), rows, -1), mine.numbers, mine.hosts, window_s)
        if grid is not None:
            found[job] = grid
    return found


def placed(job: str, grid: Grid, ranks: pa.Table, begins_s: Sequence[float], steps: pa.Table) -> Placed | None:
    """Place the steps of a job's ranks in these windows.

    None if it has no ranks there, or too few steps for their matrices: then the steps stay in the
    table, and room is checked for all ranks together (crowd.py).
    """
    mine = _Members.of(ranks, job, None, begins_s)
    if not len(mine.rows):
        return None
    rows = mine.rows_of(steps)
    sane = can_be(steps, grid.window_s)
    absurd = steps_of_each(np.where(sane, -1, rows), len(mine.rows))
    rows = np.where(sane, rows, -1)
    clocks = clocks_against(grid, steps, rows, mine.numbers, mine.hosts)
    columns = Columns.of(grid, mine.hosts, clocks)
    if not has_room(len(mine.rows), len(columns.grid_s), int((rows >= 0).sum())):
        return None
    if (rows >= 0).any():
        found = filled(steps, rows, mine.hosts, columns, SEEN)
        matrices = {name: getattr(found, name).astype(np.float32) for name in SEEN}
    else:  # no steps at all
        matrices = {name: np.full((len(mine.rows), len(columns.grid_s)), np.nan, dtype=np.float32) for name in SEEN}
    return Placed(mine.rows, matrices, steps_of_each(rows, len(mine.rows)), absurd, mine.windows, clocks)


@dataclass(frozen=True, slots=True)
class _Members:
    """Ranks of one job: rows in the table, numbers, and their windows, each treated as a host of
    its own."""

    rows: Ints
    numbers: Ints
    windows: Ints
    hosts: Hosts
    in_table: int

    @classmethod
    def of(cls, ranks: pa.Table, job: str, windows: Ints | None, begins_s: Sequence[float]) -> _Members:
        """Select the job's ranks; `windows`: only in these, None: in all."""
        here, window = equals(ranks, "job", job), ints(ranks, WINDOW)
        rows = np.flatnonzero(here if windows is None else here & np.isin(window, windows))
        each, of_rank = np.unique(window[rows], return_inverse=True)
        hosts = Hosts(tuple(map(str, each.tolist())), of_rank.reshape(-1), np.array(begins_s, dtype=np.float64)[each])
        return cls(rows, ints(ranks, "rank")[rows], each, hosts, ranks.num_rows)

    def rows_of(self, steps: pa.Table) -> Ints:
        """Index among these ranks by step; -1 for steps of other ranks."""
        place = np.full(self.in_table + 1, -1, dtype=np.int64)  # index -1: steps of no rank
        place[self.rows] = np.arange(len(self.rows))
        return place[ints(steps, ROW)]
