"""Rows of the table that touch a link, a role, a host or all ranks, and which of them stand: score and gain as of single ranks (rank/).

removes(r,s)  seconds that the mechanism took of the own time of rank r in step s; `step_s`: of each step, whoever works in it
score         = -ln P(t >= z) + ln(s / (1 - s)) - ln N        in nats: how clear what was taken is, the support s of the witness, and N, how
                many such targets were looked at
gain(S)       = how much shorter the step is without what all rows of the set S removed (model/replay.py)

1. A row is admitted that has a score of `limits.SCORE_LEAST`.
2. The least floor of effect of the rows is asked of what was admitted together. Then, as long as some row of the set gains less than its
   floor beside the others, the one that gains least is dropped: the rest explains what it would. Two hosts that are slowed alike gain
   nothing alone, and the step together.
3. The gain of the set is shared out by what each gains beside the others, or alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.hypothesis import SCORE_MOST, Hypothesis, log_odds, suspect_from
from rankscope.diagnose.model.excess import nats
from rankscope.diagnose.model.replay import share_out, shrink
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.stats.robust import trimmed_error, trimmed_freedom, trimmed_mean
from rankscope.diagnose.stats.student import chance, combined_freedom
from rankscope.diagnose.verdict.contract import Evidence, Suspect
from rankscope.probes.arrays import Floats, Ints

CLEAR = limits.SCORE_LEAST / 2  # z² at which a doubt is half


@dataclass(frozen=True, slots=True)
class Row:
    """`found`: component, cause, scope, targets, witness; its lost time is not known before it stands. `removes`: of these targets,
    unless `at` says of whom (rows of the fleet). `z`, `freedom`: how clear it is that something was taken. `looked_at`: how many such
    targets there were. `floor`: share of the step that it must gain, with those among which one loss was shared out; `part`: its share.
    `since`: when it began, where that is known. `rare`: it was in few steps, which are no part of the usual one. `more`: what goes with
    `removes` once the row stands, which no counter says to be of its making: it is a part of the price, and of no reason to admit it."""

    found: Hypothesis
    removes: Floats | None
    z: float
    freedom: float
    looked_at: int = 1
    step_s: float = 0.0
    floor: float = limits.EFFECT_SHARE
    part: float = 1.0
    since: float | None = None
    at: Ints | None = None
    rare: bool = False
    more: Floats | None = None

    @property
    def score(self) -> float:
        """In nats."""
        behaviour = float(nats(chance(np.array([self.z]), np.array([self.freedom])))[0])
        return behaviour + log_odds(self.found.support) - float(np.log(self.looked_at))

    @property
    def taken_s(self) -> float:
        """Seconds per step that it took from the rank that lost most by it."""
        return self.step_s + (
            float(np.nan_to_num(self.removes).mean(axis=1).max()) if self.removes is not None else 0.0
        )

    @property
    def sure(self) -> float:
        """0..1, for the confidence."""
        return self.z**2 / (self.z**2 + CLEAR) * min(self.found.support, SCORE_MOST)


def clearness(per_step: Floats, step_s: float) -> tuple[float, float]:
    """(z, degrees of freedom) of these seconds of each step: their trimmed mean over its error and what healthy steps differ by."""
    mean, error = trimmed_mean(per_step[None, :]), trimmed_error(per_step[None, :])
    known = np.array([limits.SCALE_FLOOR * step_s])
    freedom = combined_freedom(known, error, trimmed_freedom(per_step[None, :]))
    return float(np.nan_to_num(mean / np.hypot(known, error))[0]), float(freedom[0])


def distance(probability: float) -> float:
    """z of what chance does with this probability."""
    return -NormalDist().inv_cdf(max(probability, 1e-300))


def standing(scene: Scene, rows: Iterable[Row], own: Floats) -> list[Row]:
    """The rows that stand, each with the lost time that falls to it, the most damaging first. `own`: own times as far as single ranks do
    not explain them already."""
    chosen = sorted((row for row in rows if row.score >= limits.SCORE_LEAST), key=lambda row: -row.taken_s)
    del chosen[budgets.EXAMINED :]
    while chosen:
        together = gain_s(scene, own, chosen)
        floors = np.array([row.part * max(row.floor * scene.step_s, limits.EFFECT_SECONDS) for row in chosen])
        if together < floors.min():
            return []
        beside = np.array([together - gain_s(scene, own, chosen[:i] + chosen[i + 1 :]) for i in range(len(chosen))])
        least = int(np.argmin(beside - floors))
        if beside[least] >= floors[least] or len(chosen) == 1:
            priced = [row if row.more is None else replace(row, removes=row.more) for row in chosen]
            lost = share_out(max(together, gain_s(scene, own, priced)), beside).tolist()
            found = [
                replace(row, found=replace(row.found, lost_s=each)) for row, each in zip(chosen, lost, strict=True)
            ]
            return sorted(found, key=lambda row: -row.found.lost_s)
        del chosen[least]
    return []


def suspects(fleet: Fleet, scene: Scene, rows: Iterable[Row]) -> list[Suspect]:
    """The rows that stand as suspects."""
    return [_suspect(fleet, scene, row) for row in rows]


def _suspect(fleet: Fleet, scene: Scene, row: Row) -> Suspect:
    step_s = scene.step_s + row.found.lost_s if row.rare else scene.step_s
    without_s = step_s - row.found.lost_s
    told = Evidence("steps", "step as it was, and as it would be without this", step_s, without_s, "s")
    found = replace(row.found, evidence=(*row.found.evidence, told))
    return suspect_from(fleet, found, max(step_s, found.lost_s), row.sure, row.since)


def removed(own: Floats, rows: Sequence[Row]) -> Floats:
    """Seconds that these took of own times together, ranks x steps."""
    taken = np.zeros_like(own)
    for row in rows:
        if row.removes is not None:
            taken[list(row.found.rows) if row.at is None else row.at] += np.nan_to_num(row.removes)
    return np.asarray(np.fmin(taken, np.nan_to_num(own)), dtype=np.float64)


def gain_s(scene: Scene, own: Floats, rows: Sequence[Row]) -> float:
    """Seconds per step that the job is shorter without what these took together."""
    of_own = [row for row in rows if row.removes is not None]
    shorter = shrink(own, own - removed(own, of_own), scene.pipelines, scene.busy_s) if of_own else 0.0
    return shorter + sum(row.step_s for row in rows)
