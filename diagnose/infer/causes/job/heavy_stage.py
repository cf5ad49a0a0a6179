"""A pipeline stage or role with more work than the others by design; all others wait for it.

level(g, s) = median over the ranks of role g of own(r,s), without the excess of suspects
excess(g)   = trimmed mean over s of (level(g, s) - lower median over the roles of level(·, s))

Each role with an excess of 10 % of the step, for half of which the others wait in collectives,
gives a row of ../rows.py: z = excess / √(error² + (1.4 % of the step)²); it removes what the role's
ranks take above the lower median. A role of a single rank may as well be a slow rank: half the
support. Only roles that the data names, or that collectives and messages show, are examined; of
roles inferred from functions, only the smaller ones that all others wait for (fleet/roles.py),
because the others differ by their kind of work.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import GUESS, SEEN, Hypothesis, common_host
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Clear, Row, of_ranks, removed
from rankscope.diagnose.infer.causes.whole_job import WholeJob
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.roles import are_awaited
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.waits import waits
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import nan_median, trimmed, trimmed_mean
from rankscope.diagnose.stats.student import combined_freedom
from rankscope.diagnose.text import rank_list, seconds
from rankscope.probes.base.arrays import Floats, Ints


@cause("workload", "stage-imbalance", scope="role", witness="own time of one role, others wait",
       says="its part of the work is larger than the others', by design")  # fmt: skip
def heavy_stages(job: WholeJob) -> list[Row]:
    """Return a row of workload/stage-imbalance for each role that has more work than the others."""
    fleet, scene = job.fleet, job.scene
    said = all(fleet.ranks.role) or scene.pipelines is not None
    told = said or fleet.timed
    # Where peers are only inferred, a rank's excess within its role may be its work too.
    own = scene.own - removed(scene.own, job.slow) if said else scene.own
    if len(np.unique(scene.roles)) < 2 or scene.own.shape[1] < limits.STEPS_LEAST:
        return []
    # Work done once per step (an optimiser, say) does not pace the pipeline.
    once = np.fmin(own, scene.pipelines.once_s) if scene.pipelines is not None else np.zeros_like(own)
    codes = np.unique(scene.roles)
    level = np.stack([nan_median((own - once)[scene.roles == code], 0) for code in codes])
    wait = np.stack([nan_median(scene.wait[scene.roles == code], 0) for code in codes])
    lower = np.sort(level, axis=0)[(len(codes) - 1) // 2]
    above = trimmed(level - lower)
    over, error = above.mean(), above.error()
    waited = np.array(
        [trimmed_mean((nan_median(np.delete(wait, i, 0), 0) - wait[i])[None, :])[0] for i in range(len(codes))]
    )
    least = np.full(len(codes), limits.SCALE_FLOOR * scene.step_s)
    z, freedom = over / np.hypot(least, error), combined_freedom(least, error, above.freedom())
    found = []
    for index in np.flatnonzero((over >= limits.ALONE_SHARE * scene.step_s) & (waited >= limits.HOLDS_LEAST * over)):
        members = np.flatnonzero(scene.roles == codes[index])
        if not told and not _few_and_awaited(fleet, members):
            continue
        removes = np.maximum(own[members] - once[members] - lower, 0.0)
        facts = float(over[index]), float(np.nanmean(level[index])), float(waited[index])
        why = _hypothesis(fleet, scene, members, facts)
        clear = Clear(float(z[index]), float(freedom[index]), len(codes))
        found.append(Row(why, of_ranks(members, removes), clear))
    return found


def _few_and_awaited(fleet: Fleet, members: Ints) -> bool:
    """Return whether these ranks (rows) are fewer than all others, and the others wait for them."""
    others = np.setdiff1d(np.arange(len(fleet.ranks)), members)
    return len(members) < len(others) and are_awaited(fleet, members, others)


def _hypothesis(fleet: Fleet, scene: Scene, members: Ints, facts: tuple[float, float, float]) -> Hypothesis:
    """Return workload/stage-imbalance for a role with these ranks (rows).

    `facts`: its excess, its own time, and how much longer the others wait; seconds per step.
    """
    over, level, waited = facts
    role = fleet.ranks.role[int(members[0])] or f"like rank {int(fleet.ranks.number[members[0]])}"
    who = f"Role {role}" if fleet.ranks.role[int(members[0])] else f"The role of {role.removeprefix('like ')}"
    own = trimmed_mean(scene.own[members])
    others = len(fleet.ranks) - len(members)
    evidence = [
        Evidence("steps", f"own time of role {role}", level, level - over, "s/step", others),
        Evidence("steps", "the others stay longer in collectives by", waited, None, "s/step"),
    ]
    alike = len(members) > 1 and float(np.nanmax(own) - np.nanmin(own)) <= limits.PART * over
    if len(members) > 1:
        spread = 100 * float(np.nanmax(own) - np.nanmin(own)) / max(float(np.nanmedian(own)), 1e-12)
        evidence.insert(1, Evidence("steps", f"spread among the {len(members)} ranks of the role", spread, None, "%"))
    function, more = _heaviest(fleet, members)
    if function is not None:
        evidence.append(Evidence("functions", f"{function.words}, more than in other roles", more, None, "s/step"))
    doubt = SEEN if alike else GUESS  # a role of one rank: it may as well be a slow rank
    only = "" if alike else " With one rank in the role only its past can tell the stage from the rank."
    rows = tuple(members.tolist())
    told = tuple(sorted(int(fleet.ranks.number[row]) for row in rows))
    return Hypothesis(
        scope="role",
        component="workload",
        cause="stage-imbalance",
        rows=rows,
        lost_s=float("nan"),
        support=doubt,
        evidence=tuple(evidence),
        action=f"{who} ({rank_list(told)}) has {seconds(over)} per step more to do than the others. If it is a pipeline stage, move layers "
        f"from it to others; if that is meant, leave it.{only}",
        host=common_host(fleet, rows),
        instance=f"role {role}",
        function=function,
    )


def _heaviest(fleet: Fleet, members: Ints) -> tuple[Function | None, float]:
    """Return (function with the largest mean excess over other roles, that excess per step); (None, 0) without one."""
    table = fleet.patterns
    rows = np.flatnonzero(~waits(table))
    if len(rows) == 0:
        return None, 0.0
    width = len(table.name.values)
    ours = np.zeros(len(fleet.ranks), dtype=bool)
    ours[members] = True

    def mean(side: Floats) -> Floats:
        """Return seconds per step by name of function (code), mean over some ranks (`side`: 1, others 0)."""
        weights = table.per_step_s[rows] * side[table.rank[rows]]
        return np.asarray(np.bincount(table.name.codes[rows], weights=weights, minlength=width) / max(side.sum(), 1))

    more = mean(ours.astype(np.float64)) - mean((~ours).astype(np.float64))
    best = int(np.argmax(more))
    if more[best] <= 0:
        return None, 0.0
    row = int(rows[np.flatnonzero((table.name.codes[rows] == best) & ours[table.rank[rows]])[0]])
    return Function(table.kind.at(row), table.name.at(row), table.file.at(row), int(table.line[row])), float(more[best])
