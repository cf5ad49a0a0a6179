"""One case: a fault, a command, a seed; and how it ended, for the command, the kernel, the disk and the job."""

from __future__ import annotations

import itertools
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from campaignkit.chaos import kernel, leftovers
from campaignkit.chaos.command import Ended, Plan, run
from campaignkit.chaos.job import Job
from campaignkit.chaos.scene import RECORD, WATCH, WATCHED_S, Kind, Scene, arguments
from labkit.machine.shell import LabError
from rankscope.observer.window.folder import is_window
from rankscope.observer.window.staging import PARTIAL

# Of steps with the fault and without the command: so long, and so many of each rank.
_BEFORE_S, _BEFORE_STEPS, _BEFORE_MOST_S = 0.3, 10, 10.0
_GOLDEN = (5**0.5 - 1) / 2  # multiples of it, modulo 1, lie evenly however many there are
# Between two steps of a rank: of 590 cases on two cores, beside another run of them, the longest was 0.36 s, below full maps.
LONGEST_GAP_S = 0.75
# The median step while the command ran, to that before it. Of those cases 0.3 s of steps before a command say that little: beside other
# work it was up to 1.63, 1.29 without a fault. A job that takes turns with somebody on each of its cores is at 2. What is less than that
# shows in the median over a kind's cases (`kinds_slowed`).
MOST_SLOWER = 2.0


_Seen = tuple[
    Ended, float, float, list[str]
]  # how it ended, how much slower the steps were, the longest gap, what is wrong


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended. `slower`: the median step while the command ran, to that before. `gap_s`: the longest time without a step.
    `queued_s`: of its seconds, those in the queue for a CPU, behind others. `fork_s`: the longest fork of the host, where it was timed."""

    outcome: str
    code: int
    seconds: float
    slower: float
    gap_s: float
    said: str
    problems: tuple[str, ...]
    queued_s: float = 0.0
    fork_s: float = 0.0


def key_of(kind: Kind, turn: int, seed: int) -> str:
    """Kind, command and seed; a kind may have a command twice."""
    return f"{kind.name} {kind.commands[turn]}-{turn} {seed}"


def judge(kind: Kind, turn: int, seed: int, job: Job, window_s: float, running_s: float) -> Outcome:
    """Do it, and undo it. `running_s`: how long the command takes without a fault. Impossible where this host cannot have the fault."""
    key, command = key_of(kind, turn, seed), kind.commands[turn]
    before = kernel.held(), leftovers.elsewhere()
    seen: list[_Seen] = []
    problems: list[str] = []
    forks: list[float] = []
    with _folder() as folder:
        moment = ((seed * len(kind.commands) + turn) * _GOLDEN) % 1.0
        scene = Scene(job, folder, random.Random(key), window_s, running_s, moment, command, seed)
        try:
            with kind.hurt(scene) as plan:
                forks = plan.forks_s
                seen.append(_beside(scene, plan, before))
                if kind.harmless and seen[0][0].outcome != "verdict":
                    problems.append("no verdict, and nothing kept it from one")
        except AssertionError as error:
            problems.append(str(error))
    if not seen:
        raise LabError(f"{key}: {problems[0]}")
    ended, slower, gap, more = seen[0]
    return Outcome(
        ended.outcome, ended.code, round(ended.seconds, 2), round(slower, 3), round(gap, 3), ended.last_words[:160],
        (*more, *problems), round(ended.queued_s, 2), max(forks, default=0.0),
    )  # fmt: skip


def _beside(scene: Scene, plan: Plan, before: tuple[kernel.Held, frozenset[str]]) -> _Seen:
    """The command with the fault, and what is wrong afterwards, while the fault still lasts."""
    jobs = (scene.job, *plan.jobs)
    quiet_from = _stepping(jobs)
    own = scene.folder / "own"
    own.mkdir()
    plan.environment["TMPDIR"], plan.group = str(own), leftovers.GROUP
    began = time.monotonic()
    pids = [pid for job in jobs for pid in job.pids]
    ended = run(arguments(scene.command, plan.place, scene.window_s, pids), plan, scene.window_s)
    slower, gap, disturbed = disturbance(jobs, quiet_from, began, time.monotonic())
    groups = kernel.groups(ended.session) if ended.killed else []
    left = [one for one in kernel.left(before[0], ended.session) if one not in groups]
    problems = [*ended.problems(scene.window_s), *leftovers.of(plan.place, own, ended)]
    problems += leftovers.left(before[1], killed=ended.killed)
    problems += _unwritten(scene, plan, ended)
    problems += [] if plan.shown is None or ended.killed else plan.shown(ended)
    if ended.killed and scene.command in (RECORD, WATCH):
        problems += _next_one(scene, plan.place, ended.session if groups else 0)
    problems += [f"in the kernel: {', '.join(left[:4])}"] if left else []
    return ended, slower, gap, [*problems, *disturbed]


def _unwritten(scene: Scene, plan: Plan, ended: Ended) -> list[str]:
    """A record that ended well has written a window, into the folder that was there: one that was moved since, too."""
    if scene.command != RECORD or ended.code:
        return []
    written = any(
        is_window(path)
        for out in (plan.place / "out", *scene.folder.glob("moved-*"))
        if out.is_dir()
        for path in out.iterdir()
    )
    return [] if written else ["no window was written"]


def _stepping(jobs: Sequence[Job]) -> float:
    """Since when: some steps of each rank, with the fault. LabError where one takes none."""
    began = time.monotonic()
    while time.monotonic() < began + _BEFORE_S or not all(
        len([end for end in one.steps(rank) if end > began]) >= _BEFORE_STEPS for one in jobs for rank in range(len(one.ranks))
    ):  # fmt: skip
        if time.monotonic() > began + _BEFORE_MOST_S:
            raise LabError("a rank does not step with the fault alone", "The same command goes on.")
        time.sleep(0.05)
    return began


@contextmanager
def _folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rankscope-chaos-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _next_one(scene: Scene, place: Path, session: int) -> list[str]:
    """What a killed writer left, the next one removes: halves of windows, and the control group of `session` (0: it left none)."""
    written = [path for path in (place / "out", place / "history/windows") if path.is_dir()]

    def halves() -> list[str]:
        return [path.name for folder in written for path in folder.iterdir() if path.name.startswith(PARTIAL)]

    if scene.command == RECORD and not halves() and not (session and kernel.groups(session)):
        return []
    plan = Plan(place, signal_after_s=WATCHED_S if scene.command == WATCH else None)
    ended = run(arguments(scene.command, place, scene.window_s, scene.job.pids), plan, scene.window_s)
    left = (
        halves() if scene.command == RECORD else []
    )  # a service writes into its history when it has something to write
    left += kernel.groups(session) if session else []
    failed = [f"the next one ended with {ended.code}"] if ended.code else []
    return [*failed, *ended.problems(scene.window_s), *(f"the next one left {name}" for name in left)]


def disturbance(jobs: Sequence[Job], quiet_from: float, began: float, until: float) -> tuple[float, float, list[str]]:
    """How much slower the jobs stepped, the longest time without a step, of all ranks of all of them, and what is wrong with that."""
    slower, gap = 0.0, 0.0
    for job in jobs:
        for rank in range(len(job.ranks)):
            times = job.steps(rank)
            before = [b - a for a, b in itertools.pairwise(times) if quiet_from <= b < began]
            during = [b - a for a, b in itertools.pairwise(times) if began <= b <= until]
            if before and during:
                slower = max(slower, statistics.median(during) / statistics.median(before))
            gap = max([gap, *during, until - times[-1] if times else until - quiet_from])
    if not all(job.alive() for job in jobs):
        return slower, gap, ["a rank ended"]
    wrong = [f"{gap:.1f} s without a step"] if gap > LONGEST_GAP_S else []
    return slower, gap, wrong + ([f"steps took {slower:.1f} times as long"] if slower > MOST_SLOWER else [])
