"""Other processes use the GPUs of all ranks of a job; the driver counts them, without a baseline.

f(r)  = share of the time in which processes outside the job ran on the GPUs of rank r (NVML,
        gpu.foreign_active)
g(r)  = seconds per step in which the GPU works on the critical path: its kernels, and waits of the
        training thread for it
lost  = min over r of f(r) · g(r), per step: even the least affected rank is late by that

The row of ../rows.py removes it from the step, as a part of what follows after all ranks have left
their collectives. A GPU gives its processes turns, so a process that ran for a share f of the time
delayed the GPU's other work for as long. Evidence against: a rank on whose GPU no other process
ran. Where they ran on the GPUs of some ranks only, those ranks are late and their peers are not
(../rank/gpu.py).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, Hypothesis, common_host
from rankscope.diagnose.infer.causes.rank.gpu import smi
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Clear, Row, Taken
from rankscope.diagnose.infer.causes.whole_job import WholeJob
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Evidence, process_text
from rankscope.diagnose.stats.robust import median
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Floats, Ints

_ACTIVE = "gpu.foreign_active"


@cause("gpu", "contended", scope="host", witness="the same, on the GPUs of all ranks", rests_on=[Source.GPU])
@cause("gpu", "contended", scope="all", witness="the same, on several hosts", rests_on=[Source.GPU])
def gpu_users(job: WholeJob) -> list[Row]:
    """Return one row of gpu/contended if other processes use the GPUs of all ranks; else none."""
    fleet, scene = job.fleet, job.scene
    table = fleet.counters.table
    told = fleet.counters.rows(_ACTIVE)
    if not len(told):
        return []
    active, seconds = _share(fleet, told), _gpu_s(fleet)
    lost_s = float((active * seconds).min())
    if lost_s <= 0:
        return []
    most = int(told[np.argmax(table.value[told])])
    rows = tuple(range(len(fleet.ranks)))
    host = common_host(fleet, rows)
    gpu, who = table.instance.at(most), process_text(table.comm.at(most), int(table.pid[most]))
    evidence = [
        Evidence("nvml", f"share of {gpu} used by others", 100 * float(active.min()), None, "%"),
        Evidence("functions", "the GPU works or keeps its rank waiting, median", median(seconds), None, "s/step"),
    ]
    if who:
        evidence.append(Evidence("nvml", "the process that uses it most", who, None, ""))
    found = Hypothesis(
        scope="host" if host else "all",
        component="gpu",
        cause="contended",
        rows=rows,
        lost_s=float("nan"),
        support=CONVICTED,
        evidence=tuple(evidence),
        action=f"Stop {who or 'the other process'} on {host or 'its host'} or move it off {gpu} ({smi(gpu, 'pmon -c 1', host)}).",
        host=host,
        instance=gpu if len({table.instance.at(int(row)) for row in told}) == 1 else "",
        comm=table.comm.at(most),
        pid=int(table.pid[most]),
    )
    return [Row(found, Taken(lost_s), Clear(lost_s / (limits.SCALE_FLOOR * scene.step_s)))]


def _share(fleet: Fleet, told: Ints) -> Floats:
    """Return f by rank: the share (0..1) of the time in which other processes ran on its GPUs.

    `told`: rows of the counter gpu.foreign_active. The largest of its GPUs counts, with all processes
    on it; a GPU that several ranks use is counted once.
    """
    table, ranks = fleet.counters.table, fleet.ranks
    of_process = dict[tuple[str, str, int], float]()  # each rank that uses the GPU tells of it
    for row in told.tolist():
        process = table.observed_on.at(row), table.instance.at(row), int(table.pid[row])
        of_process[process] = max(of_process.get(process, 0.0), float(np.nan_to_num(table.value[row])))
    shares = defaultdict[tuple[str, str], float](float)
    for (host, gpu, _), share in of_process.items():
        shares[host, gpu] += share
    found = np.zeros(len(ranks))
    for rank, gpus in enumerate(ranks.gpus):
        found[rank] = max((shares.get((ranks.observed_on[rank], gpu), 0.0) for gpu in gpus), default=0.0)
    return np.asarray(np.minimum(found, 1.0), dtype=np.float64)


def _gpu_s(fleet: Fleet) -> Floats:
    """Return g by rank: the seconds per step in which its GPU works or its training thread waits for it."""
    table = fleet.patterns
    works = table.kind.codes == table.kind.code("gpu")
    works |= (table.kind.codes == table.kind.code("sync")) & (table.name.codes == table.name.code("gpu"))
    works &= table.thread.codes == table.thread.code("training")
    seconds = np.bincount(table.rank[works], weights=np.nan_to_num(table.per_step_s[works]), minlength=len(fleet.ranks))
    return np.asarray(seconds, dtype=np.float64)
