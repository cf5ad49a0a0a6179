"""Each constant of the diagnoser moved up and down: which verdicts of the corpus change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from corpuskit.archive import Corpus
from corpuskit.case import Case
from corpuskit.constants import Constant
from corpuskit.judging import Answer, Judges, tasks

BY = 0.3


@dataclass(frozen=True, slots=True)
class Move:
    """What a constant at another value changed: (case, outcome and words before, after)."""

    key: str
    value: float
    changed: tuple[tuple[str, str, str], ...]

    @property
    def name(self) -> str:
        return self.key.partition(".diagnose.")[2]

    @property
    def worse(self) -> int:
        """Count cases that were right and are not any more, less those that became right."""
        return sum(before.startswith("first") - after.startswith("first") for _, before, after in self.changed)


def moves(corpus: Corpus, cases: Sequence[Case], values: Sequence[tuple[str, float]], judge: Judges) -> Iterator[Move]:
    """Judge the cases with each constant at its other value; yield each as soon as it is judged."""
    usual = {answer.key: words(answer) for answer in judge(cases)}
    work = (task for key, value in values for task in tasks(corpus, cases, {key: value}, len(cases), judge.by))
    for task, answers in judge.run(work):
        key, value = task.numbers[0]
        changed = [(one.key, usual[one.key], words(one)) for one in answers if words(one) != usual[one.key]]
        yield Move(key, value, tuple(sorted(changed)))


def values(constants: Sequence[Constant], by: float) -> list[tuple[str, float]]:
    """List each constant times 1 + by and times 1 - by."""
    return [(one.key, one.moved(1 + sign * by)) for one in constants for sign in (1, -1)]


def words(answer: Answer) -> str:
    """What must not change: how the case ended, and who is accused of what; not the lost time, nor the confidence."""
    return f"{answer.outcome}, {answer.said}"


def line(one: Move, cases: int) -> str:
    share = 100 * len(one.changed) / cases
    return f"{one.name:<52}{one.value:>10.4g}{len(one.changed):>9}{one.worse:>+7}{share:>6.1f} %"


def details(one: Move) -> Iterator[str]:
    yield from (f"  {case}: {before} → {after}" for case, before, after in one.changed)
