"""A verdict compared with the truth, and its price with the job's own steps. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from labkit import verdicts
from labkit.faults.base import Truth
from labkit.public.cases import Case, Price, Result
from labkit.public.kinds import KINDS

HEALTHY = Truth("healthy", {})
Lines = Sequence[tuple[float, float]]


def judged(case: Case, text: str, step_s: float | None) -> Result:
    """The result of one verdict. `step_s`: mean step by the job's own lines."""
    kind = KINDS[case.kind]
    truth = kind.truth if case.fault else HEALTHY
    try:
        verdict = verdicts.parse(text)
    except verdicts.BadVerdict as error:
        return Result(case, verdicts.FAILED, str(error), step_s, verdict=text)
    outcome = _healthy(verdict) if truth.status == "healthy" else verdicts.score(verdict, truth)
    first = verdict.suspects[0] if verdict.suspects else None
    said = f"{verdict.status} {first}" if first else verdict.status
    told = _told_percent(verdict) if outcome == verdicts.FIRST and case.fault and kind.priced else None
    return Result(case, outcome, said, step_s, told, text)


def prices(results: Sequence[Result]) -> dict[str, list[Price]]:
    """By kind the price of each case that has one: true = 100 (1 - H / F).

    F: mean step of the case; H: of the healthy variants of its kind that ran just before and just after it. `results`: in the order in
    which they ran.
    """
    found = defaultdict[str, list[Price]](list)
    for result in results:
        if result.told_percent is None or not result.step_s:
            continue
        kind = [one for one in results if one.case.kind == result.case.kind]
        at = kind.index(result)
        before, after = (
            [one for one in side if not one.case.fault and one.step_s] for side in (kind[:at], kind[at + 1 :])
        )
        if near := [one.step_s for one in (*before[-1:], *after[:1]) if one.step_s]:
            true = 100 * (1 - statistics.fmean(near) / result.step_s)
            found[result.case.kind].append(Price(result.told_percent, true))
    return dict(found)


def middle(priced: Sequence[Price]) -> Price:
    """The medians over the seeds of a kind: a machine that others use as well becomes slower and faster by a fifth within a minute."""
    return Price(statistics.median(one.told for one in priced), statistics.median(one.true for one in priced))


def _told_percent(verdict: verdicts.Verdict) -> float:
    """What would come back, as the first line says: without the first suspect, or without all waste."""
    first, *others = verdict.suspects
    return first.lost_percent + sum(one.lost_percent for one in others if first.waste and one.waste)


def _healthy(verdict: verdicts.Verdict) -> str:
    """Waste counts here: nothing is to be told of a healthy variant."""
    if verdict.suspects:
        return verdicts.WRONG
    return verdicts.FIRST if verdict.status == "healthy" else verdicts.SILENT


def mean_step_s(ranks: Sequence[Lines], start_s: float, end_s: float) -> float | None:
    """Mean of all steps of all ranks that ended in an interval (Unix seconds); None where some rank has none."""
    inside = [[seconds for ended_s, seconds in lines if start_s <= ended_s <= end_s] for lines in ranks]
    return statistics.fmean(one for lines in inside for one in lines) if inside and all(inside) else None
