"""Ranks that may run on the same few CPUs, with their loader workers, while other CPUs of their host idle.

wanted   R ranks whose CPU masks overlap want a CPU each, their workers W on average (the CPU time
         that they had), and they may use C; idle: CPUs of the host, outside these, that nobody used,
         on average over the window
taken(r,s) = (1 - kept) · queued(r,s) behind ranks and workers of the job; kept: of R ranks on C + idle
             CPUs, over that of R + W threads on C (cpu_pools.py)

Evidence for: the masks, the idle CPUs, and the kernel's count of what ran while a rank queued.
Evidence against: masks that hold all CPUs of the host; no CPU idle. A single rank that shares its
CPU while others have their own: ../rank/cpu.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, common_host
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.causes.waste.cpu_pools import CpuPool, behind_ranks_s, cpu_pools
from rankscope.diagnose.infer.causes.waste.rows import Waste, row_of
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.fleet.labels import distinct_texts
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import cpus_text
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import after
from rankscope.observer.sources import Source

_RUN = "cpu.process_run_s"
_SAYS = "they run on {instance|the same CPUs} alone and wait for each other while other CPUs idle"
_SAYS_ALONE = "it runs on {instance|few CPUs} alone and waits there for its own loader workers while other CPUs idle"
_BINDERS = "taskset, numactl, KMP_AFFINITY, OMP_PROC_BIND, --cpu-bind, --cpus-per-task, a cpuset"


@cause("cpu", "affinity", scope="all", witness="masks overlap, other CPUs idle", rests_on=[Source.HOST], says=_SAYS)
def shared_cpus(spending: Spending) -> Iterator[Row]:
    """Propose cpu/affinity for ranks that queue behind one another, or their workers, while CPUs idle elsewhere."""
    fleet = spending.fleet
    part, worst, used, idle, there = np.zeros(len(fleet.ranks)), None, 0.0, 0.0, 0
    hosts, ran = _hosts(fleet), _ran_s(fleet)
    for pool in cpu_pools(fleet):
        host = fleet.ranks.observed_on[int(pool.ranks[0])]
        others_s = ran.get(host, 0.0) - float(np.nansum(fleet.counters.total(_RUN, pool.ranks)))
        spare = _spare(hosts.get(host), pool.cpus, others_s / fleet.seconds)
        workers = _workers_use(fleet, pool)
        wanted = len(pool.ranks) + workers
        if not 0 < pool.cpus < wanted or spare < limits.HOLDS_LEAST:
            continue
        part[pool.ranks] = 1 - pool.kept(wanted, pool.cpus + round(spare))
        if worst is None or len(pool.ranks) > len(worst.ranks):
            worst, used, idle, there = pool, workers, spare, hosts[host][1]
    if worst is not None:
        behind = behind_ranks_s(spending)
        queued_s = median(behind[part > 0].mean(axis=1)) if part.any() else 0.0
        waste = _waste(worst, used, idle, queued_s, _action(fleet, worst, there))
        yield from row_of(spending, waste, np.asarray(part[:, None] * behind, dtype=np.float64))


def _action(fleet: Fleet, pool: CpuPool, there: int) -> str:
    """The advice, with the command that lets the ranks of the pool run on all `there` CPUs of their host."""
    pids = [str(int(fleet.ranks.pid[row])) for row in pool.ranks[: budgets.INSTANCES_SHOWN]]
    more = len(pool.ranks) - len(pids)
    host = common_host(fleet, pool.ranks.tolist())
    of_each = f"`taskset -acp 0-{there - 1} PID`{after('on', host)} for PID {', '.join(pids)}{f' and {more} more' if more > 0 else ''}"
    if len(pids) == 1:
        what = f"Let the rank and its loader workers run on all CPUs: {of_each} and each of its children"
    else:
        what = f"Give each rank CPUs of its own, or at once all of them: {of_each}"
    return f"{what}; then see who binds them ({_BINDERS})."


def _workers_use(fleet: Fleet, pool: CpuPool) -> float:
    """CPUs that the loader workers of these ranks used, on average over the window."""
    used_s = float(np.nansum(fleet.counters.total("cpu.workers_run_s", pool.ranks)))
    return used_s / fleet.seconds if fleet.seconds > 0 else 0.0


def _waste(pool: CpuPool, used: float, idle: float, behind_s: float, action: str) -> Waste:
    """Words on the pool with most ranks; `used`, `idle`: CPUs; `behind_s`: median over the ranks of all such pools."""
    evidence = (
        Evidence("process", "these ranks may run on", ", ".join(map(cpus_text, pool.masks[: budgets.TOLD])), None, ""),
        Evidence("process", "ranks that share them", float(len(pool.ranks)), None, "ranks"),
        Evidence("process", "CPUs that their loader workers use, on average", used, None, "CPUs"),
        Evidence("host", "other CPUs of the host that idle, on average", idle, None, "CPUs"),
        Evidence("scheduler", "queued behind one another, median", behind_s, None, "s/step"),
    )
    instance = cpus_text(pool.masks[0])
    says = _SAYS_ALONE if len(pool.ranks) == 1 else _SAYS
    return Waste("cpu", "affinity", CONVICTED, evidence, action, instance=instance, says=says)


def _hosts(fleet: Fleet) -> dict[str, tuple[float, int]]:
    """(CPUs that idle on average, number of CPUs) of each host that is counted."""
    if not fleet.seconds > 0:
        return {}
    return {
        counter.observed_on: (
            (1 - counter.value / counter.limit) * (there := counter.limit / fleet.seconds),
            round(there),
        )
        for counter in fleet.counters.of("cpu.busy_s", -1)
        if counter.limit > 0
    }


def _ran_s(fleet: Fleet) -> dict[str, float]:
    """CPU time of all ranks of each host, seconds."""
    total = np.nan_to_num(fleet.counters.total(_RUN, np.arange(len(fleet.ranks))))
    names, which = distinct_texts(fleet.ranks.observed_on)
    return dict(zip(names, np.bincount(which, total, len(names)).tolist(), strict=True))


def _spare(host: tuple[float, int] | None, may_use: int, others: float) -> float:
    """CPUs that idle on average, of those that the ranks may not use and `others` of the job leave."""
    if host is None:
        return 0.0
    idle, there = host
    return float(np.clip(idle, 0.0, max(there - may_use - max(others, 0.0), 0.0)))
