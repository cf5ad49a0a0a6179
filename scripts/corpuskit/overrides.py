"""The diagnoser with other numbers: a constant of a module has another value, wherever it is used.

A constant is `module:NAME`. Its assignment is replaced while the module is imported, so what was computed from it, imported from
there, or made a default of a function has the new value as well. Modules of the diagnoser are forgotten before, and imported
again from their files; what they stand on stays.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

Overrides = Mapping[str, Any]  # module:NAME → a value that can be written as a literal
DIAGNOSER = "rankscope.diagnose"

_now: dict[str, Any] = {}
_usual_code: Callable[[SourceFileLoader, str], CodeType | None] = SourceFileLoader.get_code


def apply(overrides: Overrides) -> None:
    """From now on the diagnoser, imported anew, has these values. Not for processes that use it already."""
    if dict(overrides) == _now:
        return
    _now.clear()
    _now.update(overrides)
    for name in [name for name in sys.modules if name == DIAGNOSER or name.startswith(f"{DIAGNOSER}.")]:
        del sys.modules[name]
    setattr(SourceFileLoader, "get_code", _code)  # noqa: B010 (mypy takes methods for constants)
    importlib.invalidate_caches()


def _code(loader: SourceFileLoader, module: str) -> CodeType | None:
    wanted = {key.partition(":")[2]: value for key, value in _now.items() if key.partition(":")[0] == module}
    if not wanted:
        return _usual_code(loader, module)
    path = loader.get_filename(module)
    return compile(replaced(loader.get_data(path).decode(), wanted), path, "exec", dont_inherit=True)


def replaced(source: str, values: Mapping[str, Any]) -> ast.Module:
    """The source with other values assigned to these names of the module. KeyError where one is not assigned there."""
    tree = ast.parse(source)
    left = dict(values)
    for statement in tree.body:
        name = assigned(statement)
        if name is not None and name in left:
            assert isinstance(statement, (ast.Assign, ast.AnnAssign))
            statement.value = ast.copy_location(ast.parse(repr(left.pop(name)), mode="eval").body, statement)
    if left:
        raise KeyError(next(iter(left)))
    return ast.fix_missing_locations(tree)


def assigned(statement: ast.stmt) -> str | None:
    """The one name that a statement assigns to; None of any other statement."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None
