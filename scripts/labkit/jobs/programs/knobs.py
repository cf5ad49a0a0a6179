"""What ties an ordinary training script to the lab: the lines it prints, and the file that says which function is slow.

    OUT/rank<N>.lines    one line per step of the job's own loop, as the job itself would print it (`COLUMNS`)
    OUT/rank<N>.control  {"function": …, "manner": …, "seconds": …}: each call of that function takes so much longer

`export` is a function of no script: once it is ordered to be slow, a thread of the rank calls it after each step.

A script calls `begin` once it knows its rank, `step` at the end of each iteration, and `slow["name"]()` in its functions.
Loader workers follow its file as well: those that are forked from the rank, and those that are started anew by its environment.
"""

from __future__ import annotations

import functools
import itertools
import json
import operator
import os
import re
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

COLUMNS = ("rank", "step", "end", "wall", "seconds", "pid", "born")
CONTROL = "RSLAB_CONTROL"  # in the environment of what a rank starts: its file
# How often a process looks at its file at most: a worker calls a slow function once per sample.
LOOK_S = 0.02
# A sleep takes some 60 µs longer than it is told to: shorter ones than this are taken together, at every so many calls.
LEAST_SLEEP_S = 0.002
TEXT = "the quick brown fox jumps over the lazy dog "


class Slow:
    """name → what the fault adds to a call of that function: a C callable, so that no Python frame stands below it."""

    def __init__(self) -> None:
        self.control = Path(os.environ[CONTROL]) if CONTROL in os.environ else None
        self._seen = 0
        self._looked = 0.0
        self._function = ""
        self._added: Callable[[], object] = bool

    def __getitem__(self, function: str) -> Callable[[], object]:
        if time.monotonic() - self._looked > LOOK_S:
            self.look()
        return self._added if function == self._function else bool

    def look(self) -> None:
        self._looked = time.monotonic()
        if self.control is None:
            return
        try:
            changed = self.control.stat().st_mtime_ns
        except FileNotFoundError:
            changed = 0
        if changed != self._seen:
            self._seen = changed
            orders = json.loads(self.control.read_text()) if changed else {}
            self._function = orders.get("function", "")
            if self._function == "export" and _lines is not None and _lines.pid == os.getpid():
                _export()  # not in a loader worker, which is forked with what the rank has begun
            if self._function:
                self._added = slowness(orders["manner"], orders["seconds"])


slow = Slow()


class Exporter(threading.Thread):
    """What writes the figures of each step for somebody who watches, beside the training."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._wanted = threading.Event()

    def after_step(self) -> None:
        self._wanted.set()

    def run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            self.export()

    def export(self) -> None:
        slow["export"]()


_exporter: Exporter | None = None


def _export() -> None:
    """From now on. Made here and not before: a thread that was made before a fork is taken for one that has ended."""
    global _exporter  # noqa: PLW0603 (one job per process)
    if _exporter is None:
        _exporter = Exporter()
        _exporter.start()


def slowness(manner: str, seconds: float) -> Callable[[], object]:
    """`sleep`; `busy`: computing in C below the caller; `compress`: the same, without the GIL; `library`: computing in a Python function of
    the standard library."""
    if manner == "sleep":
        return _sleep(seconds)
    make = {"busy": _busy, "compress": _compress}.get(manner, _library)
    size = 64
    while (taken := min(_cpu_s(make(size)) for _ in range(2))) < 0.004:
        size *= 2
    return make(max(1, int(size * seconds / taken)))


def _sleep(seconds: float) -> Callable[[], object]:
    calls = max(1, round(LEAST_SLEEP_S / seconds))
    turns = itertools.cycle([functools.partial(time.sleep, calls * seconds)] + (calls - 1) * [bool])
    return functools.partial(next, map(operator.methodcaller("__call__"), turns))


def _busy(size: int) -> Callable[[], object]:
    return functools.partial(sum, range(size * 100))


def _compress(size: int) -> Callable[[], object]:
    return functools.partial(zlib.compress, (TEXT * (size // 8 + 1))[: size * 6].encode() * 16, 9)


def _library(size: int) -> Callable[[], object]:
    return functools.partial(re.sub, r"(\w+) (\w+)", r"\2 \1", (TEXT * (size // 8 + 1))[: size * 6])


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


class _Lines:
    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.pid = os.getpid()
        # When this process started, clock ticks since boot: with the pid it is unique, in whatever namespace the pid is.
        self.born = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        self.last = time.monotonic()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.file = os.open(folder / f"rank{rank}.lines", flags, 0o600)

    def write(self, step: int) -> None:
        now, wall = time.monotonic(), time.time()
        line = f"{self.rank} {step} {now:.6f} {wall:.6f} {now - self.last:.6f} {self.pid} {self.born}\n"
        os.write(self.file, line.encode())
        self.last = now


_lines: _Lines | None = None


def follow(out: str | Path, rank: int) -> None:
    """Call it before loader workers are started, where that is before the loop: they follow what they are started with."""
    slow.control = Path(out) / f"rank{rank}.control"
    os.environ[CONTROL] = str(slow.control)


def begin(out: str | Path, rank: int) -> None:
    """Call it when the rank is known, just before the loop."""
    global _lines  # noqa: PLW0603 (one job per process)
    follow(out, rank)
    _lines = _Lines(Path(out), rank)


def step(number: int) -> None:
    """The end of an iteration of the job's loop."""
    assert _lines is not None
    _lines.write(number)
    slow.look()
    if _exporter is not None:
        _exporter.after_step()
