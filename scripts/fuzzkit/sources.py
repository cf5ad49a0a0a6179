"""Which of our source files a target runs, and their hash: a count of inputs is worth something for that code alone."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from fuzzkit.target import Target
from fuzzkit.targets import TARGETS

_PACKAGE = "rankscope"


def files_of(target: Target) -> list[Path]:
    """The files of the package in which something is called with the target's own seeds.

    In a process that has not run it before: what it keeps from earlier calls it does not call again.
    """
    found: set[str] = set()

    def called(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
            found.add(frame.f_code.co_filename)

    seeds = target.all_seeds()
    sys.setprofile(called)
    try:
        for seed in seeds:
            with contextlib.suppress(Exception):
                target.run(seed)
    finally:
        sys.setprofile(None)
    return sorted(path for name in found if (path := Path(name)).is_file())  # no "<string>" of a dataclass


def source_of(target: Target) -> str:
    """The hash of those files."""
    whole = hashlib.sha256()
    for path in files_of(target):
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16]


def sources_of(names: Sequence[str]) -> dict[str, str]:
    """The same of many, each in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        return dict(zip(names, pool.map(_source_named, names, chunksize=1), strict=True))


def _source_named(name: str) -> str:
    return source_of(next(target for target in TARGETS if target.name == name))
