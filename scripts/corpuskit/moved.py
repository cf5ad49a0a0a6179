"""Each constant of the diagnoser moved up and down: which verdicts of the corpus change.

A constant is a number that a module of the diagnoser assigns to a name in capitals.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from corpuskit.archive import Corpus
from corpuskit.case import Case
from corpuskit.judging import DIAGNOSER, Answer, Judges, assigned, tasks

BY = 0.3
# Rooms that no verdict on windows passes through.
_NOT_JUDGING = {"face", "service", "sweep"}
_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Constant:
    """`key`: module:NAME, as overrides want it. whole: an integer stays one."""

    key: str
    value: float
    whole: bool

    def moved(self, factor: float) -> float | int:
        """Return the value times the factor; a whole number moves by one at least."""
        if not self.whole:
            return self.value * factor
        return int(self.value) + max(1, round(abs(self.value * (factor - 1)))) * (1 if factor > 1 else -1)


def all_constants() -> list[Constant]:
    """List the constants of limits.py first, then those of the other modules by name."""
    found = importlib.util.find_spec(DIAGNOSER)
    assert found is not None and found.submodule_search_locations
    root = Path(next(iter(found.submodule_search_locations)))
    files = [path for path in sorted(root.rglob("*.py")) if not _NOT_JUDGING & set(path.relative_to(root).parts)]
    files.sort(key=lambda path: path != root / "limits.py")
    return [one for path in files for one in constants(path.read_text(), _module(path.relative_to(root)))]


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join([DIAGNOSER, *(parts[:-1] if parts[-1] == "__init__" else parts)])


def constants(source: str, module: str) -> Iterator[Constant]:
    """Yield numbers and sums, products and powers of numbers; no truth values, no texts, nothing computed from other names."""
    for statement in ast.parse(source).body:
        name = assigned(statement)
        if name is None or not _NAME.fullmatch(name):
            continue
        assert isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None
        value = _number(statement.value)
        if value is not None:
            yield Constant(f"{module}:{name}", float(value), isinstance(value, int))


def _number(node: ast.expr) -> float | int | None:
    allowed = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    if not all(isinstance(part, allowed) for part in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "constant", "eval"), {"__builtins__": {}})
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


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
