"""Processes outside the job take CPUs from all ranks of a host; the kernel counts, without a baseline.

One row of ../rows.py per host removes taken(r,s), from odd ranks only as much as from their peers;
its price is max(that, queued(r,s) - even(r,s)) (model/busy_host.py). busy: the part of the host's
CPU time that did not go to the job. Evidence for: busy >= 30 %, and one program, which is named,
took half of what all such processes took. Evidence against: less of either; a crowd of small
programs is normal on a busy host. Where CPUs are taken from fewer than half of the ranks, as from
one with a CPU of its own, only these ranks are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, Hypothesis, machine_of
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Floor, Row, clearness, of_ranks
from rankscope.diagnose.infer.causes.whole_job import Known, WholeJob
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import even_queue_s, queued_s, strangers_shares, taken_s
from rankscope.diagnose.infer.model.evidence.programs import Program, culprits, programs
from rankscope.diagnose.infer.model.replay import repaired
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.text import after
from rankscope.probes.base.arrays import Bools, Floats, Ints


@cause("cpu", "contended", scope="host", witness="the same, of strangers, on all ranks")
def strangers(job: WholeJob, known: Known) -> list[Row]:
    """Return a row of cpu/contended for each host whose CPUs other processes take."""
    fleet, scene = job.fleet, job.scene
    hosts = fleet.ranks.observed_on
    taken = taken_s(fleet)[:, -scene.own.shape[1] :]
    found = list[Row]()
    if not taken.any():
        return found
    taken = repaired(taken, scene.roles, known.odd)  # from odd ranks only as much as from their peers
    crowded = (queued_s(fleet) - even_queue_s(fleet)[1])[:, -scene.own.shape[1] :]
    busy_of = strangers_shares(fleet)
    taken_on = sorted({hosts[row] for row in np.flatnonzero(taken.any(axis=1))})
    for host in taken_on:
        rows: Ints = np.array([row for row in range(len(hosts)) if hosts[row] == host], dtype=np.int64)
        busy = busy_of.get(host)
        took = programs(fleet, rows.tolist())
        if busy is None or busy < limits.PART:
            continue
        if took[0].seconds < limits.HOLDS_LEAST * sum(one.seconds for one in took):
            continue
        removes: Floats = np.nan_to_num(np.fmin(taken[rows], scene.own[rows]))
        # Ranks also queue longer behind each other for CPUs that strangers use: part of the price.
        more = np.fmax(removes, np.nan_to_num(np.fmin(crowded[rows], scene.own[rows])))
        clear = replace(clearness(removes.mean(axis=0), scene.step_s), looked_at=len(taken_on))
        told = _hypothesis(fleet, rows, _losers(taken[rows]), busy, took, float(more.max(axis=0).mean()))
        found.append(Row(told, of_ranks(rows, removes), clear, Floor(limits.ALONE_SHARE), with_it=of_ranks(rows, more)))
    return found


def _losers(taken: Floats) -> Bools:
    """Mask of the ranks from which CPU time is taken: all, or a minority that loses most.

    The minority: fewer than half of the ranks lose at least a tenth of what the largest loser
    loses, as with CPUs of their own. `taken`: seconds, ranks x steps.
    """
    lost = taken.sum(axis=1)
    much = np.asarray(lost >= limits.FEW * lost.max(), dtype=bool)
    return much if much.mean() < limits.HOLDS_LEAST else np.ones(len(lost), dtype=bool)


def _hypothesis(
    fleet: Fleet, here: Ints, losers: Bools, busy: float, took: Sequence[Program], longest_s: float
) -> Hypothesis:
    """Return cpu/contended by the programs `took`, largest first, on the ranks of one host.

    `here`: the host's ranks (rows); `losers`: mask of those that are named; `busy`: share of the host's
    CPU time that went to other processes; `longest_s`: mean over the steps of what they take from the
    rank that loses most in it.
    """
    rows, alike = here[losers], bool(losers.all())
    whose = "all ranks there alike" if alike else "these ranks" if len(rows) > 1 else "this rank"
    first, host = took[0], machine_of(fleet, rows.tolist())
    who = first.comm if len(first.pids) == 1 else f"{first.comm} ({len(first.pids)} processes)"
    told = culprits(took)
    takes = "it takes" if len(told) == 1 else "they take"
    each_step = max(fleet.steps.count, 1) * min(len(here), limits.PEERS_SAMPLED)
    waits, *more = (
        Evidence(
            "scheduler",
            f"a rank waits while {one.words} has its CPU, mean over the ranks",
            one.seconds / each_step,
            None,
            "s/step",
        )
        for one in told
    )
    longest = "the rank that waits longest in a step waits, also behind others of the job"
    evidence = (
        Evidence(
            "host",
            "CPU time of the machine that processes use which are not of the job",
            100 * min(busy, 1.0),
            None,
            "%",
        ),
        waits,
        Evidence("scheduler", longest, longest_s, None, "s/step"),
        *more,
    )
    return Hypothesis(
        scope="host" if alike else "rank",
        component="cpu",
        cause="contended",
        rows=tuple(rows.tolist()),
        lost_s=float("nan"),
        support=CONVICTED,
        evidence=evidence,
        action=f"Move or stop {' and '.join(one.words for one in told)}{after('on', host)}: {takes} the CPUs of {whose}.",
        host=host,
        instance=who,
    )
