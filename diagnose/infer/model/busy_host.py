"""CPU time that other processes took from the ranks of a job, as the kernel counts it.

queued(r, s) = seconds in which rank r was ready but not running in step s, without those of its own
               quota
taken(r)     = seconds of the window in which a process outside the job ran while r was in the run
               queue
share(r)     = taken(r) / the same by any process, or what r queued, the longer of the two: its own
               threads are not counted
taken(r, s)  = queued(r, s) · (share(r) + (1 - share(r)) · min(c, 1 - kept(r)))
c            = share(·) of all ranks of the host together: what such processes occupy of the CPUs
               while ranks want them
kept(r)      = max(R - C, 0) / (R - 1 - (C - 1) (1 - share(r)))
behind(r, s) = queued(r, s) · (1 - share(r))
even(r, s)   = mean of behind over the ranks that may run on the same CPUs of the host

kept(r) is the part of r's queueing behind other ranks that would remain without strangers. Where R
ranks want C CPUs at once and each is served alike, r queues e (R + S - C) / C with S strangers, (R
- 1) / (R - 1 + S) of it behind ranks, and e (R - C) / C without them; S follows from share(r); e:
the CPU time of each.

The load of the host says nothing about c: a process that gives way (SCHED_IDLE, a group of least
weight) takes all the CPU that is left over, and no rank queues behind it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from rankscope.diagnose.infer.fleet.labels import distinct_texts
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.evidence.job_processes import rank_of_process
from rankscope.diagnose.stats.robust import mean_of_known, nan_median
from rankscope.probes.base.arrays import Floats, Ints
from rankscope.probes.host.procfs import cpu_ranges, joined_ranges

OF_INTERRUPTS = ("cpu.softirq_s", "cpu.irq_s")
_FEW, _UNEVEN = 3, 0.4  # ranks of a role


def queued_s(fleet: Fleet) -> Floats:
    """Seconds that each rank was ready but not running, ranks x steps, without its own quota; 0 if unknown."""
    return np.asarray(np.nan_to_num(fleet.steps.sched_s) * (1 - held_back(fleet)[0])[:, None], dtype=np.float64)


def queued_outside_s(fleet: Fleet) -> Floats:
    """Seconds of queueing for a CPU outside collectives, ranks x steps, without those of quotas.

    The part inside collectives: the lesser of what stacks show and of own - (step - Σ stays); none
    where single collectives are unknown, or overlap.
    """
    return np.asarray(np.nan_to_num(fleet.steps.sched_s) * _outside(fleet)[:, None], dtype=np.float64)


def mean_queue_s(fleet: Fleet, columns: slice) -> Floats:
    """Mean seconds per step and rank of queueing outside collectives, over these steps."""
    return np.asarray(mean_of_known(fleet.steps.sched_s[:, columns]) * _outside(fleet), dtype=np.float64)


def _outside(fleet: Fleet) -> Floats:
    """Share of each rank's ready time that is neither throttled by its quota nor inside collectives."""
    return np.asarray((1 - held_back(fleet)[0]) * (1 - _inside(fleet)), dtype=np.float64)


def _inside(fleet: Fleet) -> Floats:
    """Share of each rank's queueing for a CPU that is inside collectives; 0 where unknown."""
    steps, table, ranks = fleet.steps, fleet.patterns, len(fleet.ranks)
    if fleet.slots is None or fleet.slots.part < 1 or fleet.slots.stay_s.shape[1] != steps.count:
        return np.zeros(ranks)
    ready, collective = (table.kind.codes == table.kind.code(kind) for kind in ("sched", "collective"))
    known = table.stack.codes >= 0
    place = table.rank * (int(table.stack.codes.max(initial=0)) + 1) + table.stack.codes
    there = ready & known & np.isin(place, place[collective & known])
    by_stacks = np.bincount(table.rank[there], weights=table.per_step_s[there], minlength=ranks)
    by_stays = mean_of_known(steps.own_s - (steps.seconds - fleet.slots.stay_s.sum(axis=2)))
    queued = mean_of_known(steps.sched_s)
    inside = np.fmin(by_stacks, by_stays) / np.where(queued > 0, queued, np.inf)
    return np.asarray(np.clip(inside, 0.0, 1.0), dtype=np.float64)


def _taken_from(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return the seconds of the window that other processes ran while each rank's process queued.

    (those of processes outside the job, those of all); the rank's own threads are not counted.
    """
    table, rows = fleet.counters.table, fleet.counters.rows("cpu.taken_s")
    rank = table.rank[rows]
    rows, rank = rows[rank >= 0], rank[rank >= 0]
    strange = rank_of_process(fleet, rows) < 0
    total = np.bincount(rank, weights=table.value[rows], minlength=len(fleet.ranks))
    theirs = np.bincount(rank, weights=table.value[rows] * strange, minlength=len(fleet.ranks))
    return np.asarray(theirs, dtype=np.float64), np.asarray(total, dtype=np.float64)


def _queued_behind(fleet: Fleet) -> tuple[Floats, Floats]:
    """Return the seconds of the window that processes outside the job, and any, ran while each rank queued.

    The second is at least the rank's own queueing, which may be behind its own threads.
    """
    theirs, total = _taken_from(fleet)
    return theirs, np.asarray(np.fmax(total, np.nansum(queued_s(fleet), axis=1)), dtype=np.float64)


def _ready_s(fleet: Fleet, total: Floats) -> Floats:
    """Seconds that all threads of each rank's process queued for a CPU, at least `total`.

    `total`: seconds that other processes ran meanwhile, by rank.
    """
    return np.fmax(total, np.nan_to_num(fleet.counters.total("cpu.process_ready_s", np.arange(len(total)))))


def others_share(fleet: Fleet) -> Floats:
    """Share of each rank's queueing that is behind other processes, not its own threads; 1 if not counted."""
    _, total = _taken_from(fleet)
    ready = _ready_s(fleet, total)
    return np.divide(total, ready, out=np.ones(len(ready)), where=ready > 0)


def ranks_share(fleet: Fleet) -> Floats:
    """Share of each rank's queueing behind other ranks and loader workers of the job; 0 if not counted."""
    theirs, total = _taken_from(fleet)
    ready = _ready_s(fleet, total)
    return np.divide(total - theirs, ready, out=np.zeros(len(ready)), where=ready > 0)


def taken_share(fleet: Fleet) -> Floats:
    """share(r): share of processes outside the job in what each rank queued behind; 0 if not counted."""
    theirs, whole = _queued_behind(fleet)
    return np.divide(theirs, whole, out=np.zeros(len(whole)), where=whole > 0)


def taken_s(fleet: Fleet) -> Floats:
    """Seconds that processes outside the job cost each rank, ranks x steps; 0 if not counted: taken(r, s)."""
    return _cost_s(fleet, *_queued_behind(fleet))


def taken_by_threads_s(fleet: Fleet, row: int, behind_s: float, part: float) -> Floats:
    """Seconds that excess threads of one rank's process cost each rank, ranks x steps.

    `row`: that rank. `part`: their share of what the process took from other ranks' CPUs.
    `behind_s`: seconds per step that its own training thread queues behind them.
    """
    table, rows = fleet.counters.table, fleet.counters.rows("cpu.taken_s")
    _, total = _queued_behind(fleet)
    by_it = rows[(table.rank[rows] >= 0) & (rank_of_process(fleet, rows) == row)]
    theirs = part * np.bincount(table.rank[by_it], weights=table.value[by_it], minlength=len(total))
    total[row], theirs[row] = (
        float(np.nansum(queued_s(fleet)[row])),
        behind_s * np.isfinite(fleet.steps.seconds[row]).sum(),
    )
    return _cost_s(fleet, np.fmin(theirs, total), total)


def _cost_s(fleet: Fleet, theirs: Floats, total: Floats) -> Floats:
    """Estimate the seconds that some processes cost each rank in each step, ranks x steps: taken(r, s) of the header.

    `theirs`, `total`: by rank, seconds of the window that these processes, and all, ran while it
    queued. A rank's seconds are its queueing in the step, times share + (1 - share) · min(c, 1 - kept):
    share is theirs / total, the queueing behind these processes themselves; the second term is
    queueing behind other ranks that would go without them (c: theirs / total of the whole host;
    kept: `_kept`). 0 where share is 0.
    """
    share = np.divide(theirs, total, out=np.zeros(len(total)), where=total > 0)
    host = distinct_texts(fleet.ranks.observed_on)[1]
    of_host, all_of_host = (np.bincount(host, weights=each)[host] for each in (theirs, total))
    claim = np.divide(of_host, all_of_host, out=np.zeros(len(total)), where=all_of_host > 0)
    part = np.where(share > 0, share + np.minimum(claim, 1 - _kept(fleet, share)) * (1 - share), 0.0)
    return np.asarray(part[:, None] * queued_s(fleet), dtype=np.float64)


def _kept(fleet: Fleet, share: Floats) -> Floats:
    """Share of each rank's queueing behind other ranks that remains without strangers: kept(r) of the header.

    `share`: share of processes outside the job in its queueing. 0 if its CPUs are unknown.
    """
    _, wanted_by, there = _wanted(fleet)
    more = np.maximum(wanted_by - there, 0)
    most = wanted_by - 1 - (there - 1) * (1 - share)
    return np.asarray(np.divide(more, most, out=np.zeros(len(share)), where=more > 0), dtype=np.float64)


def _wanted(fleet: Fleet) -> tuple[Ints, Ints, Ints]:
    """Return, by rank, (number of its pool, ranks in that pool, CPUs in that pool).

    Where the CPUs are unknown, as many CPUs as ranks.
    """
    pool = pools(fleet)
    lists = dict[int, list[str]]()
    for number, names in {(int(each), names) for each, names in zip(pool, fleet.ranks.cpus, strict=True)}:
        lists.setdefault(number, []).append(names)
    many = {number: cpus_together(names) for number, names in lists.items()}
    wanted_by = np.bincount(pool)[pool]
    there = [many[number] or wanted for number, wanted in zip(pool.tolist(), wanted_by.tolist(), strict=True)]
    return pool, wanted_by, np.array(there, dtype=np.int64)


def strangers_shares(fleet: Fleet) -> dict[str, float]:
    """Share of each host's CPU time that went to processes outside the job, without interrupts.

    Only hosts that are counted. Interrupts are no process: the interrupted process appears to run
    longer, so they take the same part of what is not the job's as of all.
    """
    counters = fleet.counters
    busy = {each.observed_on: each for each in reversed(list(counters.of("cpu.busy_s", -1))) if each.limit > 0}
    job = dict.fromkeys(busy, 0.0)
    hosts = fleet.ranks.observed_on
    for name in ("cpu.process_run_s", "cpu.workers_run_s"):
        rows = counters.rows(name)
        for rank, seconds in zip(counters.table.rank[rows].tolist(), counters.table.value[rows].tolist(), strict=True):
            if rank >= 0 and hosts[rank] in job:
                job[hosts[rank]] += seconds
    interrupts = dict.fromkeys(busy, 0.0)
    for each in (counter for name in OF_INTERRUPTS for counter in counters.of(name, -1)):
        if not each.instance and each.observed_on in interrupts:
            interrupts[each.observed_on] += each.value
    return {
        host: float(
            max(each.value - job[host], 0.0) * max(1 - interrupts[host] / max(each.value, 1e-9), 0.0) / each.limit
        )
        for host, each in busy.items()
    }


def busy_shares(fleet: Fleet) -> Floats:
    """Share (0..1) of the CPU time of each rank's host that processes outside the job took; 0 if not counted."""
    share = strangers_shares(fleet)
    return np.array([min(share.get(host, 0.0), 1.0) for host in fleet.ranks.observed_on], dtype=np.float64)


def busy_noise_s(fleet: Fleet, roles: Ints) -> Floats:
    """Noise in seconds per step that processes outside the job cause in each rank's own time.

    0.4 · u (1 - u) · w(r), u = busy_shares(r)
    w(r) = median over s of own(r,s), at most what r's process ran or queued for per step: a rank
           that sleeps or waits for a device is not slowed.

    0 for ranks with more than two peers, which show this spread themselves. A rank that computes
    alongside strangers is slower in everything, by caches, clocks and the other thread of a core,
    which is not counted, and unevenly while strangers have some of the cores. Measured:
    diagnose/measured.md.
    """
    few = np.bincount(roles)[roles] <= _FEW
    if not few.any():
        return np.zeros(len(few))
    share = busy_shares(fleet)
    own = nan_median(fleet.steps.own_s, 1)
    ran = fleet.counters.total("cpu.process_run_s", np.arange(len(own))) / fleet.steps.of_each
    wanted = ran + nan_median(np.nan_to_num(fleet.steps.sched_s), 1)
    return np.where(few, _UNEVEN * share * (1 - share) * np.nan_to_num(np.fmin(own, wanted)), 0.0)


def held_back(fleet: Fleet) -> tuple[Floats, Floats]:
    """(share of its ready time, seconds per step) that its own quota throttled each rank."""
    table, ranks = fleet.patterns, len(fleet.ranks)
    ready = (table.kind.codes == table.kind.code("sched")) & (table.name.codes == table.name.code("ready"))
    ready &= table.thread.codes == table.thread.code("training")
    held = ready & (table.detail.codes == table.detail.code("throttled"))
    total, by_quota = (
        np.asarray(np.bincount(table.rank[rows], table.per_step_s[rows], ranks), dtype=np.float64)
        for rows in (ready, held)
    )
    return np.divide(by_quota, total, out=np.zeros(ranks), where=total > 0), by_quota


def own_without_queue(fleet: Fleet) -> Fleet:
    """Return the fleet with own and ready times as if no rank had queued for a CPU."""
    steps, queue = fleet.steps, _queue_in_own_s(fleet)
    return replace(fleet, steps=replace(steps, own_s=steps.own_s - queue, sched_s=steps.sched_s - queue))


def without_queue(fleet: Fleet) -> Fleet:
    """Return the fleet as if no rank had queued for a CPU: only work remains.

    Queueing is caused by others too: a rank that computes more takes the CPU from its peers, so
    that their queueing hides it, and strangers take CPU unevenly from step to step.

    own'(r,s)   = own(r,s) - queue(r,s)
    gone(s)     = min over r of (wait + queue)(r,s) - min over r of wait(r,s): how much sooner the
                  last rank would have come
    wait'(r,s)  = wait(r,s) + queue(r,s) - gone(s): a rank that queued for longer waits for the
                  others instead
    step'(s)    = step(s) - gone(s)

    The transfer, the least of the waiting, is unchanged. Single collectives and pipelines are then
    unknown.
    """
    steps, table = fleet.steps, fleet.patterns
    queue = _queue_in_own_s(fleet)
    waiting = steps.wait_s + queue
    gone = np.nan_to_num(_least(waiting) - _least(steps.wait_s))
    ready = table.kind.codes == table.kind.code("sched")
    return replace(
        fleet,
        steps=replace(
            steps,
            seconds=steps.seconds - gone,
            own_s=steps.own_s - queue,
            wait_s=waiting - gone,
            sched_s=steps.sched_s - queue,
        ),
        patterns=replace(table, per_step_s=np.where(ready, 0.0, table.per_step_s)),
        slots=None,
        pipelines=None,
    )


def _queue_in_own_s(fleet: Fleet) -> Floats:
    """queue(r,s): seconds of own times in which ranks are ready but not running."""
    return np.asarray(np.fmin(np.nan_to_num(fleet.steps.sched_s), np.nan_to_num(fleet.steps.own_s)), dtype=np.float64)


def _least(of_ranks: Floats) -> Floats:
    """Least known value of each column (ranks x steps); NaN where there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmin(of_ranks, axis=0), dtype=np.float64)


def even_queue_s(fleet: Fleet) -> tuple[Floats, Floats]:
    """Queueing behind other ranks: (as it is, balanced over the ranks with the same CPUs).

    Both in seconds, ranks x steps. Strangers that occupy a CPU drive the ranks together on the
    others: some queue for long, and one that shares with the strangers behind none. Without
    strangers the ranks still queue for each other, but all alike.
    """
    steps = fleet.steps
    behind = queued_s(fleet) * (1 - taken_share(fleet))[:, None]
    pool, known = pools(fleet), np.isfinite(steps.own_s)
    total, count = np.zeros((2, int(pool.max(initial=-1)) + 1, steps.count))
    np.add.at(total, pool, np.where(known, behind, 0.0))
    np.add.at(count, pool, known)
    return behind, np.asarray((total / np.maximum(count, 1))[pool], dtype=np.float64)


def crowded_s(fleet: Fleet) -> Floats:
    """Seconds per step that ranks queue when all want their CPUs at once: c (R - C) / C.

    R ranks may run on the same C CPUs; c: mean over them of the training thread's running time; 0
    where their CPUs are unknown. Measured against healthy windows: diagnose/measured.md.
    """
    (pool, wanted_by, there), table = _wanted(fleet), fleet.patterns
    runs = (table.kind.codes == table.kind.code("python")) & (table.detail.codes != table.detail.code("sleep"))
    runs &= table.thread.codes == table.thread.code("training")
    ran = np.bincount(table.rank[runs], np.nan_to_num(table.per_step_s[runs]), len(pool))
    usual = np.bincount(pool, ran)[pool] / wanted_by
    behind = usual * np.maximum(wanted_by - there, 0) / there
    return np.asarray(behind, dtype=np.float64)


def pools(fleet: Fleet) -> Ints:
    """Number each rank's pool: ranks of a host with common CPUs, directly or through other
    ranks.
    """
    return _pools(fleet.ranks.observed_on, fleet.ranks.cpus)


@lru_cache(maxsize=2)
def _pools(hosts: tuple[str, ...], cpus_of_each: tuple[str, ...]) -> Ints:
    """Compute `pools` from the host and the CPU list of each rank; cached.

    It is called several times per fleet.
    """
    places = list(zip(hosts, cpus_of_each, strict=True))
    of_host = dict[str, list[str]]()
    for host, cpus in dict.fromkeys(places):
        of_host.setdefault(host, []).append(cpus)
    number = dict[tuple[str, str], int]()
    for host, lists in of_host.items():
        first = len(number)
        number |= {(host, cpus): first + pool for cpus, pool in zip(lists, _joined(lists), strict=True)}
    result: Ints = np.array([number[place] for place in places], dtype=np.int64)
    result.flags.writeable = False
    return result


def _joined(lists: list[str]) -> list[int]:
    """Number lists of CPUs: equal if they have common CPUs, directly or through others.

    The number of a pool is the index of a list in it.
    """
    above = list(range(len(lists)))  # for each list, an earlier one of its pool; the first points to itself

    def first_of(one: int) -> int:
        """Index of the first list of a list's pool."""
        while above[one] != one:
            above[one] = above[above[one]]
            one = above[one]
        return one

    ranges = sorted((each.start, each.stop, at) for at, cpus in enumerate(lists) for each in cpus_of(cpus))
    reached, holder = -1, -1
    for start, stop, at in ranges:
        if start < reached:
            one, other = sorted((first_of(at), first_of(holder)))
            above[other] = one
        if stop > reached:
            reached, holder = stop, at
    return [first_of(at) for at in range(len(lists))]


def cpus_together(lists: Iterable[str]) -> int:
    """Number of CPUs in any of these lists; 0 where all are unknown."""
    return sum(map(len, joined_ranges([each for names in lists for each in cpus_of(names)])))


def cpus_of(text: str) -> tuple[range, ...]:
    """Parse a CPU list as taskset prints it; empty if it is no such list."""
    try:
        return cpu_ranges(text)
    except ValueError:  # a forged window may contain anything
        return ()


def cpus_text(mask: str) -> str:
    """Name the CPUs of a mask: 'CPU 0', 'CPUs 0-3'."""
    return f"{'CPU' if mask.isdigit() else 'CPUs'} {mask}"
