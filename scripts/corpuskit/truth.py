"""What a fault took of each step of the window, by the job's own steps; and from which windows that is known.

    lost     = step - healthy                    step: mean in the window, as it is told, or in the part of it that the verdict says it is
                                                 about (where steps became longer); healthy: what it were without the fault
    healthy  = before · factor · observed / count
                                                 before: the job's own healthy step; count: steps of the window that are one of the job's
    before   = of the lab of faults the mean over the cases of one run whose jobs are alike but for the rank that has a core of its own:
               each of them measures it for some seconds, and what those next to each other say is no closer than what others do

Where `before` is a median (of the lab of jobs what was not measured on both sides), factor is the mean of a healthy step of that job over
its median, in windows in which nothing was done to it (of a job that has none, what is usual); else 1. So a mean is held against a mean.

`before` is of a job that nobody observes, and what that costs is in every step of a window, and no fault's: `observed` is, of the lab of
faults, the mean step over `before` in windows in which nothing was done (healthy cases, and what was recorded before a fault to compare
with), each over what was measured next to it, mean over those of that program in the same recording with as many ranks; 1 where fewer
than three tell it.

    error    = 100 · drift · healthy / step      points by which the truth itself may be off: nineteen times of twenty it is off by less
    drift    = 1.96 · √(σ²/n + σ'²/n')           of the lab of faults: σ, the standard deviation of one measurement from the mean of those
                                                 that are alike, as a share of it, over all of that program; n: how many are alike;
                                                 σ', n': of the windows that tell `observed`
             = 1.96 · 1.48 · m                   of others, and where too few are alike; m: the greater of these, as far as they are known
                 how far the steps were from `before` in windows in which nothing was done, median
                 by how much `before` changes from one case of the same job to the next, median; of a case that was measured on both
                 sides, half of what lies between them

Both of the last are of the same job (of the lab of faults: of its jobs) in the same recording. The truth is known where its error is no
more than the points by which a lost time may be off. Of a verdict nothing enters but which part of the window it is about.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from corpuskit.case import Case
from corpuskit.judging import Answer, Judged
from labkit.cases import Case as Asked
from labkit.cases import plan_of
from labkit.faults import ALL
from labkit.launch import Plan

LOST_POINTS = 5.0  # by which a lost time may be off
LEFT_ALONE = frozenset({"none", "quiet"})  # faults that are none
_CHANGES = 2  # that tell a change from an accident
_SURE = 1.96  # standard errors: nineteen of twenty are no further off
_OF_MEDIAN = 1.48  # standard deviations in a median distance


@dataclass(frozen=True, slots=True)
class Lost:
    """What was lost of each step: seconds, of a step of so many seconds. error: points of that step; None where nothing tells it."""

    seconds: float
    step_s: float
    error: float | None

    @property
    def doubt(self) -> str:
        """Why the seconds are not known; '' where they are."""
        if self.error is None:
            return "nothing tells how the job's healthy steps drift"
        return f"the job's healthy step is not known to {LOST_POINTS:.0f} points" if self.error > LOST_POINTS else ""


@dataclass(frozen=True, slots=True)
class _Drift:
    """Relative changes of healthy steps, of one job in one recording."""

    alone: list[float] = field(default_factory=list)  # of the window in which nothing was done from what was before
    changes: list[float] = field(default_factory=list)  # from case to case

    def of(self, case: Case) -> float | None:
        told = [statistics.median(self.alone)] if self.alone else []
        if case.two_sided:
            told.append(abs(case.sides_s[1] - case.sides_s[0]) / sum(case.sides_s))
        elif len(self.changes) >= _CHANGES:
            told.append(statistics.median(self.changes))
        return _SURE * _OF_MEDIAN * max(told) if told else None


@dataclass(frozen=True, slots=True)
class _Pooled:
    """A healthy step from the cases whose jobs are alike, error: its standard error as a share of it, None where too few tell it."""

    healthy_s: float
    error: float | None


@dataclass(frozen=True, slots=True)
class _Observed:
    """A healthy step in windows over the same before, and its standard error."""

    ratio: float = 1.0
    error: float = 0.0


_Recording = tuple[str, int, str, int]  # archive, seed, program, ranks


class Truths:
    """Of judged cases. Make it of all of them: each job's other windows tell how its steps drift."""

    def __init__(self, judged: Sequence[Judged]) -> None:
        self._factors = _factors(judged)
        self._alike = _alike([case for case, _ in judged])
        self._observed = _observed(judged)
        self._usual = statistics.median(self._factors.values()) if self._factors else 1.0
        self._drifts = dict[tuple[object, ...], _Drift]()
        for case, answer in judged:
            if case.fault in LEFT_ALONE and case.healthy_s and case.during_s:
                healthy_s = self._healthy_s(case, answer)
                self._drift(case).alone.append(abs(_step_s(case, answer) / healthy_s - 1))
        for one, other in _neighbours(case for case, _ in judged):
            self._drift(one).changes.append(abs(other / _before_s(one) - 1))

    def lost(self, case: Case, answer: Answer) -> Lost | None:
        """None where there is nothing to compare: nobody is guilty, or the case says itself that its steps tell nothing."""
        if case.lost_s is None:
            return None
        step_s, healthy_s = answer.part_step_s or _step_s(case, answer), self._healthy_s(case, answer)
        alike = self._alike.get(case.key)
        if alike is None or alike.error is None:
            drift = self._drift(case).of(case)
        else:
            drift = _SURE * math.hypot(alike.error, self._observed_of(case).error)
        return Lost(step_s - healthy_s, step_s, None if drift is None else 100 * drift * healthy_s / step_s)

    def points(self, case: Case, answer: Answer) -> float | None:
        """Points of the step by which the lost time that was told is too high; None where the culprit does not come first."""
        lost = self.lost(case, answer) if answer.right else None
        return None if lost is None else 100 * (answer.lost_s - lost.seconds) / lost.step_s

    def known(self, judged: Iterable[Judged], points: float = LOST_POINTS) -> list[Judged]:
        """Those of these cases of which it is known what was lost, to so many points or fewer."""
        found = ((one, self.lost(*one)) for one in judged)
        return [one for one, lost in found if lost and lost.error is not None and lost.error <= points]

    @property
    def observed(self) -> dict[int, list[float]]:
        """By the number of ranks, of each recording, healthy steps in windows over those before."""
        found = dict[int, list[float]]()
        for (*_, ranks), one in sorted(self._observed.items()):
            found.setdefault(ranks, []).append(one.ratio)
        return found

    def _healthy_s(self, case: Case, answer: Answer) -> float:
        factor = self._factors.get(case.job, self._usual) if _is_median(case) else 1.0
        alike = self._alike.get(case.key)
        before_s = _before_s(case) if alike is None else alike.healthy_s
        return before_s * factor * self._observed_of(case).ratio / _count(case, answer)

    def _observed_of(self, case: Case) -> _Observed:
        recording = _recording(case)
        return _Observed() if recording is None else self._observed.get(recording, _Observed())

    def _drift(self, case: Case) -> _Drift:
        of = (case.archive, case.lab, case.seed, case.job if case.lab == "jobs" else "")
        return self._drifts.setdefault(of, _Drift())


def _factors(judged: Iterable[Judged]) -> dict[str, float]:
    """Of each job that was left alone, mean over median of its steps in the window; a median over windows."""
    found = dict[str, list[float]]()
    for case, answer in judged:
        if case.fault in LEFT_ALONE and _is_median(case) and answer.median_s and _count(case, answer) == 1:
            found.setdefault(case.job, []).append(answer.step_s / answer.median_s)
    return {job: statistics.median(values) for job, values in found.items()}


def _alike(cases: Sequence[Case]) -> dict[str, _Pooled]:
    """Of each case of the lab of faults, by its key."""
    jobs, programs = dict[tuple[str, int, str, Plan], list[Case]](), dict[tuple[str, int, str], list[float]]()
    for case in cases:
        if case.lab == "faults" and case.healthy_s and (plan := _plan(case)) is not None:
            jobs.setdefault((case.archive, case.seed, case.dose, plan), []).append(case)
    means_s = {job: statistics.fmean(map(_before_s, mine)) for job, mine in jobs.items()}
    for (archive, seed, dose, plan), mine in jobs.items():
        if len(mine) > _CHANGES:
            mean_s = means_s[archive, seed, dose, plan]
            of_one = math.sqrt(len(mine) / (len(mine) - 1))
            off = programs.setdefault((archive, seed, plan.program), [])
            off += [(_before_s(case) / mean_s - 1) * of_one for case in mine]
    found = dict[str, _Pooled]()
    for (archive, seed, dose, plan), mine in jobs.items():
        off = programs.get((archive, seed, plan.program), [])
        one = math.sqrt(statistics.fmean(each**2 for each in off)) if off else None
        error = None if one is None else one / math.sqrt(len(mine))
        found |= dict.fromkeys((case.key for case in mine), _Pooled(means_s[archive, seed, dose, plan], error))
    return found


def _observed(judged: Iterable[Judged]) -> dict[_Recording, _Observed]:
    """Of each recording in which enough windows tell it."""
    ratios = dict[_Recording, dict[tuple[str, ...], float]]()  # each window once, beside what was measured next to it
    for case, answer in sorted(judged, key=lambda one: one[0].recorded):
        recording = _recording(case)
        if recording is None or not case.healthy_s:
            continue
        of_windows = ratios.setdefault(recording, {})
        if case.fault in LEFT_ALONE and (answer.step_s or case.during_s):
            of_windows.setdefault(case.windows, _step_s(case, answer) * _count(case, answer) / case.healthy_s)
        if case.baseline and answer.earlier_s:
            count = _times(case.healthy_s, answer.earlier_s)
            of_windows.setdefault(case.baseline, answer.earlier_s * count / case.healthy_s)
    return {
        recording: _Observed(statistics.fmean(known), statistics.stdev(known) / math.sqrt(len(known)))
        for recording, of_windows in ratios.items()
        if len(known := list(of_windows.values())) > _CHANGES
    }


def _recording(case: Case) -> _Recording | None:
    plan = _plan(case) if case.lab == "faults" else None
    return None if plan is None else (case.archive, case.seed, plan.program, case.ranks)


def _plan(case: Case) -> Plan | None:
    """The job of a case of the lab of faults but for the rank that has a core of its own; None where there is no such fault any more."""
    if case.fault not in ALL:
        return None
    program = case.name.removeprefix(f"{case.fault}-{case.dose}-{case.seed}").removeprefix("-") or "job"
    asked = Asked(case.fault, case.seed, case.ranks, case.hosts, dose=case.dose, program=program)
    return replace(plan_of(asked), lone=0)


def _neighbours(cases: Iterable[Case]) -> Iterable[tuple[Case, float]]:
    """Each case with the healthy step of the next one of the same job, in the same shape."""

    def shape(case: Case) -> tuple[object, ...]:
        # Doses of the lab of faults are of jobs on other CPUs; in the lab of jobs they say how long the steps became.
        return (case.archive, case.lab, case.job, case.seed, case.ranks, case.hosts, case.lab != "jobs" and case.dose)

    known = sorted((case for case in cases if case.healthy_s), key=lambda case: (*map(str, shape(case)), case.recorded))
    for one, other in itertools.pairwise(known):
        if shape(one) == shape(other):
            yield one, _before_s(other)


def _is_median(case: Case) -> bool:
    return case.lab == "jobs" and not case.two_sided


def _before_s(case: Case) -> float:
    assert case.healthy_s
    return case.healthy_s


def _step_s(case: Case, answer: Answer) -> float:
    step_s = answer.step_s or case.during_s
    assert step_s
    return step_s


def _count(case: Case, answer: Answer) -> int:
    """Steps of the window that are one of the job's: its own steps, of a longer time and not all observed, only tell how many."""
    return _times(case.during_s or 0.0, _step_s(case, answer))


def _times(whole_s: float, step_s: float) -> int:
    return max(round(whole_s / step_s), 1)
