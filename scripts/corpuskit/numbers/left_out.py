"""Each kind, or each job, judged with numbers that were fitted without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from corpuskit import tables
from corpuskit.case import STRONG, WEAK, Case
from corpuskit.judging import Answer, Judge, Judged
from corpuskit.numbers.fits import Fit
from corpuskit.numbers.overrides import Overrides

# Fitted without a kind, it may be judged this much worse, points (issue: no more than 5 below).
MAY_FALL = 5.0


class Remembering:
    """A judge that judges a case only once with the same numbers."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._known: dict[tuple[str, str], Answer] = {}

    def __call__(self, cases: Sequence[Case], numbers: Overrides | None = None) -> list[Answer]:
        numbers = numbers or {}
        words = repr(sorted(numbers.items()))
        new = [case for case in cases if (words, case.key) not in self._known]
        for case, answer in zip(new, self._judge(new, numbers), strict=True):
            self._known[words, case.key] = answer
        return [self._known[words, case.key] for case in cases]


def left_out(
    cases: Sequence[Case], judge: Judge, fits: Sequence[Fit], group: Callable[[Case], str]
) -> tuple[list[Judged], list[Judged], list[Overrides]]:
    """All cases judged with what is fitted on all of them, and each judged with what is fitted without its group.

    And the numbers: those fitted on all first, then those without each group, by its name.
    """
    remembering = Remembering(judge)
    numbers = _fitted(cases, remembering, fits)
    found = [numbers]
    together = list(zip(cases, remembering(cases, numbers), strict=True))
    apart: list[Judged] = []
    for name in sorted({group(case) for case in cases}):
        out = [case for case in cases if group(case) == name]
        numbers = _fitted([case for case in cases if group(case) != name], remembering, fits)
        found.append(numbers)
        apart += zip(out, remembering(out, numbers), strict=True)
    return together, apart, found


def _fitted(cases: Sequence[Case], judge: Judge, fits: Sequence[Fit]) -> Overrides:
    """One after the other: a later one sees cases judged with what the earlier ones fitted."""
    numbers: dict[str, Any] = {}
    for fit in fits:
        numbers |= fit(cases, partial(_judged_with, judge, dict(numbers)))
    return numbers


def _judged_with(
    judge: Judge, fitted: Overrides, cases: Sequence[Case], numbers: Overrides | None = None
) -> list[Answer]:
    return judge(cases, {**fitted, **(numbers or {})})


def table(
    together: Sequence[Judged], apart: Sequence[Judged], found: Sequence[Overrides], group: Callable[[Case], str]
) -> Iterator[str]:
    """Right first of each group, fitted with it and without it; the numbers; what is said with which confidence."""
    yield f"{'left out':<28}{'cases':>7}{'with it':>9}{'without':>9}{'fall':>8}"
    without = tables.grouped(apart, group)
    for name, among in tables.grouped(together, group).items():
        yield _line(name, among, without[name])
    for dose in (STRONG, WEAK):
        pair = [[one for one in judged if one[0].dose == dose and one[0].guilty] for judged in (together, apart)]
        if pair[0]:
            yield _line(f"all {dose} faults", *pair)
    yield f"healthy and imbalanced accused: {_accused(together)} with, {_accused(apart)} without (fall: at most {MAY_FALL:.0f} points)"
    for name, value in found[0].items():
        if isinstance(value, (int, float)):
            without_one = [numbers[name] for numbers in found[1:]]
            yield f"{name}: {value:g} on all, {min(without_one):g} to {max(without_one):g} without a group"
        else:
            yield f"{name}: {value} on all"
    yield ""
    yield from tables.calibration_table(apart)


def _line(name: str, together: Sequence[Judged], apart: Sequence[Judged]) -> str:
    one, other = tables.count(together), tables.count(apart)
    fall = 100 * (one.first - other.first) / max(one.cases, 1)
    return f"{name:<28}{one.cases:>7}{one.first:>9}{other.first:>9}{fall:>6.1f}"


def _accused(judged: Sequence[Judged]) -> int:
    return len(tables.innocent_accused(judged))
