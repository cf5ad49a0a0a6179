"""Run-queue delay that a slow rank causes to others on its host; negative where fixing it would add
delay.

behind(p,r,s)  = queued(p,s) · outside(p) · more(p,r) / taken(p)

taken(p,r)     = seconds in which r ran while p was in the run queue; taken(p): in which any process
                 did
outside(p)     = 1 - the part of its queueing that is in collectives
more(p,r)      = taken(p,r) - median over peers q, no suspects, of taken(p,q), where p must share
                 its CPUs with such peers of r (as many as there are CPUs, besides p): repaired, r
                 takes from p as much as each of them
more(p,r)      = taken(p,r) · (1 - run' / (run(r) · min(own' / own(r), 1))), where p need not, or
                 its CPUs are unknown: then the scheduler decides the order of the queue
run(r)         = CPU seconds of the rank and its loaders; of its training thread at most its working
                 time, since in a collective it may only poll
own(r)         = its mean own time; ': the median of its peers that are no suspects

While its peers work, r does own' / own(r) of its work; the rest keeps no awaited rank from a CPU.
Repaired, it runs as much meanwhile as they do, and all meet in collectives as before. So a rank
that computes too long gives back its peers' queueing behind it; a rank that only waited for
something else will want the CPU that it left to them, and behind is then below 0.

What ranks cost that are slow without CPU queues (`calm` seconds), in the step with them:

loss   = max(longer · calm, healed): the same share of the step as without queues, or how much
         shorter it were if these ranks were as fast as their peers and queued as they do
price  = max(E max(x - U, 0), healed), as reported; U uniform in 0..u
x      = calm · own / (own - queue): with the queueing of these ranks themselves
u      = how much less of the step they queue than their peers

The longer queueing of the others is where they wait for these ranks, and hides them, or before
other collectives, and does not; which was not observed.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import cpus_of, pools, queued_outside_s
from rankscope.diagnose.infer.model.functions import sample
from rankscope.diagnose.infer.model.replay import in_order_of, repaired, shrink
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.stats.robust import mean_of_known, median
from rankscope.probes.base.arrays import Floats, Ints

Behind = dict[int, tuple[Ints, Floats]]  # by rank (row): the delayed ranks, and seconds, delayed ranks x steps


def behind_each(fleet: Fleet, own: Floats, roles: Ints, suspects: Ints) -> Behind:
    """Compute, for each suspect (row), which ranks of its host queued behind it, and how long.

    `own`: ranks x steps, the last steps of the window. Suspects themselves are left out of the
        delayed ranks; empty where takers are not counted.
    """
    found: Behind = {}
    table, rows = fleet.counters.table, fleet.counters.rows("cpu.taken_s")
    rows = rows[table.rank[rows] >= 0]
    innocent = np.ones(len(own), dtype=bool)
    innocent[suspects] = False
    by_one = rows[innocent[table.rank[rows]] & np.isin(table.pid[rows], fleet.ranks.pid[suspects])]
    if not len(by_one):
        return found
    anybody = np.bincount(table.rank[rows], weights=table.value[rows], minlength=len(own))
    queued, pool = queued_outside_s(fleet)[:, -own.shape[1] :], pools(fleet)
    hosts = fleet.ranks.observed_on
    for rank in suspects.tolist():
        mine = by_one[table.pid[by_one] == fleet.ranks.pid[rank]]
        here = np.array([hosts[other] == hosts[rank] for other in table.rank[mine].tolist()], dtype=bool)
        by_it = np.bincount(table.rank[mine[here]], weights=table.value[mine[here]], minlength=len(own))
        others: Ints = np.flatnonzero(by_it > 0)
        if not len(others):
            continue
        peers = np.flatnonzero((roles == roles[rank]) & innocent)
        near = peers[np.isin(pool[peers], pool[others])]
        usual = _usual_s(fleet, rows[np.isin(table.rank[rows], others)], others, near, pool)
        longer = by_it[others] * _more(fleet, rank, sample(peers))
        more = np.where(np.isfinite(usual), by_it[others] - usual, longer)
        found[rank] = others, np.fmin((more / anybody[others])[:, None] * queued[others], np.nan_to_num(own[others]))
    return found


def _usual_s(fleet: Fleet, rows: Ints, others: Ints, peers: Ints, pool: Ints) -> Floats:
    """Median seconds that peers of the suspect ran while each of `others` queued: taken(p,q).

    Over the `peers` q that must share p's CPUs; NaN where p need not share its CPUs. `rows`:
    counter rows of the processes that ran.
    """
    table, result = fleet.counters.table, np.full(len(others), np.nan)
    for at, other in enumerate(others.tolist()):
        beside = peers[(pool[peers] == pool[other]) & (peers != other)]
        if not 1 <= sum(map(len, cpus_of(fleet.ranks.cpus[other]))) <= len(beside):
            continue
        mine = rows[table.rank[rows] == other]
        pids, place = np.unique(fleet.ranks.pid[beside], return_inverse=True)
        by_whom = np.minimum(np.searchsorted(pids, table.pid[mine]), len(pids) - 1)
        theirs = pids[by_whom] == table.pid[mine]
        taken = np.bincount(by_whom[theirs], table.value[mine][theirs], len(pids))
        result[at] = median(taken[place.reshape(-1)])
    return result


def without(own: Floats, behind: Behind) -> Floats:
    """Own times without the delays that `behind` lists."""
    result: Floats = own.copy()
    for others, seconds in behind.values():
        result[others] -= seconds
    return result


def _more(fleet: Fleet, rank: int, peers: Ints) -> float:
    """Share of what a rank takes from others that repairing it would give back; 0 if unknown.

    1 - run' / (run · min(own' / own, 1)); negative where repairing it would take more.
    """
    asked = np.append(peers, rank)
    asked = asked[np.isfinite(fleet.steps.own_s[asked]).any(axis=1)]
    if len(asked) < 2 or asked[-1] != rank:
        return 0.0
    own, run = mean_of_known(fleet.steps.own_s[asked]), _run_s(fleet, asked)
    usual_s = median(own[:-1])
    meanwhile_s = float(run[-1]) * (usual_s / float(own[-1]) if own[-1] > usual_s else 1.0)
    return 1 - median(run[:-1]) / meanwhile_s if meanwhile_s > 0 else 0.0


def _run_s(fleet: Fleet, ranks: Ints) -> Floats:
    """CPU seconds of the window that the process and the loaders of each of these ranks run; 0 if not counted.

    Of the training thread at most its own time without queueing, since in a collective it may only
    poll.
    """
    thread, process, loaders = (
        np.nan_to_num(fleet.counters.total(name, ranks))
        for name in ("cpu.run_s", "cpu.process_run_s", "cpu.workers_run_s")
    )
    steps = fleet.steps
    working = np.nansum(np.maximum(steps.own_s[ranks] - np.nan_to_num(steps.sched_s[ranks]), 0.0), axis=1)
    return np.asarray(np.fmin(thread, working) + np.maximum(process - thread, 0.0) + loaders, dtype=np.float64)


def price_of(fleet: Fleet, scene: Scene, ranks: Ints, calm_s: float, longer: float) -> tuple[float, float]:
    """Return (loss, price) of slow ranks, seconds per step, where CPU queues lengthen the step.

    loss: what a step loses by them, which must explain it; price: what is reported as their cost.
    `calm_s`: what they cost together without queues; `longer`: length of a step with queues over
    that without.
    """
    healed_s = _healed_s(fleet, scene, ranks)
    return max(longer * calm_s, healed_s), max(beside_queues_s(scene, ranks, calm_s), healed_s)


def beside_queues_s(scene: Scene, ranks: Ints, calm_s: float) -> float:
    """Estimate the seconds per step that these ranks cost although their peers queue for CPUs.

    `calm_s`: what they cost together without queues. Ranks that queue less than their peers hide a
    part of it (x and u in the header of this file).
    """
    others = np.setdiff1d(np.flatnonzero(np.isin(scene.roles, scene.roles[ranks])), ranks)
    if scene.queue_s is None or not len(others):
        return calm_s
    queue_s, own_s = median(scene.queue_s[ranks]), median(mean_of_known(scene.own[ranks]))
    late_s = calm_s * own_s / max(own_s - queue_s, calm_s)
    spared_s = max(median(scene.queue_s[others]) - queue_s, 0.0)
    return late_s - spared_s / 2 if late_s >= spared_s else late_s**2 / (2 * spared_s)


def _healed_s(fleet: Fleet, scene: Scene, ranks: Ints) -> float:
    """Seconds per step regained if these ranks were as fast as their peers, and queued as they do.

    The delays that they cause to others on their hosts are removed too.
    """
    own, roles = scene.own, scene.roles
    better = without(own, behind_each(fleet, own, roles, ranks))
    healed = repaired(better, roles, ranks)[ranks]
    better[ranks] = in_order_of(own[ranks], healed)
    return shrink(own, better, scene.pipelines, scene.busy_s)
