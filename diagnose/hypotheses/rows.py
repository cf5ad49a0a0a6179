"""Rows of the table that touch a role, a host or all ranks, and which of them stand: the score and the gain of single ranks' (rank/).

removes(r,s)  seconds that the mechanism took of the own time of rank r in step s; `step_s`: of each step, whoever works in it
score         = -ln P(t >= z) + ln(s / (1 - s)) - ln N        in nats: how clear what was taken is, the support s of the witness, and N, how
                many such targets were looked at
gain(S)       = how much shorter the step is without what all rows of the set S removed (model/replay.py)

1. A row is admitted that has a score of `limits.SCORE_LEAST`.
2. The floor of effect is asked of what was admitted together. Then, as long as some row of the set gains less than the floor beside the
   others, the one that gains least is dropped: the rest explains what it would. Two hosts that are slowed alike gain nothing alone,
   and the step together.
3. The gain of the set is shared out by what each gains beside the others, or alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.hypothesis import SCORE_MOST, Hypothesis, log_odds, suspect_from
from rankscope.diagnose.model.excess import nats
from rankscope.diagnose.model.replay import share_out, shrink
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.stats.robust import trimmed_error, trimmed_freedom, trimmed_mean
from rankscope.diagnose.stats.student import chance, combined_freedom
from rankscope.diagnose.verdict.contract import Evidence, Suspect
from rankscope.probes.arrays import Floats


@dataclass(frozen=True, slots=True)
class Row:
    """`found`: component, cause, scope, targets, witness; its lost time is not known before it stands. `z`, `freedom`: how clear it is that
    something was taken. `looked_at`: how many such targets there were."""

    found: Hypothesis
    removes: Floats
    z: float
    freedom: float
    looked_at: int = 1
    step_s: float = 0.0

    @property
    def score(self) -> float:
        """In nats."""
        behaviour = float(nats(chance(np.array([self.z]), np.array([self.freedom])))[0])
        return behaviour + log_odds(self.found.support) - float(np.log(self.looked_at))

    @property
    def sure(self) -> float:
        """0..1, for the confidence."""
        return self.z**2 / (self.z**2 + 5) * min(self.found.support, SCORE_MOST)


def clearness(per_step: Floats, step_s: float) -> tuple[float, float]:
    """(z, degrees of freedom) of these seconds of each step: their trimmed mean over its error and what healthy steps differ by."""
    mean, error = trimmed_mean(per_step[None, :]), trimmed_error(per_step[None, :])
    known = np.array([limits.SCALE_FLOOR * step_s])
    freedom = combined_freedom(known, error, trimmed_freedom(per_step[None, :]))
    return float(np.nan_to_num(mean / np.hypot(known, error))[0]), float(freedom[0])


def standing(scene: Scene, rows: Iterable[Row], floor_s: float, own: Floats | None = None) -> list[Row]:
    """The rows that stand, each with the lost time that falls to it, the most damaging first. `floor_s`: what a row must gain, seconds per
    step. `own`: where some of it is explained already."""
    base = scene.own if own is None else own
    chosen = [row for row in rows if row.score >= limits.SCORE_LEAST]
    while chosen:
        together = gain_s(scene, base, chosen)
        if together < floor_s:
            return []
        beside = [together - gain_s(scene, base, chosen[:i] + chosen[i + 1 :]) for i in range(len(chosen))]
        least = int(np.argmin(beside))
        if beside[least] >= floor_s or len(chosen) == 1:
            lost = share_out(together, np.array(beside)).tolist()
            found = [
                replace(row, found=replace(row.found, lost_s=each)) for row, each in zip(chosen, lost, strict=True)
            ]
            return sorted(found, key=lambda row: -row.found.lost_s)
        del chosen[least]
    return []


def suspects(fleet: Fleet, scene: Scene, rows: Iterable[Row]) -> list[Suspect]:
    """The rows that stand as suspects."""
    return [suspect_from(fleet, _with_replay(scene, row.found), scene.step_s, row.sure) for row in rows]


def _with_replay(scene: Scene, found: Hypothesis) -> Hypothesis:
    without_s = scene.step_s - found.lost_s
    told = Evidence(
        "steps", "step, against one in which none of it was taken (what-if replay)", scene.step_s, without_s, "s"
    )
    return replace(found, evidence=(*found.evidence, told))


def removed(own: Floats, rows: Sequence[Row]) -> Floats:
    """Seconds that these took of own times together, ranks x steps."""
    taken = np.sum([np.nan_to_num(row.removes) for row in rows], axis=0) if rows else np.zeros_like(own)
    return np.asarray(np.fmin(taken, np.nan_to_num(own)), dtype=np.float64)


def gain_s(scene: Scene, own: Floats, rows: Sequence[Row]) -> float:
    """Seconds per step that the job is shorter without what these took together."""
    if not rows:
        return 0.0
    shorter = shrink(own, own - removed(own, rows), scene.pipelines, scene.busy_s)
    return shorter + sum(row.step_s for row in rows)
