"""Functions of a room drawn at random, as a reader sees them who may not open the body: signature, docstring, class, module.

`PYTHONPATH=scripts .venv/bin/python -m testkit.signatures ROOM [--count N] [--seed N] [--bodies]`. Somebody who has not seen the code says
what each of them does; with `--bodies` the same functions are printed whole, to hold that against.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CODE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Function:
    """A function or method. `of`: the class it belongs to, with its docstring."""

    path: Path
    module_says: str
    of: str
    node: ast.FunctionDef

    def shown(self) -> str:
        """Where it is, its signature, its docstring."""
        bare = ast.FunctionDef(**{**dict(ast.iter_fields(self.node)), "body": [ast.Expr(ast.Constant(...))]})
        said = ast.get_docstring(self.node)
        head = ast.unparse(ast.fix_missing_locations(bare)).removesuffix("...").rstrip()
        lines = [f"{self.path} — {self.module_says}", *([f"class {self.of}"] if self.of else []), head]
        return "\n".join([*lines, f'    """{said}"""' if said else "    (no docstring)"])

    def whole(self) -> str:
        """The same with its body."""
        return f"{self.path}:{self.node.lineno}\n{ast.unparse(self.node)}"


def functions_in(room: Path, root: Path = _CODE) -> Iterator[Function]:
    """All functions of a room but those inside of others and those with names that Python gives a meaning."""
    for path in sorted((root / room).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        says = (ast.get_docstring(tree) or "").partition("\n")[0]
        for of, node in _nodes(tree):
            if not (node.name.startswith("__") and node.name.endswith("__")):
                yield Function(path.relative_to(root), says, of, node)


def _nodes(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield "", node
        elif isinstance(node, ast.ClassDef):
            of = f"{node.name}: {(ast.get_docstring(node) or '').partition(chr(10))[0]}"
            yield from ((of, one) for one in node.body if isinstance(one, ast.FunctionDef))


def main() -> None:
    """Print as many as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("room", type=Path)
    parser.add_argument("--count", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bodies", action="store_true")
    asked = parser.parse_args()
    found = list(functions_in(asked.room))
    drawn = random.Random(asked.seed).sample(found, min(asked.count, len(found)))
    for number, one in enumerate(drawn, 1):
        print(f"[{number}] {one.whole() if asked.bodies else one.shown()}\n")


if __name__ == "__main__":
    main()
