"""Steps put in columns where they were read: the grid of a job goes to the workers, and each returns matrices of its ranks.

A few windows of a large job, at even distances, say what its iterations are (`grids_of`); what every other rank's steps are held against
is then known before these are read. The rest of the comparing is of all ranks together, and done in one place (crowd.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankscope.diagnose.fleet.clocks.align import Clocks
from rankscope.diagnose.fleet.labels import equals, ints
from rankscope.diagnose.fleet.roll_call import RollCall, jobs_in, largest, windows_of
from rankscope.diagnose.fleet.sources import Source
from rankscope.diagnose.fleet.step_matrix import (
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
from rankscope.probes.arrays import Ints
from rankscope.probes.errors import NoRanks

ROW = "row"  # column of the steps: the row of their rank in the table of ranks
SEEN = ("own_s", "wait_s")  # of all ranks; the others only of whom everything is read
MANY = 256  # windows of a job: of fewer one process puts all steps in columns, and needs no sample
_SAMPLE = 32  # windows: 256 ranks, of whose numbers of steps a median is the job's


@dataclass(frozen=True, slots=True)
class Placed:
    """Steps of ranks of one job in the columns of its grid.

    `rows`: of the table of ranks; `matrices`: by name of SEEN, ranks x columns; `counts`, `absurd`: steps of each rank, and those that were
    left out; `windows`, `clocks`: the windows that these ranks are in, and their clocks against the reference rank's.
    """

    rows: Ints
    matrices: Mapping[str, npt.NDArray[np.float32]]
    counts: Ints
    absurd: Ints
    windows: Ints
    clocks: Clocks


def sample_of(sources: Sequence[Source]) -> list[Source]:
    """Of each job with many objects in a store a few, at even distances."""
    of_job: dict[str, list[Source]] = {}
    for each in sources:
        if each.store:  # a window folder does not say its job
            of_job.setdefault(each.path.rpartition("/window=")[0], []).append(each)
    chosen: list[Source] = []
    for mine in of_job.values():
        if len(mine) > MANY:
            chosen += (mine[at] for at in np.linspace(0, len(mine) - 1, _SAMPLE).astype(np.int64).tolist())
    return chosen


def grids_of(roll: RollCall, begins_s: Sequence[float], steps: pa.Table) -> dict[str, Grid]:
    """The grids of the jobs in a sample of windows."""
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
    """The steps of a job's ranks in these windows; None where it has none there, or these ranks show too few for their matrices: then they
    stay in the table, and whether there is room is asked of all ranks together (crowd.py). No other job waits for that here."""
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
    else:  # none of them shows a step
        matrices = {name: np.full((len(mine.rows), len(columns.grid_s)), np.nan, dtype=np.float32) for name in SEEN}
    return Placed(mine.rows, matrices, steps_of_each(rows, len(mine.rows)), absurd, mine.windows, clocks)


@dataclass(frozen=True, slots=True)
class _Members:
    """Ranks of one job: their rows in the table, their numbers; the windows they are in, each as a host of its own."""

    rows: Ints
    numbers: Ints
    windows: Ints
    hosts: Hosts
    in_table: int

    @classmethod
    def of(cls, ranks: pa.Table, job: str, windows: Ints | None, begins_s: Sequence[float]) -> _Members:
        """`windows`: only in these."""
        here, window = equals(ranks, "job", job), ints(ranks, WINDOW)
        rows = np.flatnonzero(here if windows is None else here & np.isin(window, windows))
        each, of_rank = np.unique(window[rows], return_inverse=True)
        hosts = Hosts(tuple(map(str, each.tolist())), of_rank.reshape(-1), np.array(begins_s, dtype=np.float64)[each])
        return cls(rows, ints(ranks, "rank")[rows], each, hosts, ranks.num_rows)

    def rows_of(self, steps: pa.Table) -> Ints:
        """Of each step which of these ranks it is of; -1: of none."""
        place = np.full(self.in_table + 1, -1, dtype=np.int64)  # the last one: of steps of nobody
        place[self.rows] = np.arange(len(self.rows))
        return place[ints(steps, ROW)]
