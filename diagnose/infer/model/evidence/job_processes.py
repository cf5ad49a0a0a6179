"""Which counted processes are ranks of the job: a pid names a process of one host only."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rankscope.diagnose.infer.fleet.counters import Counter
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.probes.base.arrays import Ints

_PID_BITS = 32


def rank_of_process(fleet: Fleet, rows: Ints) -> Ints:
    """Return the rank (row) whose process each counter row names, on the host of that counter; -1 outside the job.

    `rows`: counters that name a process, such as cpu.taken_s.
    """
    table = fleet.counters.table
    code = {host: number for number, host in enumerate(table.observed_on.values)}
    met = _with_pid(fleet, table.pid[rows])
    if not len(met):
        return np.full(len(rows), -1)
    host = np.fromiter((code.get(fleet.ranks.observed_on[row], -1) for row in met.tolist()), np.int64, len(met))
    keys = (host << _PID_BITS) + fleet.ranks.pid[met]
    order = np.argsort(keys, kind="stable")
    wanted = (table.observed_on.codes[rows] << _PID_BITS) + table.pid[rows]
    at = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where((keys[at] == wanted) & (table.pid[rows] >= 0), met[at], -1)


def ranks_named(fleet: Fleet, counters: Iterable[Counter]) -> dict[tuple[str, int], int]:
    """Return the rank (row) of each process of the job that these counters may name, by host and pid."""
    met = _with_pid(fleet, np.array([one.pid for one in counters], dtype=np.int64))
    return {(fleet.ranks.observed_on[row], int(fleet.ranks.pid[row])): row for row in met.tolist()}


def _with_pid(fleet: Fleet, pids: Ints) -> Ints:
    """Return the ranks (rows) that have one of these pids, on whatever host; -1 is none."""
    return np.flatnonzero(np.isin(fleet.ranks.pid, pids[pids >= 0]))
