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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, common_host, machine_of
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
from rankscope.diagnose.text import after, rank_list
from rankscope.observer.sources import Source

_RUN = "cpu.process_run_s"
_SAYS = "they run on {instance|the same CPUs} alone and wait for each other while other CPUs idle"
_SAYS_OF_GROUPS = "in groups they run on few CPUs alone and wait for each other while other CPUs idle"
_SAYS_ALONE = "it runs on {instance|few CPUs} alone and waits there for its own loader workers while other CPUs idle"
_BINDERS = "taskset, numactl, KMP_AFFINITY, OMP_PROC_BIND, --cpu-bind, --cpus-per-task, a cpuset"


@dataclass(frozen=True, slots=True)
class _Bound:
    """Ranks that share few CPUs of a machine, while others of its CPUs idle.

    `workers`, `idle`: CPUs that their loader workers use, and that nobody uses; `there`: CPUs in all.
    """

    pool: CpuPool
    machine: str
    workers: float
    idle: float
    there: int

    def who(self, fleet: Fleet) -> str:
        """Return the ranks in words, as 'ranks 0, 1 on node-0' or 'ranks 0, 1 (containers of node-0)'."""
        who, rows = rank_list(tuple(sorted(fleet.ranks.number[self.pool.ranks].tolist()))), self.pool.ranks.tolist()
        if self.machine and not common_host(fleet, rows):
            return f"{who} (containers of {self.machine})"
        return who + after("on", self.machine)


@cause("cpu", "affinity", scope="all", witness="masks overlap, other CPUs idle", rests_on=[Source.HOST], says=_SAYS)
def shared_cpus(spending: Spending) -> Iterator[Row]:
    """Propose cpu/affinity for ranks that queue behind one another, or their workers, while CPUs idle elsewhere."""
    fleet = spending.fleet
    part, found = np.zeros(len(fleet.ranks)), list[_Bound]()
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
        found.append(_Bound(pool, machine_of(fleet, pool.ranks.tolist()), workers, spare, hosts[host][1]))
    if found:
        found.sort(key=lambda one: -len(one.pool.ranks))
        behind = behind_ranks_s(spending)
        queued_s = median(behind[part > 0].mean(axis=1)) if part.any() else 0.0
        yield from row_of(
            spending, _waste(fleet, found, queued_s), np.asarray(part[:, None] * behind, dtype=np.float64)
        )


def _action(fleet: Fleet, found: Sequence[_Bound]) -> str:
    """Return the advice, with the command that lets the ranks of these pools run on all CPUs of their machine.

    Only pools on the machine of the first are in the command; the others are counted.
    """
    worst, machines = found[0], [fleet.ranks.observed_on[int(one.pool.ranks[0])] for one in found]
    machine, others = machines[0], len(found) - machines.count(machines[0])
    rows = [row for one, on in zip(found, machines, strict=True) if on == machine for row in one.pool.ranks.tolist()]
    pids = [str(int(fleet.ranks.pid[row])) for row in rows[: budgets.INSTANCES_SHOWN]]
    more = f" and {len(rows) - len(pids)} more" if len(rows) > len(pids) else ""
    of_each = f"`taskset -acp 0-{worst.there - 1} PID`{after('on', machine)} for PID {', '.join(pids)}{more}"
    likewise = f", and likewise {others} other group{'s' if others > 1 else ''}" if others else ""
    on_it = fleet.ranks.observed_on.count(machine)
    goal = (
        "give each rank CPUs of its own"
        if on_it <= worst.there
        else f"start no more ranks than CPUs (now {on_it} for {worst.there}), each on its own"
    )
    if len(rows) == 1:
        what = f"Let the rank and its loader workers run on all CPUs: {of_each} and each of its children; then see"
    else:
        what = f"At once, let them run on all CPUs: {of_each}{likewise}. For good, {goal}: see"
    return f"{what} who binds them ({_BINDERS})."


def _workers_use(fleet: Fleet, pool: CpuPool) -> float:
    """Return how many CPUs the loader workers of these ranks used, on average over the window."""
    used_s = float(np.nansum(fleet.counters.total("cpu.workers_run_s", pool.ranks)))
    return used_s / fleet.seconds if fleet.seconds > 0 else 0.0


def _waste(fleet: Fleet, found: Sequence[_Bound], behind_s: float) -> Waste:
    """Return the Waste of ranks bound to few CPUs; `found`: the pool with most ranks first.

    `behind_s`: seconds per step queued behind one another, median over the ranks of all pools.
    """
    worst, alone = found[0], len(found[0].pool.ranks) == 1
    evidence = (
        *(
            Evidence("process", f"{one.who(fleet)} may run on", ", ".join(map(cpus_text, one.pool.masks[: budgets.TOLD])), None, "")
            for one in found[: budgets.TOLD]
        ),
        Evidence("host", f"other CPUs of {worst.machine or 'the host'} that idle, on average", worst.idle, None, "CPUs"),
        Evidence("process", "CPUs that their loader workers use, on average", worst.workers, None, "CPUs"),
        Evidence("scheduler", "queued behind one another, median", behind_s, None, "s/step"),
    )  # fmt: skip
    instance, ranks = cpus_text(worst.pool.masks[0]), [row for one in found for row in one.pool.ranks.tolist()]
    if not common_host(fleet, ranks):  # containers of one machine, which the line of the ranks does not name
        instance += after("of", worst.machine)
    says = _SAYS_ALONE if alone else _SAYS if len(found) == 1 else _SAYS_OF_GROUPS
    return Waste("cpu", "affinity", CONVICTED, evidence, _action(fleet, found), instance=instance, says=says)


def _hosts(fleet: Fleet) -> dict[str, tuple[float, int]]:
    """Return, by host, (number of CPUs that idle on average, number of CPUs); only hosts that are counted."""
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
    """Return, by host, the CPU seconds of all its ranks' processes in the window."""
    total = np.nan_to_num(fleet.counters.total(_RUN, np.arange(len(fleet.ranks))))
    names, which = distinct_texts(fleet.ranks.observed_on)
    return dict(zip(names, np.bincount(which, total, len(names)).tolist(), strict=True))


def _spare(host: tuple[float, int] | None, may_use: int, others: float) -> float:
    """Return how many CPUs idle on average that these ranks may not use and other ranks leave.

    `host`: (idle CPUs, CPUs) or None; `may_use`: CPUs of these ranks; `others`: CPUs that other ranks use.
    """
    if host is None:
        return 0.0
    idle, there = host
    return float(np.clip(idle, 0.0, max(there - may_use - max(others, 0.0), 0.0)))
