"""What others of a host stand in the queue for a CPU behind an odd rank, more than they would if it were healed, or less.

behind(p,r,s)  = queued(p,s) · outside(p) · more(p,r) / taken(p)

taken(p,r)     seconds in which r ran while p stood in the queue; taken(p): in which anybody did
outside(p)     1 less the part of its queue that is in collectives
more(p,r)      = taken(p,r) - median over innocent peers q of taken(p,q)
               where p must share its CPUs with other innocent peers of r: as many as there are CPUs, and p. Healed, r takes of p what each
               of these does: who sleeps or comes late does its work while the others wait for it, and stands in nobody's way
               = taken(p,r) · (1 - run' / (run(r) · min(own' / own(r), 1)))
               where it need not, or nobody says where it may run: who stands behind whom is the scheduler's choice then
run(r)         CPU seconds of the rank and its loaders, of its training thread no more than it works: in a collective it may only poll
own(r)         its mean own time; ': median of innocent peers

While its peers work, r does own' / own(r) of what it does: what it does afterwards keeps nobody from a CPU who is waited for. Healed, it
runs as much meanwhile as they; in collectives all meet as before. So who computes too long gives back what its peers stood behind that,
and who only waited for something else will want the CPU that it left to them: then behind is below 0.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.model.busy_host import cpus_of, pools, queued_outside_s
from rankscope.diagnose.model.functions import sample
from rankscope.diagnose.stats.robust import mean_of_known, median
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
    """Of each of `others` the median over these peers with which it must share its CPUs of taken(p,q); NaN where it need not. `rows`: who
    ran while they stood in the queue."""
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
    """Own times without that."""
    result: Floats = own.copy()
    for others, seconds in behind.values():
        result[others] -= seconds
    return result


def _more(fleet: Fleet, rank: int, peers: Ints) -> float:
    """1 - run' / (run · min(own' / own, 1)) of the rank; 0 where that is not known."""
    asked = np.append(peers, rank)
    asked = asked[np.isfinite(fleet.steps.own_s[asked]).any(axis=1)]
    if len(asked) < 2 or asked[-1] != rank:
        return 0.0
    own, run = mean_of_known(fleet.steps.own_s[asked]), _run_s(fleet, asked)
    usual_s = median(own[:-1])
    meanwhile_s = float(run[-1]) * (usual_s / float(own[-1]) if own[-1] > usual_s else 1.0)
    return 1 - median(run[:-1]) / meanwhile_s if meanwhile_s > 0 else 0.0


def _run_s(fleet: Fleet, ranks: Ints) -> Floats:
    thread, process, loaders = (
        np.nan_to_num(fleet.counters.total(name, ranks))
        for name in ("cpu.run_s", "cpu.process_run_s", "cpu.workers_run_s")
    )
    steps = fleet.steps
    working = np.nansum(np.maximum(steps.own_s[ranks] - np.nan_to_num(steps.sched_s[ranks]), 0.0), axis=1)
    return np.asarray(np.fmin(thread, working) + np.maximum(process - thread, 0.0) + loaders, dtype=np.float64)
