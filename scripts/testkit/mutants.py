"""Mutants of the rooms that security rests on: one thing broken at a time in a copy, and the tests of that room, which must notice.

  scripts/mutants confine            all of a room; --sample 20: so many, spread over it; --only TEXT: those whose name holds it

A mutant: a condition turned round, a statement that does something left out, a row of a table left out. Those that no test notices
are named, and end it with 1. Half an hour for confine, an hour for apart, as much for sweep.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_PACKAGES = ("probes", "observer", "unwinder", "diagnose")
_PYTEST = str(
    Path(pytest.__file__).with_name("__main__.py")
)  # by its file: `-m` also looks into the folder that we are in
_LONGEST_S = 240  # a mutant that hangs is noticed
_APART = [
    f"tests/unit/observer/test_{one}.py" for one in ("hands_nothing_over", "writes_nothing", "apart_limits", "apart")
]
# By room the files that are mutated, and the tests that are to notice, the quickest first.
ROOMS: dict[str, tuple[str, list[str]]] = {
    "confine": (
        "probes/confine/*.py",
        ["tests/unit/probes/test_confined.py", *_APART, "tests/kernel/test_opens_gpus.py"],
    ),
    "apart": (
        "observer/apart/*.py",
        [
            *_APART,
            "tests/unit/observer/test_look.py",
            "tests/unit/observer/test_hostile_requests.py",
            "tests/unit/observer/test_border.py",
        ],
    ),
    "sweep": ("diagnose/sweep/**/*.py", ["tests/unit/sweep"]),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """`begin` to `end` of a file's text is replaced."""

    file: str
    line: int
    what: str
    begin: int
    end: int
    instead: str

    @property
    def name(self) -> str:
        """Names it: file, line and what became of it."""
        return f"{self.file}:{self.line} {self.what}"


def mutants_of(file: str, text: str) -> list[Mutant]:
    """All of one file, from its top down."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def mutant(node: ast.expr | ast.stmt, what: str, instead: str, end: ast.expr | None = None) -> Mutant:
        last = end or node
        begin, until = (
            starts[node.lineno - 1] + node.col_offset,
            starts[(last.end_lineno or 0) - 1] + (last.end_col_offset or 0),
        )
        said = " ".join(text.encode()[begin:until].decode().split())
        return Mutant(file, node.lineno, f"{what}: {said[:70]}", begin, until, instead)

    def source(node: ast.expr) -> str:
        return ast.get_source_segment(text, node) or ""

    def found(node: ast.AST, deep: bool) -> Iterator[Mutant]:
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield mutant(node.test, "turned round", f"(not ({source(node.test)}))")
        if (deep and isinstance(node, ast.Raise)) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            yield mutant(node, "left out", "pass")
        if not deep and isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if key is not None:
                    yield mutant(key, "row left out", "**{}", value)
        if not deep and isinstance(node, ast.Tuple | ast.Set) and len(node.elts) > 1:
            others = [*node.elts[1:], node.elts[0]]
            yield from (mutant(one, "row left out", source(two)) for one, two in zip(node.elts, others, strict=True))
        below = deep or isinstance(node, ast.FunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.arguments) and not _is_type(node, child):
                yield from found(child, below)

    whole = {one.name: one for node in ast.parse(text).body for one in found(node, False)}
    return list(whole.values())


def _is_type(node: ast.AST, child: ast.AST) -> bool:
    return (
        child is getattr(node, "annotation", None)
        or child is getattr(node, "returns", None)
        or isinstance(node, ast.Subscript)
    )


def copy_to(folder: Path) -> dict[str, str]:
    """The clone as it is, without its .venv, and the environment in which its packages are those that are imported."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=REPOSITORY, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    (folder / ".imported/rankscope").mkdir(parents=True)
    for package in _PACKAGES:
        (folder / ".imported/rankscope" / package).symlink_to(folder / package)
    return os.environ | {"PYTHONPATH": str(folder / ".imported"), "PYTHONDONTWRITEBYTECODE": "1"}


def notices(folder: Path, environment: dict[str, str], tests: list[str]) -> bool:
    """Whether a test fails, or does not end."""
    command = [sys.executable, _PYTEST, "-q", "-x", "-p", "no:cacheprovider", "--reruns", "0", *tests]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:
        try:
            return running.wait(_LONGEST_S) != 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            if running.poll() is None:
                os.killpg(running.pid, 9)


def survivors(room: str, sample: int = 0, only: str = "") -> list[str]:
    """Those that the tests of a room do not notice. RuntimeError where they fail with nothing broken."""
    pattern, tests = ROOMS[room]
    files = [str(one.relative_to(REPOSITORY)) for one in sorted(REPOSITORY.glob(pattern))]
    chosen = [one for file in files for one in mutants_of(file, (REPOSITORY / file).read_text()) if only in one.name]
    if sample and len(chosen) > sample:
        chosen = [chosen[at * len(chosen) // sample] for at in range(sample)]
    lived = []
    with tempfile.TemporaryDirectory(prefix="rankscope-mutants-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        environment = copy_to(folder)
        if notices(folder, environment, tests):
            raise RuntimeError(f"the tests of {room} fail as it is")
        for one in chosen:
            whole = (REPOSITORY / one.file).read_bytes()
            (folder / one.file).write_bytes(whole[: one.begin] + one.instead.encode() + whole[one.end :])
            seen = notices(folder, environment, tests)
            (folder / one.file).write_bytes(whole)
            print(f"{'noticed ' if seen else 'SURVIVES'} {one.name}", flush=True)
            if not seen:
                lived.append(one.name)
    print(f"{room}: {len(chosen) - len(lived)} of {len(chosen)} were noticed", flush=True)
    return lived


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--sample", type=int, default=0, help="so many of a room, spread over it")
    parser.add_argument("--only", default="", help="those whose name holds this")
    asked = parser.parse_args()
    if unknown := set(asked.rooms) - set(ROOMS):
        parser.error(f"no such room: {', '.join(sorted(unknown))}")
    lived = [one for room in asked.rooms or ROOMS for one in survivors(room, asked.sample, asked.only)]
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
