"""What the lab of hangs prints: lines of at most 80 columns where they are tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

from labkit import verdicts
from labkit.hangs.cases import WANTED, WITHIN_S, Answer, Result
from labkit.hangs.kinds import ALL
from labkit.hangs.score import is_right


def case_line(result: Result) -> str:
    """One case, as it ends."""
    truth = result.truth
    who = f"rank {','.join(map(str, truth.ranks))} | " if truth and truth.ranks else ""
    said = [
        f"{name}: {_said(answer)}"
        for name, answer in (("watch", result.service), ("diagnose", result.command))
        if answer
    ]
    return who + " | ".join(said)


def _said(answer: Answer) -> str:
    seconds = "" if answer.after_s is None else f" after {answer.after_s:.1f} s"
    return f"{answer.outcome.upper()}{seconds}, {answer.said}"


def table(results: Sequence[Result]) -> Iterator[str]:
    """Per kind how many were right and how late, then the totals with what is wanted."""
    yield f"{'kind':<20}{'cases':>6}{'watch':>8}{'s':>7}{'diagnose':>10}{'s':>7}"
    for name in ALL:
        mine = [result for result in possible(results) if result.case.kind == name]
        if mine:
            yield (
                f"{name:<20}{len(mine):>6}{_right(mine, _service):>8}{_seconds(mine, _service):>7}"
                f"{_right(mine, _command):>10}{_seconds(mine, _command):>7}"
            )
    yield ""
    hangs, harmless = split(results)
    for what, mine in (("hangs named", hangs), ("called no hang", harmless)):
        if mine:
            right, asked = counted(mine)
            aim = f"wanted: {100 * WANTED:.0f} %, within {WITHIN_S:.0f} s" if mine is hangs else "wanted: all"
            yield f"{what}: {right} of {asked} ({100 * right / asked:.0f} %; {aim})"
    for result in results:
        if result.service.outcome == verdicts.IMPOSSIBLE:
            yield f"not possible here: {result.case.name}: {result.service.said}"


def possible(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.service.outcome != verdicts.IMPOSSIBLE]


def split(results: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """Hangs, and what is none."""
    found = possible(results)
    harmless = [result for result in found if result.truth is not None and result.truth.status != "hang"]
    return [result for result in found if result not in harmless], harmless


def counted(results: Sequence[Result]) -> tuple[int, int]:
    """Answers that were right and in time, of those that were asked for."""
    answers = [(answer, result.truth) for result in results for answer in result.answers]
    return sum(is_right(answer, truth) for answer, truth in answers), len(answers)


def good_enough(results: Sequence[Result]) -> bool:
    hangs, harmless = split(results)
    right, asked = counted(hangs)
    none, of = counted(harmless)
    return right >= WANTED * asked and none == of


def _service(result: Result) -> Answer | None:
    return result.service


def _command(result: Result) -> Answer | None:
    return result.command


def _right(results: Sequence[Result], of: Callable[[Result], Answer | None]) -> str:
    answers = [(answer, result.truth) for result in results if (answer := of(result))]
    return f"{sum(is_right(*each) for each in answers)}/{len(answers)}" if answers else "-"


def _seconds(results: Sequence[Result], of: Callable[[Result], Answer | None]) -> str:
    seconds = [answer.after_s for result in results if (answer := of(result)) and answer.after_s is not None]
    return f"{statistics.median(seconds):.1f}" if seconds else "-"
