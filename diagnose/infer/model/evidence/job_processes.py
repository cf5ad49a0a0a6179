"""Which counted processes are ranks of the job: a pid names a process of one host only."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.probes.base.arrays import Ints

_PID_BITS = 32


def rank_of_process(fleet: Fleet, rows: Ints) -> Ints:
    """Return the rank (row) whose process each counter row names, on the host of that counter; -1 outside the job.

    `rows`: counters that name a process, such as cpu.taken_s.
    """
    ranks, table = fleet.ranks, fleet.counters.table
    code = {host: number for number, host in enumerate(table.observed_on.values)}
    host = np.fromiter((code.get(each, -1) for each in ranks.observed_on), np.int64, len(ranks))
    known = np.flatnonzero((ranks.pid >= 0) & (host >= 0))
    if not len(known) or not len(rows):
        return np.full(len(rows), -1)
    keys = (host[known] << _PID_BITS) + ranks.pid[known]
    order = np.argsort(keys, kind="stable")
    wanted = (table.observed_on.codes[rows] << _PID_BITS) + table.pid[rows]
    at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where((keys[at] == wanted) & (table.pid[rows] >= 0), known[at], -1)


def processes_on(fleet: Fleet, ranks: Iterable[int]) -> dict[tuple[str, int], int]:
    """Return the rank (row) of each process of the job on the hosts of these ranks (rows), by host and pid."""
    of, pids = fleet.ranks.observed_on, fleet.ranks.pid
    hosts = {of[rank] for rank in ranks}
    return {(of[row], int(pids[row])): row for row in np.flatnonzero(pids >= 0).tolist() if of[row] in hosts}
