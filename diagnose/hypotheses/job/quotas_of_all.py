"""Most ranks are held by their CPU quotas: nobody is odd, and no baseline is needed, because the kernel counts what it takes.

held(r,s) = sched(r,s) · throttled(r) / ready(r)      seconds of step s in which its quota kept rank r from the CPU

sched(r,s): ready and not running, of each step; throttled(r) / ready(r): the throttled part of it, over the window.

Convicts: the kernel's count (cpu.throttled_s) on more than half of the ranks, each held for 5 % of the step, or for a quarter as long
as the one held longest: a row of ../rows.py that removes held(r,s). Named is who is held at all. Acquits: a quota that few ranks run
into is theirs (../rank/cpu.py).
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.hypothesis import ORDERED, Hypothesis, common_host
from rankscope.diagnose.hypotheses.rank.cpu import throttled
from rankscope.diagnose.hypotheses.rows import Row, clearness
from rankscope.diagnose.model.busy_host import held_back
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.verdict.contract import Evidence
from rankscope.probes.arrays import Floats


def throttled_together(fleet: Fleet, scene: Scene) -> list[Row]:
    """The quotas of most ranks as one row of cpu/quota, if there are any."""
    counted = throttled(fleet)
    if not counted.any():
        return []
    part, seconds = held_back(fleet)
    seconds = np.where(counted, seconds, 0.0)
    if not seconds.any():
        return []
    held = seconds >= min(limits.LARGE_SHARE * seconds.max(), limits.EFFECT_SHARE * scene.step_s)
    if held.sum() * 2 <= len(held):
        return []
    held = seconds >= limits.NOTHING * seconds.max()
    sched = np.nan_to_num(fleet.steps.sched_s[:, -scene.own.shape[1] :])
    removes: Floats = np.nan_to_num(np.fmin(part[:, None] * sched, scene.own)[held])
    rows = tuple(np.flatnonzero(held).tolist())
    found = Hypothesis(
        scope="all",
        component="cpu",
        cause="quota",
        rows=rows,
        lost_s=float("nan"),
        support=ORDERED,
        evidence=_evidence(fleet, seconds[held]),
        action="Most ranks are held by their CPU quotas: raise or remove them (cpu.max, cpu.cfs_quota_us, resources.limits.cpu).",
        host=common_host(fleet, rows),
    )
    clear = clearness(removes.mean(axis=0), scene.step_s)
    return [Row(found, removes, *clear)]


def _evidence(fleet: Fleet, seconds: Floats) -> tuple[Evidence, ...]:
    table, rows = fleet.counters.table, fleet.counters.rows("cpu.throttled_s")
    moved = rows[table.value[rows] > 0]
    evidence = [
        Evidence("scheduler", "waiting for a CPU (throttled), median", float(np.median(seconds)), None, "s/step", len(seconds)),
        Evidence("cgroup", "cpu.throttled_s, median", float(np.median(table.value[moved])), 0.0, "s"),
    ]  # fmt: skip
    quotas = table.limit[moved]
    if np.isfinite(quotas).any():
        evidence.append(Evidence("cgroup", "cpu quota, median", float(np.nanmedian(quotas)), None, "CPUs"))
    return tuple(evidence)
