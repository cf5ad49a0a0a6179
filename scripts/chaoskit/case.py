"""One case: a fault, a command, a seed; and how it ended, for the command, the kernel, the disk and the job."""

from __future__ import annotations

import itertools
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaoskit import kernel
from chaoskit.command import Ended, Plan, run
from chaoskit.job import Job
from chaoskit.scene import RECORD, Kind, Scene, arguments
from rankscope.observer.window.folder import is_window, read_window
from rankscope.observer.window.staging import PARTIAL
from rankscope.probes.errors import BadData

_BEFORE_S = 0.3  # of steps with the fault and without the command: some twenty
_GOLDEN = (5**0.5 - 1) / 2  # multiples of it, modulo 1, lie evenly however many there are
LONGEST_GAP_S = 1.0  # between two steps of a rank: loading on a busy host of two cores takes some tenths


@dataclass(frozen=True, slots=True)
class Result:
    """`slower`: the median step while the command ran, to that before. `gap_s`: the longest time without a step. `commit`: what ran;
    `source`: the fingerprint of its sources (sources.py). `queued_s`: of its seconds, those in the queue for a CPU, behind others."""

    key: str
    outcome: str
    code: int
    seconds: float
    slower: float
    gap_s: float
    said: str
    problems: tuple[str, ...]
    commit: str = ""
    source: str = ""
    queued_s: float = 0.0


def key_of(kind: Kind, turn: int, seed: int) -> str:
    """Kind, command and seed; a kind may have a command twice."""
    return f"{kind.name} {kind.commands[turn]}-{turn} {seed}"


def judge(kind: Kind, turn: int, seed: int, job: Job, window_s: float, running_s: float) -> Result:
    """Do it, and undo it. `running_s`: how long the command takes without a fault. Impossible where this host cannot have the fault."""
    key = key_of(kind, turn, seed)
    before = kernel.held()
    with _folder() as folder:
        moment = ((seed * len(kind.commands) + turn) * _GOLDEN) % 1.0
        scene = Scene(job, folder, random.Random(key), window_s, running_s, moment)
        try:
            with kind.hurt(scene) as plan:
                quiet_from = time.monotonic()
                time.sleep(_BEFORE_S)
                own = folder / "own"
                own.mkdir()
                plan.environment["TMPDIR"] = str(own)
                began = time.monotonic()
                pids = (*job.pids, *plan.pids)
                ended = run(arguments(kind.commands[turn], plan.place, window_s, pids), plan, window_s)
                until = time.monotonic()
                left = [
                    one
                    for one in kernel.left(before, ended.session)
                    if not (ended.killed and one.startswith("control"))
                ]
                problems = [*ended.problems(window_s), *_left_on_disk(plan.place, own, ended)]
                if ended.killed and kind.commands[turn] == RECORD:
                    problems += _next_one(plan.place, window_s, job)
        except AssertionError as error:
            problems += [str(error)]
        problems += [f"in the kernel: {', '.join(left[:4])}"] if left else []
    slower, gap = _steps(job, quiet_from, began, until)
    problems += ["a rank ended"] if not job.alive() else [f"{gap:.1f} s without a step"] if gap > LONGEST_GAP_S else []
    return Result(
        key, ended.outcome, ended.code, round(ended.seconds, 2), round(slower, 3), round(gap, 3), ended.last_words[:160], tuple(problems),
        queued_s=round(ended.queued_s, 2),
    )  # fmt: skip


@contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rankscope-chaos-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _left_on_disk(place: Path, own: Path, ended: Ended) -> list[str]:
    """Windows are whole or absent, and nothing is left in the folder for temporary files; what was killed may leave its half."""
    found = [f"left in TMPDIR: {path.name}" for path in own.iterdir()] if not ended.killed else []
    for out in (place / "out", place / "history/windows"):
        if out.is_symlink() or not out.is_dir():
            continue
        for path in out.iterdir():
            if path.name.startswith(PARTIAL):
                found += [] if ended.killed else [f"left half-written: {path.name}"]
            elif is_window(path):
                try:
                    read_window(path)
                except BadData as error:
                    found.append(str(error)[:100])
            else:
                found.append(f"neither a window nor a half: {path.name}")
    return found


def _next_one(place: Path, window_s: float, job: Job) -> list[str]:
    """What a killed writer left, the next one removes."""
    if not (place / "out").is_dir() or not any(path.name.startswith(PARTIAL) for path in (place / "out").iterdir()):
        return []
    ended = run(arguments(RECORD, place, window_s, job.pids), Plan(place), window_s)
    left = [path.name for path in (place / "out").iterdir() if path.name.startswith(PARTIAL)]
    failed = [f"the next one ended with {ended.code}"] if ended.code else []
    return [*failed, *ended.problems(window_s), *(f"the next one left {name}" for name in left)]


def _steps(job: Job, quiet_from: float, began: float, until: float) -> tuple[float, float]:
    """How much slower the job stepped, and the longest time without a step, of all ranks."""
    slower, gap = 0.0, 0.0
    for rank in range(len(job.ranks)):
        times = job.steps(rank)
        before = [b - a for a, b in itertools.pairwise(times) if quiet_from <= b < began]
        during = [b - a for a, b in itertools.pairwise(times) if began <= b <= until]
        if before and during:
            slower = max(slower, statistics.median(during) / statistics.median(before))
        gap = max([gap, *during, until - times[-1] if times else 0.0])
    return slower, gap
