"""Digest of the sources that a result rests on: a result counts only while those sources are what they were.

A fuzz target rests on what its seeds call and on what that reaches. A case of a command rests on every module that the command may
import, on the C and data files beside those, and on the part of this kit that makes and judges the case.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import FrameType

from campaignkit.reached import PACKAGE, Modules, Part, Reached, command_parts, plain
from labkit.machine.shell import REPOSITORY

ENTRY = f"{PACKAGE}.diagnose.face.cli.start"
# Modules that only an option imports which no case gives: --history of record, --html, hosts side by side.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "record": (f"{PACKAGE}.diagnose.face.cli.keep_history", f"{PACKAGE}.diagnose.infer.past.history"),
    "diagnose": (f"{PACKAGE}.diagnose.face.report.build", f"{PACKAGE}.diagnose.face.report.render"),
    "sweep": (f"{PACKAGE}.diagnose.sweep.peers",),
}
# A command that runs with this prints what it imports; `missing` reads that.
PRINTS_IMPORTS = {"PYTHONPROFILEIMPORTTIME": "1"}
_PRINTED = re.compile(r"^import time:[^|]*\|[^|]*\|\s*(" + PACKAGE + r"(?:\.\w+)*)$", re.MULTILINE)
_NO_SOURCE = ("README.md", "py.typed")
_MADE = ("__pycache__", "objects")  # from sources that are counted; git ignores them, and a fresh clone has none
_OF_THE_KIT = (".py", ".c")


@cache
def text_of(module: str) -> str | None:
    """Return the text of a module of the product, or None where there is no such module."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(found.origin).read_text(encoding="utf-8") if found and found.origin else None


def calls_of(run: Callable[[bytes], object], inputs: Sequence[bytes]) -> list[tuple[str, int]]:
    """Module and first line of each function of the product that these inputs call.

    To be asked in a process that has not run it before: a cached call is not made again.
    """
    found: set[tuple[str, int]] = set()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or class
            return
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] == PACKAGE and frame.f_code.co_filename == frame.f_globals.get("__file__"):
            found.add((module, frame.f_code.co_firstlineno))

    sys.setprofile(called)
    try:
        for one in inputs:
            with contextlib.suppress(Exception):
                run(one)
    finally:
        sys.setprofile(None)
    return sorted(found)


def parts_reached(calls: Sequence[tuple[str, int]], modules: Modules | None = None) -> list[Part]:
    """Return all statements that these functions reach."""
    reached = Reached(modules or Modules(text_of))
    for module, line in calls:
        reached.add(module, line)
    return reached.parts


def digest(parts: Sequence[Part], files: Sequence[Path] = (), root: Path = REPOSITORY) -> str:
    """Hash statements and files by name and content: 16 hexadecimal digits."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(f"{part.module}\0{part.name}\0{part.text}\0".encode())
    for path in files:
        content = plain(path.read_text(encoding="utf-8")).encode() if path.suffix == ".py" else path.read_bytes()
        whole.update(f"{path.relative_to(root).as_posix()}\0".encode() + hashlib.sha256(content).digest())
    return whole.hexdigest()[:16]


def of_command(command: str, kit: Collection[Path] = (), root: Path = REPOSITORY) -> str:
    """Digest of all that a command of the product is made of, and of the files of `kit`. `root`: the clone that is read."""
    found = parts_of(command, root)
    folders = {_place(module, root).parent for module in found}
    files = {path for folder in folders for path in _data_of(folder)}
    return digest([part for module in sorted(found) for part in found[module]], sorted({*files, *kit}), root)


@cache
def parts_of(command: str, root: Path = REPOSITORY) -> dict[str, list[Part]]:
    """By module the statements that a command may run."""

    def inside(package: str) -> list[str]:
        folder = _place(package, root).parent
        there = folder.iterdir() if folder.is_dir() else ()
        found = (path for one in there if not one.name.startswith(".") for path in _modules_in(one))
        return sorted(".".join(path.relative_to(folder).with_suffix("").parts) for path in found)

    return command_parts(command, ENTRY, _modules(root), inside, LEFT_OUT.get(command, ()))


def missing(command: str, complained: str) -> list[str]:
    """Modules that a run imported (`PRINTS_IMPORTS`) and its digest does not hold: there must be none."""
    return sorted(set(_PRINTED.findall(complained)) - parts_of(command).keys() - {PACKAGE})


def kit_files(place: str) -> list[Path]:
    """Programs of this kit below a folder of it."""
    return sorted(path for path in (Path(__file__).parent / place).rglob("*") if path.suffix in _OF_THE_KIT)


def commit() -> str:
    """Commit of this clone, with a + where a file differs from it; '' outside of a clone."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )  # fmt: skip
    return said.stdout.strip()


@cache
def _modules(root: Path) -> Modules:
    def read(module: str) -> str | None:
        path = _place(module, root)
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return Modules(read)


def _place(module: str, root: Path) -> Path:
    """The file of a module, whether it is there or not."""
    place = root.joinpath(*module.split(".")[1:])
    package = place / "__init__.py"
    return package if package.is_file() else place.with_suffix(".py") if place != root else package


def _modules_in(place: Path) -> Iterator[Path]:
    """A module, or all modules of a folder; what git does not know (.venv) is in folders with a point."""
    if place.suffix == ".py":
        yield place
    elif place.is_dir():
        yield from place.rglob("*.py")


def _data_of(folder: Path) -> Iterator[Path]:
    """Files of a folder that are no modules, and those of the folders below it that hold no module."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in _MADE and not any(path.glob("*.py")):
            yield from _data_of(path)
        elif path.is_file() and path.suffix != ".py" and path.name not in _NO_SOURCE:
            yield path
