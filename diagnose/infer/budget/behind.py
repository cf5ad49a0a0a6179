"""Which processes ran while ranks queued for a CPU.

The kernel side counts the CPU time that each process ran while threads of a rank were in the run
queue (counter cpu.taken_s), but for the rank's own. A rank's queueing is shared out in proportion to
that, after what it queued behind its own threads: the part of the time in which threads of its
process queued (cpu.process_ready_s) that no other process ran.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.budget.labels import Label
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import others_share
from rankscope.diagnose.infer.model.evidence.job_processes import rank_of_process
from rankscope.diagnose.infer.verdict.contract import process_text
from rankscope.probes.base.arrays import Floats

OWN = "behind a rank's own threads and workers"
RANKS = "behind other ranks of the job"
_COUNTER = "cpu.taken_s"


def behind(fleet: Fleet, queue_s: Floats) -> list[tuple[Label, float]]:
    """Divide the ranks' run-queue waits among the processes that ran meanwhile, the longest first.

    Returns (label, seconds summed over ranks): own threads, other ranks, and the largest other
    programs by name. `queue_s`: seconds that each rank queues, 0 for ranks that do not count.
    """
    table, rows = fleet.counters.table, fleet.counters.rows(_COUNTER)
    rows = rows[(table.rank[rows] >= 0) & (table.value[rows] > 0)]
    rank, value = table.rank[rows], table.value[rows]
    most = np.zeros(len(queue_s))
    np.maximum.at(most, rank, value)
    weight = value / most[rank]  # a forged window may hold any number: these are at most 1, one of them is
    part = queue_s[rank] * weight / np.bincount(rank, weight, len(queue_s))[rank]
    share = others_share(fleet)
    own_s = float((queue_s * (1 - share)).sum())
    part *= share[rank]
    whose = rank_of_process(fleet, rows)
    own = whose == rank
    others = ~own & (whose >= 0)
    found: list[tuple[Label, float]] = [
        ((OWN, None), float(part[own].sum()) + own_s),
        ((RANKS, None), float(part[others].sum())),
    ]
    strange = np.flatnonzero(~own & ~others)
    pids, comm = table.pid[rows[strange]], table.comm.codes[rows[strange]]
    seconds = np.bincount(comm, part[strange], len(table.comm.values))
    for code in np.argsort(-seconds, kind="stable")[: budgets.SHOWN].tolist():
        of_program = np.unique(pids[comm == code])
        name = table.comm.values[code]
        who = (
            process_text(name, int(of_program[0])) if len(of_program) == 1 else f"{name} ({len(of_program)} processes)"
        )
        found.append(((f"behind {who}", None), float(seconds[code])))
    return sorted((each for each in found if each[1] > 0), key=lambda each: -each[1])
