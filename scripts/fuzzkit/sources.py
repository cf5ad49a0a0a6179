"""Which of our code a target runs, and its hash: a count of inputs is worth something for that code alone."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import multiprocessing
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from types import FrameType

from fuzzkit.reached import PACKAGE, Modules, Part, Reached
from fuzzkit.target import Target
from fuzzkit.targets import TARGETS


def called_by(target: Target, inputs: Sequence[bytes]) -> list[tuple[str, int]]:
    """Module and first line of all functions of ours that are called with these.

    In a process that has not run it before: what it keeps from earlier calls it does not call again.
    """
    found: set[tuple[str, int]] = set()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a module or a class begins
            return
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] == PACKAGE and frame.f_code.co_filename == frame.f_globals.get("__file__"):
            found.add((module, frame.f_code.co_firstlineno))

    sys.setprofile(called)
    try:
        for one in inputs:
            with contextlib.suppress(Exception):
                target.run(one)
    finally:
        sys.setprofile(None)
    return sorted(found)


@cache
def text_of(module: str) -> str | None:
    """Of a module of ours; None where there is none."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(found.origin).read_text(encoding="utf-8") if found and found.origin else None


def hash_of(parts: Sequence[Part]) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(f"{part.module}\0{part.name}\0{part.text}\0".encode())
    return whole.hexdigest()[:16]


def parts_of(names: Iterable[str]) -> dict[str, list[Part]]:
    """What each of some targets reaches. Each is run in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        called = dict(zip(wanted := list(names), pool.map(_called_by_seeds, wanted, chunksize=1), strict=True))
    modules = Modules(text_of)
    found: dict[str, list[Part]] = {}
    for name, lines in called.items():
        reached = Reached(modules)
        for module, line in lines:
            reached.add(module, line)
        found[name] = reached.parts
    return found


def sources_of(names: Iterable[str]) -> dict[str, str]:
    """The hashes of that."""
    return {name: hash_of(parts) for name, parts in parts_of(names).items()}


def _called_by_seeds(name: str) -> list[tuple[str, int]]:
    target = next(target for target in TARGETS if target.name == name)
    return called_by(target, target.all_seeds())
