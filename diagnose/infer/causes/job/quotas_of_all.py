"""CPU quotas that throttle most ranks; the kernel counts the time, so no baseline is needed.

held(r,s) = sched(r,s) · throttled(r) / ready(r): seconds of step s in which its quota kept rank r
            from the CPU

sched(r,s): ready and not running, in each step; throttled(r) / ready(r): its throttled part, over
the window.

The reported loss differs from the growth of the step by held(r,s) in two ways:

+ scattered   A quota stops a rank in one piece, at a time of its own, and in a step of several
collectives the others wait for each (model/replay.py); at most the transfer of the steps above its
least.
- crowded     A rank that is not throttled wants a CPU when the others do: ranks throttled at
  different times queue behind each other for less time than they otherwise would
  (model/busy_host.py).

Evidence for: the kernel's count (cpu.throttled_s) on more than half of the ranks, each throttled
for 5 % of the step, or for a quarter as long as the one throttled longest. The row of ../rows.py
removes held(r,s) and names every throttled rank. Evidence against: a quota that few ranks run into
is a cause of those ranks (../rank/cpu.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import ORDERED, Hypothesis, common_host
from rankscope.diagnose.infer.causes.rank.cpu import throttled
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Row, clearness, of_ranks
from rankscope.diagnose.infer.causes.whole_job import WholeJob
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.busy_host import crowded_s, held_back, queued_s
from rankscope.diagnose.infer.model.replay import scattered_s
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.slots import least_stay
from rankscope.diagnose.infer.verdict.contract import LIMIT, Evidence
from rankscope.diagnose.stats.robust import mean_of_known, median
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools, Floats


@cause("cpu", "quota", scope="all", witness="the same on most ranks, or it grew", rests_on=[Source.HOST],
       action="Raise or remove the CPU quotas of the control groups of these ranks "
       "(cpu.max, cpu.cfs_quota_us, resources.limits.cpu).")  # fmt: skip
def throttled_together(job: WholeJob) -> list[Row]:
    """Return one row of cpu/quota if the quotas of most ranks throttle them; else none."""
    fleet, scene = job.fleet, job.scene
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
        host=common_host(fleet, rows),
    )
    taken = of_ranks(rows, removes)
    price = replace(taken, step_s=_scattered_s(scene, removes) - _crowded_s(fleet, held))
    return [Row(found, taken, clearness(removes.mean(axis=0), scene.step_s), price=price)]


def _crowded_s(fleet: Fleet, held: Bools) -> float:
    """Return the mean additional seconds per step that these ranks would queue without their quotas."""
    more = crowded_s(fleet) - mean_of_known(queued_s(fleet))
    return max(float(more[held].mean()), 0.0)


def _scattered_s(scene: Scene, held: Floats) -> float:
    """Return seconds per step of waiting for throttled ranks beyond the one throttled longest in the step.

    `held`: throttled seconds, ranks x steps. 0 for pipelines and roles that work in turn.
    """
    least = least_stay(scene.wait, scene.pipelines, scene.slots)
    least = least[np.isfinite(least)]
    if scene.pipelines is not None or scene.in_turn or not len(least):
        return 0.0
    above_s = float(least.mean() - np.quantile(least, limits.FEW))
    return max(min(scattered_s(held, scene.collectives), above_s), 0.0)


def _evidence(fleet: Fleet, seconds: Floats) -> tuple[Evidence, ...]:
    """Return the evidence of throttling, medians over the ranks; `seconds`: seconds per step of each."""
    table, rows = fleet.counters.table, fleet.counters.rows("cpu.throttled_s")
    moved = rows[table.value[rows] > 0]
    evidence = [
        Evidence("scheduler", "waiting for a CPU, median", median(seconds), None, "s/step", len(seconds)),
        Evidence("cgroup", "held back by the CPU quota of its control group, median", median(table.value[moved]), 0.0, "s"),
    ]  # fmt: skip
    quotas = table.limit[moved]
    if np.isfinite(quotas).any():
        evidence.append(Evidence("cgroup", "cpu quota, median", float(np.nanmedian(quotas)), None, "CPUs", role=LIMIT))
    return tuple(evidence)
