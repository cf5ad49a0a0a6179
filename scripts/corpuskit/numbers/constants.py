"""Which numeric constants the diagnoser has: numbers that modules assign to names in capitals."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from corpuskit.numbers.overrides import DIAGNOSER, assigned

_VERDICTS = (f"{DIAGNOSER}.solve.judge", f"{DIAGNOSER}.solve.judge_steps_file")  # what makes them
# Rooms that no verdict on windows passes through.
_NOT_JUDGING = {"cli", "export", "report", "sweep", "top", "watch"}
_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True)
class Constant:
    """`key`: module:NAME, as overrides want it. whole: an integer stays one."""

    key: str
    value: float
    whole: bool
    line: int

    def moved(self, factor: float) -> float | int:
        """Times the factor; a whole number moves by one at least."""
        if not self.whole:
            return self.value * factor
        return int(self.value) + max(1, round(abs(self.value * (factor - 1)))) * (1 if factor > 1 else -1)


def all_constants() -> list[Constant]:
    """Of limits.py first, then of the other modules by name."""
    root, files = _sources()
    files.sort(key=lambda path: path != root / "limits.py")
    return [one for path in files for one in constants(path.read_text(), _module(path.relative_to(root)))]


def of_inference() -> list[Constant]:
    """Those of the modules through which a verdict passes, less what only bounds how much is read or said, and where a series ends that
    is exact to the last bits."""
    root, files = _sources()
    paths = {_module(path.relative_to(root)): path for path in files}
    reached, left = set[str](), [module for module in _VERDICTS if module in paths]
    while left:
        module = left.pop()
        reached.add(module)
        left += [name for name in _imported(paths[module].read_text()) if name in paths and name not in reached]
    kept = reached - {f"{DIAGNOSER}.budgets", f"{DIAGNOSER}.stats.special"}
    return [one for one in all_constants() if one.key.partition(":")[0] in kept]


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def code() -> str:
    """A digest of the diagnoser's sources: what was judged by other code is not to be mixed with what is judged now."""
    digest = hashlib.sha256()
    for path in _sources()[1]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _sources() -> tuple[Path, list[Path]]:
    found = importlib.util.find_spec(DIAGNOSER)
    assert found is not None and found.submodule_search_locations
    root = Path(next(iter(found.submodule_search_locations)))
    return root, [path for path in sorted(root.rglob("*.py")) if not _NOT_JUDGING & set(path.relative_to(root).parts)]


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join([DIAGNOSER, *(parts[:-1] if parts[-1] == "__init__" else parts)])


def constants(source: str, module: str) -> Iterator[Constant]:
    """Numbers and sums, products and powers of numbers; no truth values, no texts, nothing computed from other names."""
    for statement in ast.parse(source).body:
        name = assigned(statement)
        if name is None or not _NAME.fullmatch(name):
            continue
        assert isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None
        value = _number(statement.value)
        if value is not None:
            yield Constant(f"{module}:{name}", float(value), isinstance(value, int), statement.lineno)


def _number(node: ast.expr) -> float | int | None:
    allowed = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)
    if not all(isinstance(part, allowed) for part in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "constant", "eval"), {"__builtins__": {}})
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
