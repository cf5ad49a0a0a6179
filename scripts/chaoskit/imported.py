"""Which files of ours a command is made of: what it imports, and what that imports, wherever it does. Pure but for reading them.

Imports in functions count as well, modules that are named in a text, and all of a package that is looked through (pkgutil): which of them
a run gets to is chance. So a file that runs is never missing; some that are here never run. The exceptions are functions of the command
line that are other commands' (they import their module `as command`), of which neither imports nor text count, and modules that the
caller leaves out: those that only an option asks for which is not given.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

PACKAGE = "rankscope"
ENTRY = "diagnose/cli/start.py"
_NONE_OF_IT = ("README.md", "py.typed")  # of what lies beside modules


def parts_of(command: str, left_out: Collection[str], repository: Path) -> dict[str, bytes]:
    """By path below the repository: each module without its comments and the content of each file that lies with them, as far as the
    command needs it.

    A file that is no module belongs to the nearest folder above it that has some (`*.bpf.c`, `page.html`).
    """
    parts: dict[str, bytes] = {}
    left = [repository / ENTRY]
    while left:
        path = left.pop()
        name = path.relative_to(repository).as_posix()
        if name in parts:
            continue
        parts[name], named = _read(path.read_text(encoding="utf-8"), command)
        for module, whole in named:
            if module not in left_out:
                left += _files(module, repository, whole)
    for folder in sorted({(repository / name).parent for name in parts}):
        for path in _beside(folder):
            parts[path.relative_to(repository).as_posix()] = path.read_bytes()
    return parts


@cache  # whether anything was changed is asked after each case, and little was
def _read(text: str, command: str) -> tuple[bytes, tuple[tuple[str, bool], ...]]:
    """Of a module what is not other commands', and the names in it that may be modules, each with whether such a package
    is looked through."""
    tree = ast.parse(text)
    others = [node for node in tree.body if isinstance(node, ast.FunctionDef) and _is_of_another(node, command)]
    tree.body = [node for node in tree.body if node not in others and not _is_for_types(node)]
    looked_through = {alias for alias in _members(tree) if "pkgutil" in text}
    return plain(_without(text, others)), tuple(
        (module, module in looked_through) for module in dict.fromkeys(_named(tree))
    )


def _is_of_another(function: ast.FunctionDef, command: str) -> bool:
    """Whether it is the way into a command, and not into this one."""
    return function.name != command and any(
        alias.asname == "command" for node in ast.walk(function) if isinstance(node, ast.ImportFrom) for alias in node.names
    )  # fmt: skip


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def module_of(name: str) -> str:
    """The dotted name of a module by its path below the repository."""
    return ".".join((PACKAGE, *Path(name).with_suffix("").parts)).removesuffix(".__init__")


def _without(text: str, functions: list[ast.FunctionDef]) -> str:
    lines = text.splitlines(keepends=True)
    for function in functions:
        first = min([function.lineno, *(node.lineno for node in function.decorator_list)])
        lines[first - 1 : function.end_lineno] = [""] * ((function.end_lineno or first) - first + 1)
    return "".join(lines)


def plain(text: str) -> bytes:
    """A module without comments and empty lines, which change nothing that runs; those of a text in it stay."""
    lines: list[str | None] = [*text.split("\n")]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            continue
        row, column = token.start
        line = (lines[row - 1] or "")[:column].rstrip()  # what stands before it
        lines[row - 1] = line or None
    return "\n".join(line for line in lines if line is not None).encode()


def _named(tree: ast.Module) -> Iterator[str]:
    """Dotted names that may be modules of ours."""
    yield from _members(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if node.level or not node.module:
                raise ValueError("a relative import: imported.py does not follow it")
            yield node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _members(tree: ast.Module) -> Iterator[str]:
    """What is imported by its whole name: `import a.b`, and `from a import b`, where that is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _files(module: str, repository: Path, whole: bool) -> Iterator[Path]:
    """The file of a module of ours, and those of the packages that it is in; none where it is something else. `whole`: of a package all
    that is in it and below it."""
    package, *inner = module.split(".")
    if package != PACKAGE or not all(part.isidentifier() for part in inner):
        return
    place = repository.joinpath(*inner)
    if place.with_suffix(".py").is_file():
        yield place.with_suffix(".py")
    elif not (place / "__init__.py").is_file():
        return
    elif whole:
        yield from place.rglob("*.py")
    yield from (above for folder in (place, *place.parents) if (above := folder / "__init__.py").is_file())


def _beside(folder: Path) -> Iterator[Path]:
    """What lies in a folder and is no module, and in the folders below it that have none."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not any(path.glob("*.py")) and path.name != "__pycache__":
            yield from _beside(path)
        elif path.is_file() and path.suffix != ".py" and path.name not in _NONE_OF_IT:
            yield path
