"""CPU interrupts: packets or disks use the rank's CPU between its own instructions.

s          = share of the rank's CPUs in softirq and irq, above the median of its peers
predicted  = Σ over computing functions f of min(excess, peers' time · max(2 s / (1 - s), g(f))):
             all grow, each by its size
g(f)       = growth of all other computing functions, where it exceeds 3 standard errors of the
             samples: interrupts cost more than what is counted (caches, the host below a virtual
             machine)
explained  = predicted + run-queue time in which no other process ran

s is counted per CPU if the window has it; else, where ksoftirqd/N took CPU N from this rank (1 % of
the window, ten times its peers'), all softirq time of the host is taken to be on that CPU. Evidence
for: s >= 5 % that explains half of the excess; where it is counted per CPU the kernel itself ran
there in the rank's place and counts the time, as with a quota. Evidence against: interrupts that
all peers have; a function that the peers do not have, because it is not 'interrupted'.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import ORDERED, REPORTED, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.rank.cpu import INTERRUPTS
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import OF_INTERRUPTS, cpus_of
from rankscope.diagnose.infer.model.functions import FunctionExcess, sample
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import after
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools


@dataclass(frozen=True, slots=True)
class _Share:
    """Share of the rank's CPUs in interrupts; `peers`: the usual share, None if unknown."""

    own: float
    peers: float | None
    where: str
    support: float

    @property
    def over(self) -> float:
        """Share of the rank's CPUs in interrupts above the peers' usual one, at most 0.9."""
        return min(self.own - (self.peers or 0.0), limits.NEARLY_ALWAYS)


@cause("cpu", "irq", witness="interrupts on the rank's CPUs", rests_on=[Source.HOST], says="interrupts take its CPU")
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose cpu/irq if interrupts explain half of the excess."""
    if not case.functions or not case.steps:
        return
    spent = _per_cpu(case.fleet)
    share = _by_cpu(case, spent) if spent else _by_daemon(case)
    if share is None or share.over < limits.EFFECT_SHARE:
        return
    slower = share.over / (1 - share.over) / limits.HOLDS_LEAST
    computing = [f for f in case.functions if f.kind == "python" and f.detail != "sleep"]
    grown = sum(min(f.excess_s, f.peers_s * max(slower, _growth_beside(case, computing, f))) for f in computing)
    queued = max(case.excess_of("sched", "queue") - _taken_s(case), 0.0)
    explained = max(grown, 0.0) + queued
    if explained < limits.HOLDS_LEAST * case.excess_s:
        return
    own, peers = sum(f.own_s for f in computing), sum(f.peers_s for f in computing)
    count = len(case.peers)
    yield case.charge(
        component="cpu",
        cause="irq",
        lost_s=explained,
        support=share.support,
        evidence=(
            Evidence("host", f"{share.where} in interrupts", share.own, share.peers, "share of the window", count),
            Evidence("stacks", "computing, all functions", own, peers, "s/step", count),
            Evidence("scheduler", "ready, while no other process ran", queued, 0.0, "s/step", count),
        ),
        action=f"See what interrupts {share.where}{after('of', case.host)} (/proc/softirqs, /proc/interrupts, mpstat -P ALL 1): steer it "
        "to CPUs without ranks (IRQ affinity, RPS), or stop who sends the packets.",
        instance=share.where,
        computing_s=max(grown, 0.0),
    )


def interrupted(fleet: Fleet) -> Bools:
    """Return the mask of ranks whose CPUs spend 5 % more of the window in interrupts than the job's median."""
    spent, ranks = _per_cpu(fleet), fleet.ranks
    busy = {host for host, each in spent.items() if max(each.seconds) >= limits.EFFECT_SHARE * fleet.seconds}
    share = np.zeros(len(ranks))
    for row in (row for row, host in enumerate(ranks.observed_on) if host in busy):
        share[row] = _share_of(fleet, row, spent) or 0.0
    return np.asarray(share - median(share) >= limits.EFFECT_SHARE) if len(share) else np.zeros(0, dtype=bool)


def _growth_beside(case: Case, computing: Sequence[FunctionExcess], function: FunctionExcess) -> float:
    """Return the relative growth over the peers of all computing functions but this one, together.

    0 unless it exceeds limits.Z_CLEAR standard errors of the samples.
    """
    own = sum(f.own_s for f in computing) - function.own_s
    peers = sum(f.peers_s for f in computing) - function.peers_s
    error = math.sqrt((max(own, 0.0) + max(peers, 0.0)) * case.fleet.sampling_s / max(case.steps, 1))
    return (own - peers) / peers if peers > 0 and own - peers >= limits.Z_CLEAR * error else 0.0


def _by_cpu(case: Case, spent: Mapping[str, _Host]) -> _Share | None:
    """Return the share of the rank's CPUs in interrupts and its peers', as counted per CPU.

    None if the rank's is unknown or below 5 %, or no peer's is known.
    """
    own = _share_of(case.fleet, case.rank, spent)
    if own is None or own < limits.EFFECT_SHARE:
        return None
    others = [share for peer in sample(case.peers) if (share := _share_of(case.fleet, int(peer), spent)) is not None]
    return _Share(own, median(others), f"cpu{case.fleet.ranks.cpus[case.rank]}", ORDERED) if others else None


@dataclass(frozen=True, slots=True)
class _Host:
    """Seconds in interrupts by CPU of one host; CPU numbers ascend."""

    cpus: list[int]
    seconds: list[float]

    def of(self, cpus: range) -> float:
        """Return the seconds in interrupts on the CPUs with numbers in this range."""
        return sum(self.seconds[bisect_left(self.cpus, cpus.start) : bisect_left(self.cpus, cpus.stop)])


def _per_cpu(fleet: Fleet) -> dict[str, _Host]:
    """Seconds in interrupts per CPU, by host."""
    counters = fleet.counters
    table, found = counters.table, dict[str, dict[int, float]]()
    for name in OF_INTERRUPTS:
        for row in counters.rows_of(name, -1).tolist():
            number = _number(table.instance.at(row))
            if number is not None:
                of_host = found.setdefault(table.observed_on.at(row), {})
                of_host[number] = of_host.get(number, 0.0) + float(table.value[row])
    return {host: _Host(*map(list, zip(*sorted(of_host.items()), strict=True))) for host, of_host in found.items()}


def _share_of(fleet: Fleet, rank: int, spent: Mapping[str, _Host]) -> float | None:
    """Return the mean share of the window (0..1) that the rank's allowed CPUs spent in interrupts.

    None if its allowed CPUs are unknown; 0 if nothing is counted on its host.
    """
    ranks = fleet.ranks
    cpus, host = cpus_of(ranks.cpus[rank]), spent.get(ranks.observed_on[rank])
    if not cpus:
        return None
    total = sum(map(host.of, cpus)) if host is not None else 0.0
    return total / (sum(map(len, cpus)) * max(fleet.seconds, 1e-9))


def _number(instance: str) -> int | None:
    """The number in a CPU's name, 12 for 'cpu12'; None for another name."""
    digits = instance.removeprefix("cpu")
    plain = digits.isascii() and digits.isdecimal() and len(digits) <= budgets.DIGITS_MOST
    return int(digits) if plain and instance == f"cpu{int(digits)}" else None


def _cpus(text: str) -> frozenset[str]:
    """Return the names ('cpu3') of the CPUs in a list such as '0-3,8'."""
    return frozenset(f"cpu{number}" for each in cpus_of(text) for number in each)


def _by_daemon(case: Case) -> _Share | None:
    """Return the share of softirq time of the CPU whose ksoftirqd ran most in place of the rank; None if unclear.

    Where it is not counted per CPU, all softirq time of the host is taken to be on that CPU.
    """
    taken = _daemons(case, case.rank)
    least = limits.NOTHING * case.fleet.seconds
    cpu = max(taken, key=lambda number: taken[number], default="")
    cpus = _cpus(case.fleet.ranks.cpus[case.rank])
    if not cpu or taken[cpu] < least or (cpus and cpu not in cpus):
        return None
    others = [sum(_daemons(case, int(peer)).values()) for peer in sample(case.peers)]
    if taken[cpu] < limits.OTHER_KIND * float(np.median(others) if others else 0.0):
        return None
    spent = sum(counter.value for counter in case.host_counters("cpu.softirq_s") if not counter.instance)
    share = spent / (max(len(cpus), 1) * max(case.fleet.seconds, 1e-9))
    return _Share(share, None, cpu, REPORTED) if share > 0 else None


def _daemons(case: Case, rank: int) -> dict[str, float]:
    """Return, by CPU ('cpu3'), the seconds that its ksoftirqd ran while the rank (row) was in the run queue."""
    found: dict[str, float] = {}
    for counter in case.fleet.counters.of("cpu.taken_s", rank):
        if (match := INTERRUPTS.match(counter.comm)) is not None:
            found[f"cpu{int(match[1])}"] = found.get(f"cpu{int(match[1])}", 0.0) + counter.value
    return found


def _taken_s(case: Case) -> float:
    """Return the seconds per step that processes other than ksoftirqd took from the rank, above its peers' median."""

    def taken(rank: int) -> float:
        """Return the seconds of the window that processes other than ksoftirqd took from a rank (row)."""
        rows = case.fleet.counters.of("cpu.taken_s", rank)
        return sum(counter.value for counter in rows if not INTERRUPTS.match(counter.comm))

    others = [taken(int(peer)) for peer in sample(case.peers)]
    return max(taken(case.rank) - float(np.median(others) if others else 0.0), 0.0) / case.steps
