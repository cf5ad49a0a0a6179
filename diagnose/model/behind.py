"""What others of a host stand in the queue for a CPU behind an odd rank because it computes more in their time than its peers do, or less.

behind(p,r,s)  = queued(p,s) · outside(p) · taken(p,r) / taken(p) · more(r)
more(r)        = 1 - run' / (run(r) · min(own' / own(r), 1))

taken(p,r)     seconds in which r ran while p stood in the queue; taken(p): in which anybody did
run(r)         CPU seconds of the rank and its loaders, of its training thread no more than it works: in a collective it may only poll
own(r)         its mean own time; ': median of innocent peers
outside(p)     1 less the part of its queue that is in collectives: the lesser of what is there by its stacks, and of
               own(p) - (step - Σ stays); 1 where single collectives are not known

While its peers work, r does own' / own(r) of what it does: what it does afterwards keeps nobody from a CPU who is waited for. Healed, it
runs as much meanwhile as they; in collectives all meet as before. So who computes too long gives back what its peers stood behind that,
and who only waited for something else will want the CPU that it left to them: then behind is below 0.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.busy_host import queued_s
from rankscope.diagnose.model.functions import sample
from rankscope.diagnose.stats.robust import mean_of_known
from rankscope.probes.arrays import Floats, Ints

Behind = dict[int, tuple[Ints, Floats]]  # by rank (row): which others, and for how long, others x steps, seconds


def behind_each(fleet: Fleet, own: Floats, roles: Ints, suspects: Ints) -> Behind:
    """Of each of these ranks (rows) behind which innocent ones of its host stood: who, and for how long in the steps of `own`, the last of
    the window. Nobody where nobody counts."""
    found: Behind = {}
    table, rows = fleet.counters.table, fleet.counters.rows("cpu.taken_s")
    rows = rows[table.rank[rows] >= 0]
    innocent = np.ones(len(own), dtype=bool)
    innocent[suspects] = False
    by_one = rows[innocent[table.rank[rows]] & np.isin(table.pid[rows], fleet.ranks.pid[suspects])]
    if not len(by_one):
        return found
    anybody = np.bincount(table.rank[rows], weights=table.value[rows], minlength=len(own))
    queued = (queued_s(fleet) * (1 - _inside(fleet))[:, None])[:, -own.shape[1] :]
    hosts = fleet.ranks.observed_on
    for rank in suspects.tolist():
        mine = by_one[table.pid[by_one] == fleet.ranks.pid[rank]]
        here = np.array([hosts[other] == hosts[rank] for other in table.rank[mine].tolist()], dtype=bool)
        by_it = np.bincount(table.rank[mine[here]], weights=table.value[mine[here]], minlength=len(own))
        others: Ints = np.flatnonzero(by_it > 0)
        peers = np.flatnonzero((roles == roles[rank]) & innocent)
        if len(others) and (more := _more(fleet, rank, sample(peers))):
            part = more * by_it[others] / anybody[others]
            found[rank] = others, np.fmin(part[:, None] * queued[others], np.nan_to_num(own[others]))
    return found


def without(own: Floats, behind: Behind) -> Floats:
    """Own times without that."""
    result: Floats = own.copy()
    for others, seconds in behind.values():
        result[others] -= seconds
    return result


def _more(fleet: Fleet, rank: int, peers: Ints) -> float:
    """more(rank); 0 where that is not known."""
    asked = np.append(peers, rank)
    asked = asked[np.isfinite(fleet.steps.own_s[asked]).any(axis=1)]
    if len(asked) < 2 or asked[-1] != rank:
        return 0.0
    own, run = mean_of_known(fleet.steps.own_s[asked]), _run_s(fleet, asked)
    usual_s = float(np.median(own[:-1]))
    meanwhile_s = float(run[-1]) * (usual_s / float(own[-1]) if own[-1] > usual_s else 1.0)
    return 1 - float(np.median(run[:-1])) / meanwhile_s if meanwhile_s > 0 else 0.0


def _run_s(fleet: Fleet, ranks: Ints) -> Floats:
    thread, process, loaders = (
        np.nan_to_num(fleet.counters.total(name, ranks))
        for name in ("cpu.run_s", "cpu.process_run_s", "cpu.workers_run_s")
    )
    steps = fleet.steps
    working = np.nansum(np.maximum(steps.own_s[ranks] - np.nan_to_num(steps.sched_s[ranks]), 0.0), axis=1)
    return np.asarray(np.fmin(thread, working) + np.maximum(process - thread, 0.0) + loaders, dtype=np.float64)


def _inside(fleet: Fleet) -> Floats:
    """Of each rank's queue for a CPU, the part in collectives: 1 - outside."""
    steps, table, ranks = fleet.steps, fleet.patterns, len(fleet.ranks)
    if fleet.slots is None or fleet.slots.stay_s.shape[1] != steps.count:
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
