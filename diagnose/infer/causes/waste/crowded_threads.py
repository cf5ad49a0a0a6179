"""More threads of the job's own libraries than CPUs: ranks queue behind them, and spin for them.

A pool of threads (OpenMP, BLAS) works in step: each region ends when the last thread has come, and
those that have spin meanwhile. With more threads than CPUs some thread is always off its CPU.

threads    = of the ranks that share C CPUs: R training threads and the threads of their pools
kept       = (⌈R / C⌉ - 1) / (threads / C - 1): the part of the queueing that ranks of one thread
             each would still have; at most all of it
taken(r,s) = (1 - kept) · queued(r,s) behind the job's own threads
             + running in the code of the pool itself, which computes nothing (sampled)

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
from rankscope.diagnose.infer.causes.waste.rows import Waste, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import cpus_of, pools, queued_s, taken_share
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.observer.window.renamed import THREAD_POOL
from rankscope.probes.base.arrays import Bools, Floats, Ints
from rankscope.probes.host.procfs import joined_ranges

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
    helpers = _helpers(fleet)
    pool = pools(fleet)
    for number in np.unique(pool[helpers > 0]).tolist():
        yield from _of_pool(spending, np.flatnonzero(pool == number).astype(np.int64), helpers)


def _of_pool(spending: Spending, ranks: Ints, helpers: Ints) -> Iterator[Row]:
    fleet = spending.fleet
    masks = dict.fromkeys(fleet.ranks.cpus[row] for row in ranks.tolist())
    cpus = sum(map(len, joined_ranges([each for names in masks for each in cpus_of(names)])))
    threads = len(ranks) + int(helpers[ranks].sum())
    if not 0 < cpus < threads:
        return
    kept = min((-(-len(ranks) // cpus) - 1) / (threads / cpus - 1), 1.0)
    behind = queued_s(fleet)[:, -spending.columns :] * (1 - taken_share(fleet))[:, None]
    spins = spending.seconds(_in_pools(spending))
    taken: Floats = np.zeros_like(spending.scene.own)
    taken[ranks] = np.fmin(
        (1 - kept) * behind[ranks] + spending.waited(spins)[ranks], np.nan_to_num(spending.scene.own[ranks])
    )
    evidence = (
        Evidence("process", "threads that compute, of ranks and their libraries", float(threads), None, ""),
        Evidence("process", "CPUs that they may use", float(cpus), None, ""),
        Evidence("scheduler", "queued behind the job's own threads, median", median(behind[ranks].mean(axis=1)), None, "s/step"),
        Evidence("stacks", "running in the code of the pool, where it waits, median", median(spins[ranks]), None, "s/step"),
    )  # fmt: skip
    yield from row_of(spending, Waste("cpu", "oversubscribed", REPORTED, evidence, _ACTION), taken)


def _in_pools(spending: Spending) -> Bools:
    """Mask of the rows of running in a thread pool's own code."""
    native, rows = spending.fleet.patterns.native, spending.spent.rows
    if native is None:
        return np.zeros(len(rows), dtype=bool)
    is_pool = np.array([THREAD_POOL.fullmatch(name) is not None for name in native.values], dtype=bool)
    codes = native.codes[rows]
    return np.asarray((codes >= 0) & is_pool[np.maximum(codes, 0)] if len(is_pool) else codes < -1, dtype=bool)


def _helpers(fleet: Fleet) -> Ints:
    """Number of threads of each rank's process that mostly run a pool's code, without the training thread."""
    table, rows = fleet.counters.table, fleet.counters.rows("thread.run_s")
    found = np.zeros(len(fleet.ranks), dtype=np.int64)
    for row in rows[table.rank[rows] >= 0].tolist():
        told = table.instance.at(row)
        many = _MANY.search(told)
        if THREAD_POOL.fullmatch(told.partition(": ")[2]):
            found[int(table.rank[row])] += int(many[1]) if many else 1
    return found
