"""Each constant of the diagnoser moved up and down: which verdicts of the corpus change."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpuskit.archive import Corpus
from corpuskit.case import Case
from corpuskit.judging import Answer, Judges, tasks
from corpuskit.numbers.constants import Constant
from labkit.machine.shell import EXIT_USAGE, LabError

BY = 0.3
FEW_CHANGES = 0.01  # of the verdicts: more may not change when a fitted constant moves
SCHEMA = "rankscope.corpus.moved/1"


@dataclass(frozen=True, slots=True)
class Move:
    """What a constant at another value changed: (case, outcome and words before, after)."""

    key: str
    factor: float
    value: float
    cases: int
    changed: tuple[tuple[str, str, str], ...]

    @property
    def share(self) -> float:
        return len(self.changed) / self.cases if self.cases else 0.0

    @property
    def worse(self) -> int:
        """Cases that were right and are not any more, less those that became right."""
        return sum(before.startswith("first") - after.startswith("first") for _, before, after in self.changed)


def moves(
    corpus: Corpus,
    cases: Sequence[Case],
    chosen: Sequence[tuple[Constant, float]],
    judge: Judges,
    deadline: float | None = None,
) -> Iterator[Move]:
    """Every chosen constant times its factor. None is begun after the deadline, on the monotonic clock."""
    usual = {answer.key: words(answer) for answer in judge(cases)}
    # As many at a time as judge side by side, so that an end in the middle loses little.
    for start in range(0, len(chosen), judge.processes):
        if deadline is not None and time.monotonic() > deadline:
            return
        at_once = {(one.key, one.moved(factor)): factor for one, factor in chosen[start : start + judge.processes]}
        work = [
            task
            for key, value in at_once
            for task in tasks(corpus, cases, {key: value}, together=len(cases), by=judge.by)
        ]
        for task, answers in judge.run_whole(work):
            key, value = task.numbers[0]
            changed = [(one.key, usual[one.key], words(one)) for one in answers if words(one) != usual[one.key]]
            yield Move(key, at_once[key, value], value, len(answers), tuple(sorted(changed)))


def of_cases(cases: Sequence[Case]) -> str:
    """A digest of which cases they are."""
    return hashlib.sha256(" ".join(case.key for case in cases).encode()).hexdigest()[:12]


def words(answer: Answer) -> str:
    """What must not change: how the case ended, and who is accused of what; not the lost time, nor the confidence."""
    return f"{answer.outcome}, {answer.said}"


def read(path: Path, judged: str) -> list[Move]:
    """Moves that were judged before; none where there is no file. LabError where it holds something else.

    judged: what was judged, and by which code; those of others are not to be mixed with them.
    """
    if not path.exists():
        return []
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']!r}")
        if content["judged"] != judged:
            raise LabError(f"{path} is of other cases or other code", "Give another file.", EXIT_USAGE)
        return [Move(**{**item, "changed": tuple(map(tuple, item["changed"]))}) for item in content["moves"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{path} holds no moved constants: {error}", exit_code=EXIT_USAGE) from None


def write(path: Path, judged: str, found: Sequence[Move]) -> None:
    content = {
        "schema": SCHEMA,
        "judged": judged,
        "moves": [
            {"key": one.key, "factor": one.factor, "value": one.value, "cases": one.cases, "changed": one.changed}
            for one in found
        ],
    }
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps(content, indent=1))
    draft.rename(path)


def table(found: Sequence[Move], constants: Sequence[Constant]) -> Iterator[str]:
    """The constants that change most first, in either direction; then those that change nothing, counted."""
    of: dict[str, list[Move]] = {}
    for one in found:
        of.setdefault(one.key, []).append(one)
    values = {constant.key: constant.value for constant in constants}
    yield f"{'constant':<52}{'value':>10}{'changed':>9}{'worse':>7}{'share':>8}"
    ordered = sorted(of, key=lambda key: (-max(one.share for one in of[key]), key))
    for key in ordered:
        for one in sorted(of[key], key=lambda one: one.factor):
            if one.changed:
                name = key.partition(".diagnose.")[2]
                yield (
                    f"{name:<52}{values.get(key, 0):>10.4g}{len(one.changed):>9}{one.worse:>+7}{100 * one.share:>6.1f} %"
                    f"  × {one.factor:g}"
                )
    still = sum(not any(one.changed for one in of[key]) for key in of)
    much = sum(max(one.share for one in of[key]) > FEW_CHANGES for key in of)
    yield f"{len(of)} constants moved: {still} change no verdict, {much} more than {100 * FEW_CHANGES:.0f} % of them"


def details(found: Sequence[Move]) -> Iterator[str]:
    for one in sorted(found, key=lambda one: (one.key, one.factor)):
        for case, before, after in one.changed:
            yield f"{one.key.partition('.diagnose.')[2]} × {one.factor:g}: {case}: {before} → {after}"
