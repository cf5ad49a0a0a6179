"""CPU: the training thread is ready to run but does not run.

Evidence for: ready time above the peers', and a counter of what kept the rank off its CPU: CFS
throttling of its control group (quota); the process that ran meanwhile (contended; affinity if it
is a rank of the same job; irq if it is the kernel's thread for interrupts); steal. Interrupts
between the rank's own instructions: interrupts.py. Where takers are counted and hardly any process
ran, there is no contention: that is a quota too, or steal.

Evidence against: no ready time above the peers'; a function that computes for longer and queues for
it, as its peers do; other threads of the rank's own process that ran meanwhile (threads.py); a
process that runs longer, with its loaders, and waits no longer per second of CPU than the peers'.
Without a counter the hypothesis has less support.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import ALIKE, CONVICTED, EXCUSED, NO_COUNTER, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.rank.threads import beside_evidence
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.counters import Counter
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import cpus_of
from rankscope.diagnose.infer.model.evidence.job_processes import ranks_named
from rankscope.diagnose.infer.model.evidence.programs import Program, culprits
from rankscope.diagnose.infer.model.functions import sample
from rankscope.diagnose.infer.past.demand import wanted_s
from rankscope.diagnose.infer.verdict.contract import LIMIT, Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import after
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools

INTERRUPTS = re.compile(r"^ksoftirqd/(\d{1,5})$")  # the kernel's thread for too many interrupts


@cause("cpu", "contended", witness="run queue, and who ran meanwhile", says="{instance|something else} takes its CPU")
@cause("cpu", "quota", witness="throttled time of its control group", rests_on=[Source.HOST],
       says="a CPU quota holds it back",
       action="Raise or remove the CPU quota (cpu.max, cpu.cfs_quota_us, resources.limits.cpu) of this rank's control group.")  # fmt: skip
@cause("cpu", "affinity", witness="ranks of the job on the same CPUs",
       says="it may run on too few CPUs",
       action="Several ranks share these CPUs: widen or spread their affinity (taskset, --bind-to, cpuset).")  # fmt: skip
@cause("cpu", "steal", witness="steal time, and nobody else ran", rests_on=[Source.HOST],
       says="the hypervisor takes its CPU away")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose cpu/quota for throttling, and one more CPU cause for the rest of the run-queue wait above the peers'."""
    ready = case.excess_of("sched") - case.excess_of("sched", "job control") if case.functions else case.sched_excess_s
    ready -= max(case.queue_of_function_s + case.threads.queue_s, _queue_of_demand_s(case))
    if ready <= 0:
        return
    throttled, quota_evidence = _throttling(case)
    by_quota = min(max(throttled, case.excess_of("sched", "throttled"), 0.0), ready)
    queued = ready - by_quota
    # A rank kept off its CPU loses caches and clock speed too: every function grows a little, none
    # is odd.
    spread = case.python is not None and case.python.spread and ready >= limits.PART * case.excess_s
    diffuse = case.python.excess_s if case.python is not None and spread else 0.0
    if by_quota >= limits.PART * ready:
        yield case.charge(
            "cpu", "quota", by_quota + diffuse, CONVICTED if quota_evidence else NO_COUNTER,
            (_ready_evidence(case, ready), *quota_evidence), instance=_cgroup(case),
        )  # fmt: skip
        diffuse = 0.0
    if queued > 0:
        yield _queue_charge(case, queued, diffuse)


def _queue_of_demand_s(case: Case) -> float:
    """Seconds per step of run-queue wait that follow from wanting more CPU than the peers.

    The peers' wait times (own demand / median demand - 1), loaders included: a rank that waits no
    longer per second of CPU than they do is not kept off its CPU.
    """
    wants = wanted_s(case.fleet, np.append(case.rank, sample(case.peers)))
    own, known = float(wants[0]), wants[1:][np.isfinite(wants[1:])]
    usual = median(known) if len(known) else 0.0
    if not (np.isfinite(own) and usual > 0):
        return 0.0
    return sum(f.peers_s for f in case.functions if f.kind == "sched") * max(own / usual - 1, 0.0)


def throttled(fleet: Fleet) -> Bools:
    """Mask of the ranks whose control group was throttled at all."""
    table, rows = fleet.counters.table, fleet.counters.rows("cpu.throttled_s")
    ranks = table.rank[rows[table.value[rows] > 0]]
    result = np.zeros(len(fleet.ranks), dtype=bool)
    result[ranks[ranks >= 0]] = True
    return result


def _throttling(case: Case) -> tuple[float, tuple[Evidence, ...]]:
    """Return (seconds per step, evidence) of throttling of the rank's control group above its peers' median.

    (0, ()) without any.
    """
    counters = list(case.counters("cpu.throttled_s", ("cgroup",)))
    if not counters:
        return 0.0, ()
    worst = max(counters, key=lambda counter: counter.value)
    peers = [counter.value for counter in case.peers_of("cpu.throttled_s")]
    expected = sorted(peers)[len(peers) // 2] if peers else 0.0
    over = (worst.value - expected) / max(case.steps, 1)
    if over <= 0:
        return 0.0, ()
    evidence = [
        Evidence("cgroup", "held back by the CPU quota of its control group", worst.value, expected, "s", len(peers))
    ]
    if worst.limit == worst.limit:
        evidence.append(Evidence("cgroup", "cpu quota", worst.limit, None, "CPUs", role=LIMIT))
    return over, tuple(evidence)


def _cgroup(case: Case) -> str:
    """Return the rank's control group that was throttled longest; '' without one."""
    counters = sorted(case.counters("cpu.throttled_s", ("cgroup",)), key=lambda counter: -counter.value)
    return counters[0].instance if counters else ""


def _ready_evidence(case: Case, ready: float) -> Evidence:
    """Return the evidence of the rank's run-queue wait; `ready`: seconds per step above what is expected."""
    mine = sum(f.own_s for f in case.functions if f.kind == "sched")
    value, expected = (mine, mine - ready) if mine >= ready else (ready, 0.0)
    return Evidence("scheduler", "waiting for a CPU", value, max(expected, 0.0), "s/step", len(case.peers))


@dataclass(frozen=True, slots=True)
class _Takers:
    """Processes that ran while the rank was in the run queue, in seconds of the window, by name."""

    foreign: tuple[Program, ...]  # largest first
    ours_s: float  # ranks of the same job
    suspects_s: float  # part of ours_s: by ranks that are suspects, for what they do longer than their peers

    @property
    def foreign_s(self) -> float:
        """Seconds of the window that processes outside the job ran."""
        return sum(one.seconds for one in self.foreign)


def _takers(case: Case) -> _Takers:
    """Return who ran while the rank was in the run queue: programs outside the job, and ranks of the job.

    Loader workers count as their rank, the rank's own ones too.
    """
    counters = list(case.counters("cpu.taken_s", ("rank",)))
    job = ranks_named(case.fleet, counters)
    foreign: dict[str, tuple[float, list[int]]] = {}
    ours = by_suspects = 0.0
    for counter in counters:
        if (row := job.get((counter.observed_on, counter.pid))) is not None:
            ours += counter.value
            by_suspects += counter.value * _longer(case, row)
            continue
        total, pids = foreign.get(counter.comm, (0.0, []))
        foreign[counter.comm] = (total + counter.value, [*pids, counter.pid] if counter.pid >= 0 else pids)
    ordered = sorted(foreign.items(), key=lambda item: -item[1][0])
    return _Takers(tuple(Program(comm, total, tuple(pids)) for comm, (total, pids) in ordered), ours, by_suspects)


def behind_suspects_s(case: Case) -> float:
    """Seconds per step that the rank queued behind other suspects because of their excess."""
    return _takers(case).suspects_s / max(case.steps, 1) if len(case.suspects) else 0.0


def _longer(case: Case, row: int) -> float:
    """Share of a suspect's own time (row) beyond its peers'; 0 for other ranks."""
    if row not in case.suspects:
        return 0.0
    own_s = case.fleet.steps.own_s
    usual, whole = np.nanmedian(np.nanmean(own_s[sample(case.peers)], axis=1)), np.nanmean(own_s[row])
    return float(np.clip(1 - usual / max(whole, 1e-12), 0.0, 1.0))


def _taken_from_peers_s(case: Case, by: Callable[[Counter], bool]) -> tuple[float, float]:
    """Seconds that counted processes ran in place of a peer: (median, upper median).

    `by` selects the counters. The upper median because, of two peers, one may have a core of its
    own and one share it as this rank does: then this rank is not odd.
    """
    taken = dict.fromkeys(sample(case.peers).tolist(), 0.0)
    for counter in case.peers_of("cpu.taken_s"):
        if by(counter):
            taken[counter.rank] += counter.value
    ordered = sorted(taken.values())
    return (median(ordered), ordered[len(ordered) // 2]) if ordered else (0.0, 0.0)


def _queue_charge(case: Case, queued: float, diffuse: float) -> Hypothesis:
    """Return the hypothesis on the process that ran while the rank was in the run queue.

    `queued`: run-queue wait above the peers'; `diffuse`: growth of all functions alike that goes with
    it (lost caches); both in seconds per step. What another suspect took by its own excess is that
    suspect's. Ranks of the job are no cause, even where the rank shares its CPUs with them alone,
    unless it queues behind them five times as long as any other rank does: it is chance, or how they
    work together (the middle of a pipeline is woken when both its neighbours are).
    """
    takers, steps = _takers(case), max(case.steps, 1)
    queued = max(queued - takers.suspects_s / steps, 0.0)
    needed, lost_s = limits.PART * queued * steps, queued + diffuse
    evidence = [_ready_evidence(case, queued)]
    if "cpu.taken_s" in case.fleet.counters and takers.foreign_s + takers.ours_s < needed:
        if case.threads.behind_s * steps >= needed:
            return _own_charge(case, lost_s, evidence)
        return _nobody_charge(case, queued, diffuse, takers.foreign_s + takers.ours_s, evidence)
    if takers.foreign and takers.foreign_s >= max(needed, takers.ours_s):
        return _foreign_charge(case, takers, needed, lost_s, evidence)
    if takers.ours_s >= needed:
        job = ranks_named(case.fleet, case.peers_of("cpu.taken_s"))
        usual, most = _taken_from_peers_s(case, lambda one: (one.observed_on, one.pid) in job)
        what = "CPU taken by ranks of the same job"
        evidence.append(Evidence("scheduler", what, takers.ours_s / steps, usual / steps, "s/step", len(case.peers)))
        apart = takers.ours_s - most >= needed
        if apart and _is_crowded(case):
            cpus = case.fleet.ranks.cpus[case.rank]
            evidence.append(Evidence("process", "allowed CPUs", cpus, None, ""))
            return case.charge("cpu", "affinity", lost_s, CONVICTED, tuple(evidence), instance=cpus)
        action = f"The ranks of the job{after('on', case.host)} take the CPU from each other: start fewer, or fewer threads of each."
        if not apart:  # they take it from each other, from this rank no more than from another
            lost_s = min(lost_s, (most - usual) / steps)
        support = EXCUSED if apart and takers.ours_s >= limits.LINK_RATIO * most else ALIKE
        return case.charge("cpu", "contended", lost_s, support, tuple(evidence), action)
    action = f"Find what runs on the CPUs of this rank{after('on', case.host)} (pidstat 1, top)."
    return case.charge("cpu", "contended", lost_s, NO_COUNTER, tuple(evidence), action)


def _foreign_charge(case: Case, takers: _Takers, needed: float, lost_s: float, evidence: list[Evidence]) -> Hypothesis:
    """Return cpu/contended by the largest process outside the job, or cpu/irq if that is the interrupt thread.

    `needed`: CPU seconds of the window that the interrupt thread must take beyond the peers' median;
    `lost_s`: seconds per step.
    """
    told = (*evidence, *(
        Evidence("scheduler", f"CPUs taken meanwhile by {one.words}, on average", one.seconds / case.fleet.seconds, None, "CPUs")
        for one in culprits(takers.foreign)
    ))  # fmt: skip
    comm, total, pids = takers.foreign[0].comm, takers.foreign[0].seconds, takers.foreign[0].pids
    interrupted = INTERRUPTS.match(comm)
    if interrupted is not None and total - _taken_from_peers_s(case, _by_interrupts)[0] >= needed:
        cpu = f"cpu{interrupted[1]}"
        action = f"See what interrupts {cpu}{after('of', case.host)} (/proc/softirqs, mpstat -P ALL 1): steer it to CPUs without ranks."
        return case.charge("cpu", "irq", lost_s, CONVICTED, told, action, cpu)
    who = f"{comm} ({pids[0]})" if len(pids) == 1 else f"{comm} ({len(pids)} processes)" if pids else comm
    machine = case.fleet.ranks.observed_on[case.rank]  # whose processes the numbers are of
    action = f"Move or stop {takers.foreign[0].words}{after('on', machine)}, or give the rank CPUs of its own."
    return case.charge("cpu", "contended", lost_s, CONVICTED, told, action, who)


def _by_interrupts(counter: Counter) -> bool:
    """Whether the counter's process is the kernel's thread for interrupts."""
    return INTERRUPTS.match(counter.comm) is not None


def _own_charge(case: Case, lost_s: float, evidence: list[Evidence]) -> Hypothesis:
    """Return cpu/contended by threads of the rank's own process, named if known; extend `evidence`.

    `lost_s`: seconds per step. Named ones mostly send and receive for the job (own_threads.py): little
    support.
    """
    threads = case.threads
    evidence.append(beside_evidence(case))
    pid = int(case.fleet.ranks.pid[case.rank])
    which = threads.native or f"see which (top -H -p {pid}{after('on', case.host)})"
    action = f"Threads of the rank's own process take its CPUs: {which}."
    support = EXCUSED if threads.native else NO_COUNTER  # those that send: own_threads.py
    found = case.charge("cpu", "contended", lost_s, support, tuple(evidence), action)
    return replace(found, says="threads of its own process take its CPU")


def _nobody_charge(case: Case, queued: float, diffuse: float, taken: float, evidence: list[Evidence]) -> Hypothesis:
    """Return cpu/steal or, without steal time, cpu/quota: the rank queued while hardly any process ran.

    `queued`, `diffuse`: seconds per step of queueing and of what goes with it; `taken`: seconds of the
    window that other processes ran meanwhile. Extends `evidence`.
    """
    steps = max(case.steps, 1)
    evidence.append(Evidence("scheduler", "CPU taken by any other process", taken / steps, queued, "s/step"))
    stolen = sum(counter.value for counter in case.host_counters("cpu.steal_s"))
    if stolen >= limits.PART * queued * steps:
        evidence.append(Evidence("host", "CPU time of its host that the hypervisor took", stolen, None, "s"))
        action = f"The hypervisor gives {case.host or 'this host'} less CPU than it was sold: move the virtual machine."
        return case.charge("cpu", "steal", queued + diffuse, CONVICTED, tuple(evidence), action)
    action = "Nobody else ran: look for a CPU quota on this rank's control group (cpu.max, cpu.cfs_quota_us)."
    return case.charge("cpu", "quota", queued + diffuse, NO_COUNTER, tuple(evidence), action)


def _is_crowded(case: Case) -> bool:
    """Whether the rank has the same CPUs as another one while a third has CPUs outside them.

    False where most ranks of the host have these CPUs: that is how the job was set up.
    """
    ranks = case.fleet.ranks
    mine, host = ranks.cpus[case.rank], ranks.observed_on[case.rank]
    on_host = [row for row in range(len(ranks)) if ranks.observed_on[row] == host]
    if len(on_host) > 4096 or not mine or not 2 <= sum(ranks.cpus[row] == mine for row in on_host) <= len(on_host) / 2:
        return False
    others, allowed = {ranks.cpus[row] for row in on_host} - {mine}, cpus_of(mine)
    return any(not _within(cpus_of(cpus), allowed) for cpus in others)


def _within(some: Sequence[range], all_of_them: Sequence[range]) -> bool:
    """Return whether every range of `some` lies in one range of `all_of_them`; both ascend without touching."""
    starts = [each.start for each in all_of_them]
    at = [bisect_right(starts, each.start) - 1 for each in some]
    return all(place >= 0 and each.stop <= all_of_them[place].stop for each, place in zip(some, at, strict=True))
