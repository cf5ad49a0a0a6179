"""What the lab prints: generators of lines, at most 80 columns wide where they are tables."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit import verdicts
from labkit.cases import GOOD_ENOUGH, GOOD_ENOUGH_WEAK, Result


def case_line(result: Result) -> str:
    """One case, as it ends."""
    truth = result.truth
    parts = []
    if truth and truth.ranks:
        parts.append("rank " + ",".join(map(str, truth.ranks)))
    if truth and truth.function:
        parts.append(f"{truth.function} ({truth.culprit})")
    if result.before and result.after:
        parts.append(f"step {result.before.step_s * 1e3:.0f}→{result.after.step_s * 1e3:.0f} ms")
    elif result.before:
        parts.append(f"step {result.before.step_s * 1e3:.0f} ms→none")
    return f"{', '.join(parts)} | {result.said}"


def verdict_table(results: Sequence[Result], wanted: float = GOOD_ENOUGH) -> Iterator[str]:
    """How well the faults were named, one line per fault and dose. `wanted`: the share that must be named right."""
    yield f"{'fault':<16}{'dose':<7}{'runs':>5}{'first':>6}{'in 3':>6}{'wrong':>6}{'silent':>7}{'failed':>7}{'cause':>6}{'seconds':>8}"
    for fault, dose, of_fault in _by_fault(results):
        count = {outcome: sum(result.outcome == outcome for result in of_fault) for outcome in _OUTCOMES}
        seconds = [result.seconds for result in of_fault if result.seconds is not None]
        cause = sum(result.cause_right for result in of_fault) if any(result.guilty for result in of_fault) else "-"
        yield (
            f"{fault:<16}{dose:<7}{len(of_fault):>5}{count[verdicts.FIRST]:>6}{count[verdicts.FIRST] + count[verdicts.IN_THREE]:>6}"
            f"{count[verdicts.WRONG]:>6}{count[verdicts.SILENT]:>7}{count[verdicts.FAILED]:>7}"
            f"{cause:>6}{statistics.median(seconds) if seconds else 0:>8.1f}"
        )
    yield ""
    for result in results:
        if result.outcome == verdicts.IMPOSSIBLE:
            yield f"not possible here: {result.case.fault} seed {result.case.seed}: {result.said}"
    yield from _overall(tally(results), wanted)
    yield from _reliability(results)
    walls = [result.wall_s for result in results if result.wall_s]
    if walls:
        yield f"seconds per case, its share of starting jobs included: {statistics.fmean(walls):.1f}"


def _overall(found: Tally, wanted: float) -> Iterator[str]:
    for dose, (named, faults) in found.named.items():
        aim = wanted if dose == "strong" else GOOD_ENOUGH_WEAK
        share = f"{100 * named / faults:.0f} %; wanted: {100 * aim:.0f} %"
        yield f"{dose} doses right first: {named} of {faults} ({share})"
    if found.accused:
        yield (
            f"precision {found.precision:.3f} ({found.accused_rightly} of {found.accused} accusations; wanted: {PRECISION}), "
            f"recall {found.recall:.3f}, F1 {found.f1:.3f}"
        )
    if found.healthy:
        yield f"accusations in healthy runs: {found.accused_healthy} of {found.healthy} (wanted: 0)"


def _reliability(results: Sequence[Result]) -> Iterator[str]:
    """Of the accusations with a confidence in each bin, how many were right."""
    accusations = [result for result in results if result.accused]
    if not accusations:
        return
    yield ""
    yield f"{'confidence':<14}{'accusations':>12}{'mean':>7}{'right':>7}{'share':>7}"
    for low, high in itertools.pairwise(_BINS):
        among = [result for result in accusations if low <= result.confidence < high]
        if among:
            right = sum(result.accused_rightly for result in among)
            mean = statistics.fmean(result.confidence for result in among)
            yield f"{f'{low:.2f}-{min(high, 1):.2f}':<14}{len(among):>12}{mean:>7.2f}{right:>7}{right / len(among):>7.2f}"
    error = sum((result.confidence - result.accused_rightly) ** 2 for result in accusations) / len(accusations)
    yield f"Brier score {error:.3f}"
    yield ""


def effect_table(results: Sequence[Result]) -> Iterator[str]:
    """What each fault did to the job, by the job's own clock (means, ms)."""
    yield (
        f"{'fault':<16}{'dose':<7}{'seed':>4}{'ranks':>6}{'step':>6}{'→':>6}{'gain':>7}"
        f"{'own':>7}{'→':>7}{'peers':>7}{'→':>7}"
    )
    for result in results:
        before, after, truth = result.before, result.after, result.truth
        start = f"{result.case.fault:<16}{result.case.dose:<7}{result.case.seed:>4}{result.plan.ranks:>6}"
        if before is None or truth is None:
            yield f"{start}  {result.said.splitlines()[0]}"
            continue
        victims = truth.ranks or (result.plan.lone,)
        peers = [rank for rank in range(result.plan.ranks) if rank not in victims]
        line = f"{start}{before.step_s * 1e3:>6.0f}"
        if after is None:
            yield line + "  no step ends any more"
            continue
        line += f"{after.step_s * 1e3:>6.0f}{100 * (after.step_s / before.step_s - 1):>+6.0f}%"
        for group in (victims, peers):
            if group:
                line += f"{1e3 * statistics.median(before.own_s[rank] for rank in group):>7.1f}"
                line += f"{1e3 * statistics.median(after.own_s[rank] for rank in group):>7.1f}"
        yield line
    yield ""
    walls = [result.wall_s for result in results if result.wall_s]
    if walls:
        yield f"seconds per case: {statistics.fmean(walls):.1f}; means in ms;"
    yield "own: the victim's time in its own work (all but backward and the device);"
    yield "for a slow link the work is the network's, so own stays as it is."


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over cases that were possible. named: dose → (right first, cases in which something was wrong or uneven).

    precision = accused rightly / accused; recall = right first / guilty.
    """

    named: dict[str, tuple[int, int]]
    accused: int
    accused_rightly: int
    guilty: int
    guilty_named: int
    healthy: int
    accused_healthy: int

    @property
    def precision(self) -> float:
        return self.accused_rightly / self.accused if self.accused else 1.0

    @property
    def recall(self) -> float:
        return self.guilty_named / self.guilty if self.guilty else 1.0

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def tally(results: Sequence[Result]) -> Tally:
    """Impossible cases are left out."""
    judged = [result for result in results if result.outcome != verdicts.IMPOSSIBLE]
    named = {}
    for dose in dict.fromkeys(result.case.dose for result in judged):
        cases = [result for result in judged if result.case.dose == dose and not result.healthy]
        if cases:
            named[dose] = (sum(result.outcome == verdicts.FIRST for result in cases), len(cases))
    healthy = [result for result in judged if result.healthy]
    guilty = [result for result in judged if result.guilty]
    return Tally(
        named=named,
        accused=sum(result.accused for result in judged),
        accused_rightly=sum(result.accused_rightly for result in judged),
        guilty=len(guilty),
        guilty_named=sum(result.outcome == verdicts.FIRST for result in guilty),
        healthy=len(healthy),
        accused_healthy=sum(result.outcome == verdicts.WRONG for result in healthy),
    )


def good_enough(results: Sequence[Result], wanted: float = GOOD_ENOUGH) -> bool:
    """Whether the lab's aims are met, and every run ended with a verdict."""
    found = tally(results)
    ended = all(result.outcome != verdicts.FAILED for result in results)
    named = all(
        right >= (wanted if dose == "strong" else GOOD_ENOUGH_WEAK) * cases
        for dose, (right, cases) in found.named.items()
    )
    return ended and named and not found.accused_healthy and found.precision >= PRECISION


_OUTCOMES = (verdicts.FIRST, verdicts.IN_THREE, verdicts.WRONG, verdicts.SILENT, verdicts.FAILED)
# Bounds of the bins of confidence; the last one is above 1, so that 1 is in a bin.
_BINS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.01)
PRECISION = 0.98


def _by_fault(results: Sequence[Result]) -> Iterator[tuple[str, str, list[Result]]]:
    for fault, dose in sorted(
        dict.fromkeys((result.case.fault, result.case.dose) for result in results),
        key=lambda pair: [result.case.fault for result in results].index(pair[0]),
    ):
        of_fault = [
            result
            for result in results
            if (result.case.fault, result.case.dose) == (fault, dose) and result.outcome != verdicts.IMPOSSIBLE
        ]
        if of_fault:
            yield fault, dose, of_fault
