"""What is counted over judged cases: per kind, per job, lost time, calibration. Pure; lines of at most 100 columns."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from corpuskit.case import STRONG, WEAK, Case
from corpuskit.judging import Judged
from corpuskit.truth import LOST_POINTS, Truths
from labkit import verdicts

# What is wanted of the diagnoser: shares, and points by which lost times and confidences may be off.
WANTED = {STRONG: 0.98, WEAK: 0.92}
LOST_WITHIN = 0.8
CALIBRATION_POINTS, CALIBRATION_ENOUGH = 5.0, 20
_TENTHS = 10
BOTH_SIDES = "before and after"  # where the healthy step is known from


@dataclass(frozen=True, slots=True)
class Count:
    """Of some cases how many there are, and how they ended."""

    cases: int = 0
    first: int = 0
    in_three: int = 0
    wrong: int = 0
    silent: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return f"{self.first}/{self.cases}" if self.cases else "-"

    @property
    def percent(self) -> str:
        return f"{100 * self.first / self.cases:.1f} %" if self.cases else "-"


def count(judged: Sequence[Judged]) -> Count:
    def of(outcome: str) -> int:
        return sum(answer.outcome == outcome for _, answer in judged)

    return Count(
        cases=len(judged),
        first=of(verdicts.FIRST),
        in_three=of(verdicts.IN_THREE),
        wrong=of(verdicts.WRONG),
        silent=of(verdicts.SILENT),
        failed=of(verdicts.FAILED),
    )


def grouped(judged: Sequence[Judged], key: Callable[[Case], str]) -> dict[str, list[Judged]]:
    found: dict[str, list[Judged]] = {}
    for one in sorted(judged, key=lambda one: key(one[0])):
        found.setdefault(key(one[0]), []).append(one)
    return found


def by_dose(judged: Sequence[Judged]) -> dict[str, Count]:
    return {dose: count([one for one in judged if one[0].dose == dose]) for dose in (STRONG, WEAK)}


def innocent_accused(judged: Sequence[Judged]) -> list[Judged]:
    """Healthy and imbalanced windows, and those of jobs that had not begun, in which somebody is accused."""
    return [one for one in judged if not one[0].guilty and (one[1].accused or one[1].outcome == verdicts.WRONG)]


def count_table(judged: Sequence[Judged], title: str, key: Callable[[Case], str]) -> Iterator[str]:
    """A line per group: right first by dose, then how the others ended."""
    yield f"{title:<28}{'strong':>9}{'weak':>9}{'in three':>10}{'silent':>8}{'wrong':>7}{'failed':>8}"
    for name, among in grouped(judged, key).items():
        all_of_them, doses = count(among), by_dose(among)
        yield (
            f"{name:<28}{doses[STRONG]!s:>9}{doses[WEAK]!s:>9}{all_of_them.in_three:>10}{all_of_them.silent:>8}"
            f"{all_of_them.wrong:>7}{all_of_them.failed:>8}"
        )


def totals(judged: Sequence[Judged]) -> Iterator[str]:
    guilty = [one for one in judged if one[0].guilty]
    for dose, found in by_dose(guilty).items():
        yield f"{dose} faults right first: {found} ({found.percent}; wanted: {100 * WANTED[dose]:.0f} %)"
    for quiet, words in ((True, "on a quiet machine"), (False, "beside other work")):
        found = count([one for one in guilty if one[0].quiet == quiet])
        if found.cases:
            yield f"  of them {words}: {found} ({found.percent}), {found.silent} silent, {found.wrong} wrong"
    innocent = len(judged) - len(guilty)
    if innocent:
        yield f"healthy and imbalanced windows accused: {len(innocent_accused(judged))} of {innocent} (wanted: 0)"
    doubtful = [one for one in judged if one[0].doubt]
    if doubtful:
        yield f"cases of doubtful truth among all these: {count(doubtful)} right"


@dataclass(frozen=True, slots=True)
class LostTime:
    """Predicted less true lost time, in points of the step: over cases whose culprit comes first."""

    cases: int
    median: float
    p90: float  # of the absolute difference
    within: float  # share within LOST_POINTS


def lost_time(judged: Sequence[Judged], truths: Truths) -> LostTime | None:
    points = np.array([found for one in judged if (found := truths.points(*one)) is not None])
    if not len(points):
        return None
    off = np.abs(points)
    return LostTime(
        len(points), float(np.median(points)), float(np.percentile(off, 90)), float(np.mean(off <= LOST_POINTS))
    )


def lost_table(judged: Sequence[Judged]) -> Iterator[str]:
    """All cases, and those of which the truth is known; of how many it is not, and why."""
    truths = Truths(judged)
    yield f"{'lost time, points of step':<28}{'cases':>7}{'median':>9}{'p90 of |.|':>12}{'within 5':>10}{'known':>7}{'within 5':>10}"
    both_sides = [one for one in judged if one[0].two_sided]
    groups = {"all": list(judged), BOTH_SIDES: both_sides, **grouped(judged, lambda case: case.kind)}
    for name, among in groups.items():
        found, known = lost_time(among, truths), lost_time(truths.known(among), truths)
        if found:
            line = f"{name:<28}{found.cases:>7}{found.median:>+9.1f}{found.p90:>12.1f}{100 * found.within:>8.0f} %"
            yield line + (f"{known.cases:>7}{100 * known.within:>8.0f} %" if known else f"{0:>7}")
    yield f"wanted: {100 * LOST_WITHIN:.0f} % within {LOST_POINTS:.0f} points, where the truth is known to as many"
    doubts = Counter(lost.doubt for one in judged if truths.points(*one) is not None and (lost := truths.lost(*one)))
    for doubt, count in sorted(doubts.items(), key=lambda item: -item[1]):
        if doubt:
            yield f"  not known: {count}, {doubt}"
    if truths.observed:
        yield "  healthy steps in windows over those before, by ranks: median, least and most, recordings"
    for ranks, ratios in sorted(truths.observed.items()):
        middle, least, most = (100 * (each - 1) for each in (statistics.median(ratios), min(ratios), max(ratios)))
        yield f"  {ranks:>4} {middle:>+6.1f} % {least:>+6.1f} {most:>+6.1f} {len(ratios):>4}"
    for points in (LOST_POINTS / 2, LOST_POINTS / 4):  # a measure that is itself off by 5 points cannot tell 5
        if better := lost_time(truths.known(judged, points), truths):
            yield f"  known to {points:.2g} points: {better.cases}, of them {100 * better.within:.0f} % within {LOST_POINTS:.0f}"


@dataclass(frozen=True, slots=True)
class Tenth:
    """Accusations of about one confidence."""

    low: float
    count: int
    mean: float
    right: float


def calibration(judged: Sequence[Judged]) -> list[Tenth]:
    accusations = [answer for _, answer in judged if answer.accused]
    found = []
    for tenth in range(_TENTHS):
        among = [one for one in accusations if min(int(one.confidence * _TENTHS), _TENTHS - 1) == tenth]
        if among:
            mean = sum(one.confidence for one in among) / len(among)
            found.append(Tenth(tenth / _TENTHS, len(among), mean, sum(one.right for one in among) / len(among)))
    return found


def calibration_table(judged: Sequence[Judged]) -> Iterator[str]:
    yield f"{'confidence':<14}{'accusations':>12}{'mean':>7}{'right':>8}{'off':>8}"
    for each in calibration(judged):
        far = each.count >= CALIBRATION_ENOUGH and abs(each.mean - each.right) > CALIBRATION_POINTS / 100
        yield (
            f"{f'{each.low:.1f}-{each.low + 1 / _TENTHS:.1f}':<14}{each.count:>12}{each.mean:>7.2f}{each.right:>8.2f}"
            f"{100 * (each.mean - each.right):>+8.1f}{'  too far' if far else ''}"
        )
    off = [(answer.confidence - answer.right) ** 2 for _, answer in judged if answer.accused]
    if off:
        yield f"Brier score {sum(off) / len(off):.3f}"


def bad_table(judged: Sequence[Judged]) -> Iterator[str]:
    """Whatever was not right first, a line each."""
    for case, answer in judged:
        if answer.outcome != verdicts.FIRST:
            notes = list(filter(None, ("" if case.quiet else "beside other work", case.doubt, case.unsteady)))
            yield f"{case.key}: {answer.outcome}, {answer.said}" + (f" [{'; '.join(notes)}]" if notes else "")


def report(judged: Sequence[Judged]) -> Iterator[str]:
    """Everything that `judge` prints."""
    yield from count_table(judged, "kind", lambda case: case.kind)
    yield ""
    yield from count_table(judged, "job", lambda case: case.job)
    yield ""
    yield from lost_table(judged)
    yield ""
    yield from calibration_table(judged)
    yield ""
    yield from totals(judged)
