"""Ranks that share CPUs, and what they queue for behind the threads of their own job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import (
    cpus_together,
    others_share,
    pools,
    queued_s,
    ranks_share,
    taken_share,
)
from rankscope.diagnose.infer.model.evidence.job_processes import rank_of_process
from rankscope.probes.base.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class CpuPool:
    """Ranks (rows of the fleet) of one host that may run on common CPUs.

    `cpus`: number of these, 0 where unknown; `masks`: as each rank may use them, without repeats.
    """

    ranks: Ints
    cpus: int
    masks: tuple[str, ...]

    def kept(self, threads: float, cpus: int) -> float:
        """Return the share (0..1) of queueing left if one thread per rank runs on `cpus`, not `threads` on `self.cpus`.

        Served alike a thread queues for threads / CPUs - 1 of its CPU time. All ranks wait for the
        CPU that serves one rank more than others: ⌈ranks / CPUs⌉ - 1.
        """
        now = threads / self.cpus - 1
        return min((-(-len(self.ranks) // cpus) - 1) / now, 1.0) if now > 0 else 1.0


def cpu_pools(fleet: Fleet) -> Iterator[CpuPool]:
    """Yield the groups of ranks that may run on common CPUs; each rank is in one."""
    number = pools(fleet)
    order = np.argsort(number, kind="stable")
    for ranks in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
        masks = tuple(dict.fromkeys(fleet.ranks.cpus[row] for row in ranks.tolist()))
        yield CpuPool(ranks.astype(np.int64), cpus_together(masks), masks)


def behind_own_s(spending: Spending) -> Floats:
    """Return the seconds of each judged step that each rank queues behind threads of the job (ranks x steps)."""
    return _queued_s(spending, 1 - taken_share(spending.fleet))


def behind_ranks_s(spending: Spending) -> Floats:
    """Return the seconds that each rank queues behind other ranks and loader workers (ranks x judged steps).

    What it queues behind threads of its own process is left out.
    """
    return _queued_s(spending, ranks_share(spending.fleet))


def behind_workers_s(spending: Spending) -> Floats:
    """Return the seconds that each rank queues behind loader workers of the job (ranks x judged steps).

    CPU time that was taken under a rank's own pid is all its workers' (its threads are not counted);
    of what was taken under the pid of rank q, the share w(q):

    w(q) = CPU time of q's workers / (CPU time of q's workers + CPU time of q's process)
    """
    fleet = spending.fleet
    table, rows, count = fleet.counters.table, fleet.counters.rows("cpu.taken_s"), len(fleet.ranks)
    rows = rows[table.rank[rows] >= 0]
    rank, seconds = table.rank[rows], table.value[rows]
    every = np.arange(count)
    workers, threads = (
        np.nan_to_num(fleet.counters.total(name, every)) for name in ("cpu.workers_run_s", "cpu.process_run_s")
    )
    of_workers = np.divide(workers, workers + threads, out=np.zeros(count), where=workers > 0)
    whose = rank_of_process(fleet, rows)
    part = np.where(whose >= 0, of_workers[whose], 0.0)
    part[whose == rank] = 1.0
    theirs, all_s = (np.bincount(rank, each, count) for each in (part * seconds, seconds))
    share = np.divide(theirs, all_s, out=np.zeros(count), where=all_s > 0)
    return _queued_s(spending, share * others_share(fleet))


def _queued_s(spending: Spending, share: Floats) -> Floats:
    """Return this share (0..1, by rank) of the queueing in each judged step (ranks x steps)."""
    queued = queued_s(spending.fleet)[:, -spending.columns :] * share[:, None]
    return np.asarray(np.fmin(queued, np.nan_to_num(spending.scene.own)), dtype=np.float64)
