"""What the lab prints: generators of lines, at most 80 columns wide where they are tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from labkit import verdicts
from labkit.run import Result

GOOD_ENOUGH = 0.9


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


def verdict_table(results: Sequence[Result]) -> Iterator[str]:
    """How well the faults were named, one line per fault."""
    yield f"{'fault':<14}{'runs':>5}{'first':>7}{'in three':>10}{'wrong':>7}{'silent':>8}{'failed':>8}{'cause':>7}{'seconds':>9}"
    for fault, of_fault in _by_fault(results):
        count = {outcome: sum(result.outcome == outcome for result in of_fault) for outcome in _OUTCOMES}
        seconds = [result.seconds for result in of_fault if result.seconds is not None]
        cause = "-" if fault == "none" else sum(result.cause_right for result in of_fault)
        yield (
            f"{fault:<14}{len(of_fault):>5}{count[verdicts.FIRST]:>7}{count[verdicts.FIRST] + count[verdicts.IN_THREE]:>10}"
            f"{count[verdicts.WRONG]:>7}{count[verdicts.SILENT]:>8}{count[verdicts.FAILED]:>8}"
            f"{cause:>7}{statistics.median(seconds) if seconds else 0:>9.1f}"
        )
    yield ""
    for result in results:
        if result.outcome == verdicts.IMPOSSIBLE:
            yield f"not possible here: {result.case.fault} seed {result.case.seed}: {result.said}"
    named, faults, accusations, healthy = tally(results)
    if faults:
        yield f"faults named right first: {named} of {faults} ({100 * named / faults:.0f} %; wanted: {100 * GOOD_ENOUGH:.0f} %)"
    if healthy:
        yield f"accusations in healthy runs: {accusations} of {healthy} (wanted: 0)"


def effect_table(results: Sequence[Result]) -> Iterator[str]:
    """What each fault did to the job, by the job's own clock (means, ms)."""
    yield f"{'fault':<13}{'seed':>5}{'ranks':>6}{'hosts':>6}{'step':>7}{'→ step':>8}{'own':>8}{'→ own':>8}{'peers':>8}{'→ peers':>8}"
    for result in results:
        before, after, truth = result.before, result.after, result.truth
        start = f"{result.case.fault:<13}{result.case.seed:>5}{result.plan.ranks:>6}{result.plan.hosts:>6}"
        if before is None or truth is None:
            yield f"{start}  {result.said.splitlines()[0]}"
            continue
        victims = truth.ranks or (result.plan.lone,)
        peers = [rank for rank in range(result.plan.ranks) if rank not in victims]
        line = f"{start}{before.step_s * 1e3:>7.0f}"
        if after is None:
            yield line + "  no step ends any more"
            continue
        line += f"{after.step_s * 1e3:>8.0f}"
        for group, width in ((victims, 8), (peers, 8)):
            line += f"{1e3 * statistics.median(before.own_s[rank] for rank in group):>{width}.1f}"
            line += f"{1e3 * statistics.median(after.own_s[rank] for rank in group):>8.1f}"
        yield line
    yield ""
    yield "own: the victim's time in its own work (all but backward and the device);"
    yield "for a slow link the work is the network's, so own stays as it is."


def tally(results: Sequence[Result]) -> tuple[int, int, int, int]:
    """Faults named right first, faults, accusations in healthy runs, healthy runs; impossible cases are left out."""
    judged = [result for result in results if result.outcome != verdicts.IMPOSSIBLE]
    faults = [result for result in judged if result.case.fault != "none"]
    healthy = [result for result in judged if result.case.fault == "none"]
    return (
        sum(result.outcome == verdicts.FIRST for result in faults),
        len(faults),
        sum(result.outcome == verdicts.WRONG for result in healthy),
        len(healthy),
    )


def good_enough(results: Sequence[Result]) -> bool:
    """Whether the lab's aims are met, and every run ended with a verdict."""
    named, faults, accusations, _ = tally(results)
    ended = all(result.outcome != verdicts.FAILED for result in results)
    return ended and named >= GOOD_ENOUGH * faults and not accusations


_OUTCOMES = (verdicts.FIRST, verdicts.IN_THREE, verdicts.WRONG, verdicts.SILENT, verdicts.FAILED)


def _by_fault(results: Sequence[Result]) -> Iterator[tuple[str, list[Result]]]:
    for fault in dict.fromkeys(result.case.fault for result in results):
        of_fault = [
            result for result in results if result.case.fault == fault and result.outcome != verdicts.IMPOSSIBLE
        ]
        if of_fault:
            yield fault, of_fault
