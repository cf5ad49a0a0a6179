"""Ranks that may run on the same few CPUs while other CPUs of their host idle.

wanted   ranks whose CPU masks overlap want R CPUs and may use C; idle: CPUs of the host, outside
         these, that nobody used, on average over the window
kept     = (⌈R / C'⌉ - 1) / (R / C - 1), C' = C + idle: the part of the queueing behind one another
           that would remain if they might run everywhere. Served alike by C CPUs a rank queues for
           R / C - 1 of its CPU time; all wait for the CPU that serves one rank more than others
taken(r,s) = (1 - kept) · queued(r,s) behind ranks of the job

Evidence for: the masks, the idle CPUs, and the kernel's count of what ran while a rank queued.
Evidence against: masks that hold all CPUs of the host; no CPU idle. A single rank that shares its
CPU while others have their own: ../rank/cpu.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.rows import Waste, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import cpus_of, pools, queued_s, taken_share
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Ints
from rankscope.probes.host.procfs import joined_ranges

_ACTION = (
    "Let the ranks run on all CPUs of their host, or give each CPUs of its own: see who binds them (taskset, numactl, KMP_AFFINITY, "
    "OMP_PROC_BIND, --cpus-per-task, a cpuset) and `grep Cpus_allowed_list /proc/PID/status`."
)


@cause("cpu", "affinity", scope="all", witness="masks overlap, other CPUs idle", rests_on=[Source.HOST],
       says="all of them may run on the same few CPUs[, {instance}], while other CPUs idle")  # fmt: skip
def shared_cpus(spending: Spending) -> Iterator[Row]:
    """Propose cpu/affinity for ranks that queue behind one another while CPUs idle elsewhere."""
    fleet = spending.fleet
    pool = pools(fleet)
    for number in np.unique(pool).tolist():
        yield from _of_pool(spending, np.flatnonzero(pool == number).astype(np.int64))


def _of_pool(spending: Spending, ranks: Ints) -> Iterator[Row]:
    fleet = spending.fleet
    masks = list(dict.fromkeys(fleet.ranks.cpus[row] for row in ranks.tolist()))
    may_use = sum(map(len, joined_ranges([each for names in masks for each in cpus_of(names)])))
    idle = _idle(fleet, ranks, may_use)
    if not 0 < may_use < len(ranks) or idle < limits.HOLDS_LEAST:
        return
    there = may_use + round(idle)
    kept = min((-(-len(ranks) // there) - 1) / (len(ranks) / may_use - 1), 1.0)
    behind = queued_s(fleet)[:, -spending.columns :] * (1 - taken_share(fleet))[:, None]
    taken = np.zeros_like(spending.scene.own)
    taken[ranks] = np.fmin((1 - kept) * behind[ranks], np.nan_to_num(spending.scene.own[ranks]))
    evidence = (
        Evidence("process", "CPUs that these ranks may use", ", ".join(masks), None, ""),
        Evidence("process", "ranks that share them", float(len(ranks)), None, ""),
        Evidence("host", "other CPUs of the host that idle, on average", idle, None, "CPUs"),
        Evidence("scheduler", "queued behind one another, median", median(behind[ranks].mean(axis=1)), None, "s/step"),
    )
    instance = f"CPU {masks[0]}" if may_use == 1 else f"CPUs {masks[0]}"
    yield from row_of(spending, Waste("cpu", "affinity", CONVICTED, evidence, _ACTION, instance=instance), taken)


def _idle(fleet: Fleet, ranks: Ints, may_use: int) -> float:
    """CPUs of the ranks' host that idle on average, without those that they may use; 0 where not counted."""
    host = fleet.ranks.observed_on[int(ranks[0])]
    others = np.array([one == host for one in fleet.ranks.observed_on], dtype=bool)
    others[ranks] = False
    for counter in fleet.counters.of("cpu.busy_s", -1):
        if counter.observed_on == host and counter.limit > 0 and fleet.seconds > 0:
            there = round(counter.limit / fleet.seconds)
            ran = np.nansum(fleet.counters.total("cpu.process_run_s", np.flatnonzero(others))) / fleet.seconds
            return float(np.clip((1 - counter.value / counter.limit) * there, 0.0, max(there - may_use - ran, 0.0)))
    return 0.0
