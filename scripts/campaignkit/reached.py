"""What code of ours some functions reach: by the names in it, statement by statement. Pure but for `read`.

Of a module counts what is reached of it (a function, a class, a constant), and what runs when it is imported. Names in annotations are
followed like others, so whose methods are called is known. Names are what is looked at, not what they mean where they stand: a local
variable that is called as a constant is takes that constant along. What is asked for by a text (`getattr`) is not seen.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

PACKAGE = "rankscope"
Read = Callable[[str], "str | None"]  # the text of a module by its dotted name; None where there is none
Dotted = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A statement at the top of a module, by the names that it defines. text: without comments and docstrings."""

    module: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class _Statement:
    """first, last: lines. uses: names in it, as far as they are dotted. imports: what a name means that is imported in it.

    is_command: whether it is the way into a command of the product. for_types: whether only type checkers see it.
    """

    part: Part
    first: int
    last: int
    uses: tuple[Dotted, ...]
    imports: Mapping[str, Dotted]
    is_command: bool = False
    for_types: bool = False


@dataclass(slots=True)
class _Module:
    """loose: what does something when the module is imported, beside giving names a meaning."""

    every: list[_Statement] = field(default_factory=list)
    named: dict[str, list[_Statement]] = field(default_factory=dict)
    loose: list[_Statement] = field(default_factory=list)


class Modules:
    """Each is read and parsed once."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[str, _Module | None] = {}

    def get(self, name: str) -> _Module | None:
        if name not in self._known:
            text = self._read(name) if name.partition(".")[0] == PACKAGE else None
            self._known[name] = None if text is None else _parsed(name, text)
        return self._known[name]

    def longest(self, dotted: Dotted) -> str:
        """The module that a dotted name is of, or leads to: '' where there is none."""
        while dotted and self.get(".".join(dotted)) is None:
            dotted = dotted[:-1]
        return ".".join(dotted)


def command_parts(
    command: str, entry: str, modules: Modules, inside: Callable[[str], list[str]], left_out: Collection[str] = ()
) -> dict[str, list[Part]]:
    """By module all that a command may run: what `entry` may import, in functions too, and all that this may import.

    Ways into other commands count as absent, and so do the modules of `left_out`. Texts that name a module count as imports; of a package
    that is looked through (pkgutil), all that is in it and below it (`inside`, dotted names).
    """
    found: dict[str, list[Part]] = {}
    left = [entry]
    while left:
        module = left.pop()
        known = None if module in found or module in left_out else modules.get(module)
        if known is None:
            continue
        statements = [
            one for one in known.every if not one.for_types and (not one.is_command or one.part.name == command)
        ]
        found[module] = [one.part for one in statements]
        meant = [one for statement in statements for one in statement.imports.values()]
        meant += [use for statement in statements for use in statement.uses if use[0] == PACKAGE]
        left += [modules.longest(one) for one in meant]
        left += [module.rpartition(".")[0]]
        if "pkgutil" in known.named:
            left += [f"{package}.{name}" for package in map(".".join, meant) for name in inside(package)]
    return found


class Reached:
    """What is reached from lines of modules (`add`), all together (`parts`)."""

    def __init__(self, modules: Modules) -> None:
        self._modules = modules
        self._found: set[Part] = set()
        self.imported: set[str] = set()
        self._left: list[_Statement] = []

    @property
    def parts(self) -> list[Part]:
        return sorted(self._found, key=lambda part: (part.module, part.name, part.text))

    def add(self, module: str, line: int) -> None:
        """Add the statement of a module at that line, and what it reaches."""
        known = self._modules.get(module)
        for statement in known.every if known else ():
            if statement.first <= line <= statement.last:
                self._take(statement)
        while self._left:
            statement = self._left.pop()
            for use in statement.uses:
                if use[0] in statement.imports:
                    self._absolute((*statement.imports[use[0]], *use[1:]))
                elif use[0] == PACKAGE:
                    self._absolute(use)
                else:
                    self._named(statement.part.module, use)

    def _take(self, statement: _Statement) -> None:
        if statement.part not in self._found:
            self._found.add(statement.part)
            self._left.append(statement)
            self._import(statement.part.module)

    def _import(self, module: str) -> None:
        """With the packages that it is in."""
        while module and module not in self.imported:
            known = self._modules.get(module)
            if known is not None:
                self.imported.add(module)
                for statement in known.loose:
                    self._take(statement)
            module = module.rpartition(".")[0]

    def _named(self, module: str, use: Dotted) -> None:
        """By a name at the top of that module."""
        known = self._modules.get(module)
        for statement in known.named.get(use[0], ()) if known else ():
            self._take(statement)
            if use[0] in statement.imports:
                self._absolute((*statement.imports[use[0]], *use[1:]))

    def _absolute(self, dotted: Dotted) -> None:
        """By its whole name: something in a module, or the module itself, from which anything may be taken then."""
        if dotted[0] != PACKAGE:
            return
        module, rest = dotted[0], dotted[1:]
        while rest and (deeper := f"{module}.{rest[0]}") and (module == PACKAGE or self._modules.get(deeper)):
            module, rest = deeper, rest[1:]
        self._import(module)
        if rest:
            self._named(module, rest)
        else:
            known = self._modules.get(module)
            for statement in known.every if known else ():
                self._take(statement)


def _parsed(name: str, text: str) -> _Module:
    found = _Module()
    plain = _Plain(text)
    for node, for_types in _flat(ast.parse(text).body):
        imports = dict(_imports(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            for bound, meant in imports.items():  # each alone: what else is imported beside it says nothing of it
                part = Part(name, bound, f"import {'.'.join(meant)}")
                _put(
                    found,
                    (bound,),
                    _Statement(part, node.lineno, node.end_lineno or 0, (), {bound: meant}, for_types=for_types),
                )
            continue
        first, last = min([node.lineno, *(one.lineno for one in _decorators(node))]), node.end_lineno or 0
        names = tuple(dict.fromkeys(_bound(node)))
        part = Part(name, " ".join(names), plain.lines(node, first, last))
        statement = _Statement(
            part, first, last, tuple(dict.fromkeys(_used(node))), imports, _is_command(node), for_types
        )
        _put(found, names, statement)
        if _is_loose(node, found):
            found.loose.append(statement)
    return found


def _put(found: _Module, names: tuple[str, ...], statement: _Statement) -> None:
    found.every.append(statement)
    for name in names:
        found.named.setdefault(name, []).append(statement)


def _flat(body: list[ast.stmt], for_types: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Statements without docstrings, each with whether it is there for types alone."""
    for node in body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from _flat(node.body, for_types=True)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield node, for_types


def _decorators(node: ast.stmt) -> list[ast.expr]:
    return node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []


def _is_loose(node: ast.stmt, found: _Module) -> bool:
    """Of what is decorated: where a function of ours does it, which may keep it somewhere."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        by = {use[0] for decorator in _decorators(node) for use in _used(decorator)}
        known = [statement for name in by for statement in found.named.get(name, ())]
        return any(statement.imports.get(name, (PACKAGE,))[0] == PACKAGE for statement in known for name in by)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return not targets or not all(isinstance(target, ast.Name | ast.Tuple) for target in targets)


def _bound(node: ast.stmt) -> Iterator[str]:
    """Names that a statement at the top gives a meaning."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    yield from (name for name, _ in _imports(node))
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id
        elif isinstance(one, ast.FunctionDef | ast.ClassDef):
            yield one.name


def _imports(node: ast.stmt) -> Iterator[tuple[str, Dotted]]:
    """What names mean that are imported somewhere in it, as dotted names from the top."""
    for one in ast.walk(node):
        for alias in one.names if isinstance(one, ast.Import | ast.ImportFrom) else ():
            if isinstance(one, ast.ImportFrom):
                if one.level or not one.module or alias.name == "*":
                    raise ValueError("a relative import, or one of everything: reached.py does not follow it")
                yield alias.asname or alias.name, (*one.module.split("."), alias.name)
            elif alias.asname:
                yield alias.asname, tuple(alias.name.split("."))
            else:
                yield alias.name.partition(".")[0], (alias.name.partition(".")[0],)


def _used(node: ast.AST) -> Iterator[Dotted]:
    """Names, and texts that may be those of modules."""
    chain: list[str] = []
    while isinstance(node, ast.Attribute):
        chain.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        yield (node.id, *reversed(chain))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{PACKAGE}."):
        yield tuple(node.value.split("."))
    for child in ast.iter_child_nodes(node):
        yield from _used(child)


class _Plain:
    """Lines of a text without comments."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                self._lines[row - 1] = self._lines[row - 1][:column].rstrip()

    def lines(self, node: ast.AST, first: int, last: int) -> str:
        """Of a statement, without its docstrings and empty lines."""
        left_out: set[int] = set()
        for doc in map(_docstring, ast.walk(node)):
            if doc and not self._lines[doc.lineno - 1][: doc.col_offset].strip():  # the line is the docstring's alone
                left_out |= set(range(doc.lineno, (doc.end_lineno or 0) + 1))
        kept = (self._lines[row - 1] for row in range(first, last + 1) if row not in left_out)
        return "\n".join(line for line in kept if line.strip())


def plain(text: str) -> str:
    """A module's text without comments, docstrings and empty lines."""
    return _Plain(text).lines(ast.parse(text), 1, len(text.splitlines()))


def _is_command(node: ast.stmt) -> bool:
    """Whether a function is the way into a command: it imports that command's module `as command`."""
    return isinstance(node, ast.FunctionDef) and any(
        alias.asname == "command" for one in ast.walk(node) if isinstance(one, ast.ImportFrom) for alias in one.names
    )


def _docstring(node: ast.AST) -> ast.stmt | None:
    if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            return first
    return None
