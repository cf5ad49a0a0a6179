"""More threads of the job's own libraries than CPUs: ranks queue behind them, and spin for them.

A pool of threads (OpenMP, BLAS) works in step: each region ends when the last thread has come, and
those that have spin meanwhile. With more threads than CPUs some thread is always off its CPU.

taken(r,s) = (1 - kept) · queued(r,s) behind the job's own threads, kept: of one thread for each rank,
             over that of all threads of ranks and pools on these CPUs (cpu_pools.py)
             + running in the code of the pool itself, which computes nothing (sampled)
             - what the thread computes besides in the functions that run a pool, once for each thread
               less: the others' parts of that work are its own then

Evidence for: threads in a pool's code by their samples, more of them than CPUs. Evidence against:
pools with a CPU for each thread, whatever they spin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from rankscope.diagnose.infer.causes.hypothesis import REPORTED
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.cpu_pools import behind_own_s, cpu_pools
from rankscope.diagnose.infer.causes.waste.rows import Waste, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.observer.window.renamed import THREAD_POOL
from rankscope.probes.base.arrays import Bools, Floats, Ints

_MANY = re.compile(r" \((\d{1,6}) threads\)$")
_ACTION = (
    "Start fewer threads in each rank: OMP_NUM_THREADS (MKL_NUM_THREADS, OPENBLAS_NUM_THREADS, torch.set_num_threads) at most the CPUs of "
    "the host divided by its ranks; 1 where there are as many ranks as CPUs."
)


@cause("cpu", "oversubscribed", scope="all", witness="threads of pools, more than CPUs",
       says="their own libraries start more threads than there are CPUs")  # fmt: skip
@cause("cpu", "oversubscribed", scope="rank", witness="threads of its pool, more than CPUs",
       says="its own libraries start more threads than there are CPUs")  # fmt: skip
def crowded_threads(spending: Spending) -> Iterator[Row]:
    """Propose cpu/oversubscribed for ranks whose pools have more threads than CPUs."""
    fleet = spending.fleet
    helpers, part, dropped, worst = _helpers(fleet), np.zeros(len(fleet.ranks)), np.zeros(len(fleet.ranks)), None
    for pool in cpu_pools(fleet) if helpers.any() else ():
        threads = len(pool.ranks) + int(helpers[pool.ranks].sum())
        if helpers[pool.ranks].any() and 0 < pool.cpus < threads:
            part[pool.ranks] = 1 - pool.kept(threads, pool.cpus)
            dropped[pool.ranks] = np.maximum(helpers[pool.ranks] - max(pool.cpus // len(pool.ranks) - 1, 0), 0)
            if worst is None or threads / pool.cpus > worst[0] / worst[1]:
                worst = threads, pool.cpus
    if worst is None:
        return
    ranks = part > 0
    spins, shared = (seconds * ranks for seconds in _in_regions_s(spending))
    behind, back = part[:, None] * behind_own_s(spending), shared * dropped
    evidence = (
        Evidence("process", "threads that compute, of ranks and their libraries", float(worst[0]), None, ""),
        Evidence("process", "CPUs that they may use", float(worst[1]), None, ""),
        Evidence("scheduler", "queued behind the job's own threads, median", median(behind[ranks].mean(axis=1)), None, "s/step"),
        Evidence("stacks", "running in the code of the pool, where it waits, median", median(spins[ranks]), None, "s/step"),
    )  # fmt: skip
    gained = np.maximum(behind + spending.waited(spins) - back[:, None], 0.0)
    taken: Floats = np.fmin(gained, np.nan_to_num(spending.scene.own))
    yield from row_of(spending, Waste("cpu", "oversubscribed", REPORTED, evidence, _ACTION), taken)


def _in_regions_s(spending: Spending) -> tuple[Floats, Floats]:
    """Return, by rank, seconds per step in (a thread pool's own code, the computing of the functions that run it).

    Divided by the share of their samples. Each thread of the pool has an equal part of the second:
    without one helper it comes on top.
    """
    spent, share = spending.spent, spending.fleet.patterns.native_share
    rows, ranks = _in_pools(spending), len(spending.fleet.ranks)
    known = np.full(int(rows.sum()), np.nan) if share is None else np.clip(share[spent.rows[rows]], 0.0, 1.0)
    part = np.where(np.isfinite(known), known, 1.0)
    inside, own = (
        np.bincount(spent.rank[rows], spent.seconds[rows] * each, ranks).astype(np.float64) for each in (part, 1 - part)
    )
    return inside, own


def _in_pools(spending: Spending) -> Bools:
    """Mask the rows of `spent` that run in a thread pool's own code."""
    native, rows = spending.fleet.patterns.native, spending.spent.rows
    if native is None:
        return np.zeros(len(rows), dtype=bool)
    is_pool = np.array([THREAD_POOL.fullmatch(name) is not None for name in native.values], dtype=bool)
    codes = native.codes[rows]
    return np.asarray((codes >= 0) & is_pool[np.maximum(codes, 0)] if len(is_pool) else codes < -1, dtype=bool)


def _helpers(fleet: Fleet) -> Ints:
    """Return, by rank, the number of threads that mostly run a pool's code, without the training thread."""
    table, rows = fleet.counters.table, fleet.counters.rows("thread.run_s")
    rows = rows[table.rank[rows] >= 0]
    codes = table.instance.codes[rows]
    many = np.zeros(len(table.instance.values))
    for code in np.unique(codes).tolist():
        if THREAD_POOL.fullmatch(table.instance.values[code].partition(": ")[2]):
            found = _MANY.search(table.instance.values[code])
            many[code] = int(found[1]) if found else 1
    counted = np.bincount(table.rank[rows], many[codes], len(fleet.ranks)) if len(rows) else np.zeros(len(fleet.ranks))
    return np.asarray(counted, dtype=np.int64)
