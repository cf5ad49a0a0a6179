"""Which numeric constants the diagnoser has: numbers that its modules assign to names in capitals."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corpuskit.overrides import DIAGNOSER, assigned

# Rooms that no verdict on windows passes through.
_NOT_JUDGING = {"cli", "export", "report", "sweep", "top", "watch"}
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
