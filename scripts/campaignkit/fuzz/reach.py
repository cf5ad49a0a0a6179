"""How much of a parser its inputs reach: lines of the functions that they enter."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from campaignkit.fuzz.forks import each_in_a_fork
from campaignkit.fuzz.targets import TARGETS
from campaignkit.reached import PACKAGE

_MOST_INPUTS = 2000  # of a corpus, the shortest; tracing takes some twenty times as long as the parser
BY_NAME = {target.name: target for target in TARGETS}


def lines_reached(
    run: Callable[[bytes], object], inputs: Sequence[bytes]
) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    """By file: lines that ran, and all lines of the functions that were entered."""
    ran: dict[CodeType, set[int]] = {}

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_globals.get("__name__", "").partition(".")[0] != PACKAGE:
            return None
        own = ran.setdefault(frame.f_code, set())
        if own >= _lines_of(frame.f_code):
            return None

        def line(inner: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                own.add(inner.f_lineno)
            return line

        return line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for one in inputs:
            with contextlib.suppress(Exception):
                run(one)
    finally:
        sys.settrace(before)
    reached: dict[str, set[int]] = {}
    every: dict[str, set[int]] = {}
    for code, own in ran.items():
        every.setdefault(code.co_filename, set()).update(_lines_of(code))
        reached.setdefault(code.co_filename, set()).update(own & _lines_of(code))
    return reached, every


def _lines_of(code: CodeType) -> frozenset[int]:
    """Lines that a function can run, without the one of its head."""
    return frozenset(line for _, _, line in code.co_lines() if line and line != code.co_firstlineno)


def counts(names: Sequence[str], state: Path) -> dict[str, tuple[int, int]]:
    """By target: lines reached by its seeds and corpus, and lines of the functions that these enter. Each in a process of its own."""
    return each_in_a_fork(partial(_count, state), names)


def _count(state: Path, name: str) -> tuple[int, int]:
    target = BY_NAME[name]
    kept = sorted((state / name / "corpus").glob("*"), key=lambda path: path.stat().st_size)[:_MOST_INPUTS]
    reached, every = lines_reached(target.run, [*target.all_seeds(), *(path.read_bytes() for path in kept)])
    return sum(map(len, reached.values())), sum(map(len, every.values()))
