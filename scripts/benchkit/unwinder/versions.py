"""The walk on every CPython of this machine, all of them observed at once. A row for each; py-spy beside it."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchkit.unwinder import observers
from benchkit.unwinder.observers import Seen
from benchkit.unwinder.processes import Workload, workloads
from benchkit.unwinder.profile import distance, expected_noise, only
from benchkit.unwinder.workload import DEPTH, FUNCTIONS
from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, LabError
from rankscope.probes.errors import RankscopeError
from rankscope.unwinder.interpreter.find import find_interpreter

OLDEST, NEWEST = (3, 8), (3, 14)
MOST_FAILED = 0.001
BEYOND = 0.01
_RATE_HZ = 499  # each version has only one process: a higher rate gives enough samples of it
_PYSPY_RATE_HZ = 99
_THREADS = 5
_BUSY = 0.7  # of all cores, together
_SURE = 0.99  # a row without any fault is called bad once in a hundred
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """One interpreter. Distances are to what the process measured of itself."""

    python: str
    version: str
    ok: int
    failed: int
    deep: int
    wrong_depth: int
    apart: float
    noise: float
    pyspy_apart: float
    pyspy_samples: int

    @property
    def green(self) -> bool:
        return (
            self.ok > 0
            and self.failed <= MOST_FAILED * (self.ok + self.failed)
            and self.deep > 0
            and self.wrong_depth <= max(1, 0.02 * self.deep)
            and self.apart <= self.noise + BEYOND
        )


def pythons() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(path, version) of the interpreters to observe and of those too old; each program once, whatever its names."""
    places = [sys.executable, "/usr/bin/python3"]
    places += [str(path / "bin/python") for path in sorted((Path.home() / ".pyenv/versions").glob("3.*"))]
    found: dict[Path, tuple[str, str]] = {}
    for place in places:
        said = _version(place)
        if said:
            found.setdefault(Path(place).resolve(), (place, said))
    ordered = sorted(found.values(), key=lambda one: _numbers(one[1]))
    return [one for one in ordered if _numbers(one[1])[:2] >= OLDEST], [
        one for one in ordered if _numbers(one[1])[:2] < OLDEST
    ]


def _version(place: str) -> str:
    try:
        said = subprocess.run([place, "--version"], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r"Python (\d+\.\d+\.\w+)", said.stdout)
    return match[1] if match else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", version)[:3])


def run(options: argparse.Namespace) -> int:
    """Print a row for each version; 0 when all are green."""
    known, old = pythons()
    busy = min(_BUSY * (os.cpu_count() or 1) / max(len(known), 1), 0.4)
    print(f"{len(known)} interpreters for {options.seconds:g} s, all at once …", file=sys.stderr)
    with workloads([place for place, _ in known], _THREADS, busy) as running:
        rows = _observe(known, running, options.seconds)
    print("\n".join(_lines(rows, [_refusal(*one) for one in old], options)))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) | {"green": row.green} for row in rows], indent=1))
    return 0 if rows and all(row.green for row in rows) else EXIT_NOT_GOOD_ENOUGH


def _observe(known: Sequence[tuple[str, str]], running: Sequence[Workload], seconds: float) -> list[Row]:
    pids = [workload.pid for workload in running]
    theirs: dict[int, Counter[str]] = {}
    complaint: list[str] = []

    def pyspy() -> None:
        try:
            theirs.update(observers.pyspy_reading(pids, seconds, _PYSPY_RATE_HZ)[1])
        except (LabError, RankscopeError) as error:
            complaint.append(str(error))

    before = [workload.spent_ns() for workload in running]
    _, seen = observers.ours(pids, seconds, _RATE_HZ)
    between = [workload.spent_ns() for workload in running]
    beside = threading.Thread(target=pyspy)
    beside.start()
    beside.join(seconds + _PATIENCE_S)
    after = [workload.spent_ns() for workload in running]
    for words in complaint:
        print(f"bench: {words}", file=sys.stderr)
    return [
        _row(place, version, [stack for stack in seen if stack.pid == pid], one, two, theirs.get(pid, Counter()))
        for (place, version), pid, one, two in zip(
            known, pids, _differences(before, between), _differences(between, after), strict=True
        )
    ]


def _differences(before: Sequence[Counter[str]], after: Sequence[Counter[str]]) -> list[Counter[str]]:
    return [late - early for early, late in zip(before, after, strict=True)]


def _row(
    place: str, version: str, seen: Sequence[Seen], truth: Counter[str], later: Counter[str], theirs: Counter[str]
) -> Row:
    counts: Counter[str] = Counter()
    deep = wrong_depth = 0
    for stack in seen:
        counts[stack.name] += stack.count
        if stack.name == "augment":
            right = stack.text.count("augment (") == DEPTH
            deep, wrong_depth = deep + right * stack.count, wrong_depth + (not right) * stack.count
    failed = counts.pop("", 0)
    return Row(
        place,
        version,
        counts.total(),
        failed,
        deep,
        wrong_depth,
        distance(only(counts, FUNCTIONS), truth),
        expected_noise(truth, only(counts, FUNCTIONS).total(), _SURE),
        distance(only(theirs, FUNCTIONS), later),
        theirs.total(),
    )


def _refusal(place: str, version: str) -> str:
    """What the unwinder says of an interpreter that is too old."""
    asleep = subprocess.Popen(
        [place, "-c", "print(1, flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert asleep.stdout is not None
        asleep.stdout.readline()
        try:
            find_interpreter(asleep.pid)
        except RankscopeError as error:
            return f"{version:<9} refused: {error}"[:80]
        return f"{version:<9} not refused, and not known"
    finally:
        asleep.kill()
        asleep.communicate()


def _lines(rows: Sequence[Row], refused: Sequence[str], options: argparse.Namespace) -> list[str]:
    lines = [
        f"one process for each version, {_THREADS} threads, {options.seconds:g} s at {_RATE_HZ} Hz (py-spy {_PYSPY_RATE_HZ} Hz)",
        f"deep: stacks of a recursion {DEPTH} deep that are that deep; apart: TVD to what the",
        f"process measured itself; noise: what a sound observer stays below ({100 * _SURE:.0f} %)",
        "",
        f"{'CPython':<9}{'ok':>7}{'failed':>8}{'deep':>7}{'not':>5}{'apart':>9}{'noise':>8}{'py-spy':>9}{'samples':>9}",
    ]
    for row in rows:
        lines.append(
            f"{row.version:<9}{row.ok:>7}{row.failed:>8}{row.deep:>7}{row.wrong_depth:>5}{row.apart:>9.4f}"
            f"{row.noise:>8.4f}{row.pyspy_apart:>9.4f}{row.pyspy_samples:>9}  {'ok' if row.green else 'MISSED'}"
        )
    lines += refused
    seen = {_numbers(row.version)[1] for row in rows}
    unseen = [f"3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1) if minor not in seen]
    if unseen:
        lines.append(f"not seen live, none on this machine: {', '.join(unseen)}")
    return lines
