"""Mutants of a file: one thing broken at a time. A condition turned round, a statement that does something left out, a row of a table
left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

MODULE = "<module>"  # as the interpreter names what runs at import


@dataclass(frozen=True, slots=True)
class Mutant:
    """`begin` to `end` (bytes) of a file is replaced; `function`: the innermost that this lies in, or MODULE."""

    file: str
    line: int
    column: int
    what: str
    begin: int
    end: int
    instead: str
    function: str

    @property
    def name(self) -> str:
        """File, place and what becomes of it."""
        return f"{self.file}:{self.line}:{self.column} {self.what}"

    def applied(self, whole: bytes) -> bytes:
        """The file with this broken."""
        return whole[: self.begin] + self.instead.encode() + whole[self.end :]


def mutants_of(file: str, text: str) -> list[Mutant]:
    """All mutants of one file, from its top down."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def mutant(
        function: str, node: ast.expr | ast.stmt, what: str, instead: str, end: ast.expr | None = None
    ) -> Mutant:
        last = end or node
        begin, until = (
            starts[node.lineno - 1] + node.col_offset,
            starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0),
        )
        said = " ".join(text.encode()[begin:until].decode().split())
        return Mutant(file, node.lineno, node.col_offset + 1, f"{what}: {said[:70]}", begin, until, instead, function)

    def source(node: ast.expr) -> str:
        return ast.get_source_segment(text, node) or ""

    def found(node: ast.AST, deep: bool, function: str) -> Iterator[Mutant]:
        if isinstance(node, ast.If | ast.While | ast.IfExp) and source(node.test) != "TYPE_CHECKING":
            yield mutant(function, node.test, "turned round", f"(not ({source(node.test)}))")
        if (deep and isinstance(node, ast.Raise)) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield mutant(function, node, "left out", "pass")
        if not deep and isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None:
                    yield mutant(function, key, "row left out", "**{}", value)
        if not deep and isinstance(node, ast.Tuple | ast.Set) and len(node.elts) > 1:
            others = [*node.elts[1:], node.elts[0]]
            for one, two in zip(node.elts, others, strict=True):
                yield mutant(function, one, "row left out", source(two))
        below = deep or isinstance(node, ast.FunctionDef | ast.Lambda)
        inner = node.name if isinstance(node, ast.FunctionDef) else function
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.arguments) and not _is_type(node, child):
                yield from found(child, below, inner)

    every = {one.name: one for node in ast.parse(text).body for one in found(node, False, MODULE)}
    whole = text.encode()
    # A row left out of two that are alike is none.
    return [one for one in every.values() if one.instead.encode() != whole[one.begin : one.end]]


def functions_of(text: str) -> set[str]:
    """The names of all functions of a file, and MODULE."""
    return {MODULE} | {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}


def _is_type(node: ast.AST, child: ast.AST) -> bool:
    return (
        child is getattr(node, "annotation", None)
        or child is getattr(node, "returns", None)
        or isinstance(node, ast.Subscript)
    )
