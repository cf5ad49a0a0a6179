"""Cases one after the other: start the job of a row, hurt it, ask rankscope from outside, compare, heal it."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labkit import verdicts
from labkit.faults.base import Truth
from labkit.jobs import lines, machine, score
from labkit.jobs.beside import QUIET, used
from labkit.jobs.cases import Case, Result
from labkit.jobs.faults import ALL, Building, Fault
from labkit.jobs.launch import Job, JobEnded
from labkit.jobs.rows import BY_NAME, PROGRAMS
from labkit.machine.shell import Impossible, LabError, rankscope
from labkit.result_file import plain, restored
from labkit.run import HEALED, KEPT, call
from labkit.verdicts import FAILED, IMPOSSIBLE

# By the median of so many seconds a job is seen to have healed, and a fault is dosed.
BEFORE_S = 4.0
# The mean of so many is a side of the truth. They begin so long after a fault was undone: batches that were made during it are used up.
SIDE_S, USED_UP_S = 10.0, 2.0
HEAL_TIMEOUT_S = 20.0
# What the observer says when its window has begun, and so long after that a rank is killed. Whether it was inside is checked.
OBSERVES = "to go"
KILL_AFTER_S = 6.0
BUILD_TIMEOUT_S = 90.0
COMPILERS = {"ninja", "cc1plus", "c++", "g++"}

Progress = Callable[[Case, str], None]


def run_cases(cases: Sequence[Case], progress: Progress, keep: bool) -> Iterator[Result]:
    """Run all; the cases of one row and seed on one job, as long as that job is what it was."""
    left = list(cases)
    while left:
        group = [case for case in left if (case.row, case.seed) == (left[0].row, left[0].seed)]
        group.sort(key=lambda case: list(ALL).index(case.fault))
        for result in _on_one_job(group, progress, keep):
            yield result
            left = [case for case in left if case != result.case]


def _on_one_job(cases: list[Case], progress: Progress, keep: bool) -> Iterator[Result]:
    """At least the first of the cases; the others while the job serves."""
    began = time.monotonic()
    row = BY_NAME[cases[0].row]
    progress(cases[0], "starting")
    try:
        with Job(row, cases[0].seed) as job:
            if row.trains:
                job.wait_until_steady()
            else:
                _wait_for_compiler(job)
            before = _settled(job, None, timed(cases[:1])) if row.trains else Level(0.0)
            if before is None:
                raise JobEnded(f"{row.name} ended as soon as it trained\n{job.end_of_log()}")
            usual_s = before.median_s
            for at, case in enumerate(cases):
                question = _Question(job, case, before, progress)
                result = question.ask()
                # What is measured now is of the time after this case, and of the time before the next.
                around = cases[at : at + 2]
                after = None
                if not ALL[case.fault].spoils and (len(around) > 1 or timed(around)):
                    progress(case, "healing")
                    after = _settled(job, usual_s, timed(around))
                result = replace(result, healthy_after_s=after.mean_s if after else None)
                question.keep(result, keep)
                yield replace(result, wall_s=time.monotonic() - began)
                began = time.monotonic()
                if after is None:
                    return  # not what it was: the rest gets a new job
                before = after
    except Impossible as error:
        yield from (Result(case, IMPOSSIBLE, str(error)) for case in cases)
    except JobEnded as error:
        yield Result(cases[0], FAILED, str(error), wall_s=time.monotonic() - began)


def _wait_for_compiler(job: Job) -> None:
    """Until the job builds something, before its first step."""
    deadline = time.monotonic() + BUILD_TIMEOUT_S
    while not job.commands() & COMPILERS:
        if job.ended() or time.monotonic() > deadline or any(job.lines()):
            raise Impossible(f"{job.row.name} built nothing before its first step\n{job.end_of_log()}")
        time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class Level:
    """A healthy step of the job, seconds: the median of BEFORE_S; the mean of SIDE_S, None where that was not measured."""

    median_s: float
    mean_s: float | None = None


def timed(cases: Sequence[Case]) -> bool:
    """Whether what some of these took of each step is to be measured."""
    return any(ALL[case.fault].timed for case in cases)


def _settled(job: Job, usual_s: float | None, longer: bool) -> Level | None:
    """The healthy step of the job, once it steps as it did at first; None where it does not. `longer`: its mean is measured too."""
    deadline = time.monotonic() + HEAL_TIMEOUT_S
    while not job.ended():
        time.sleep(BEFORE_S)
        now_s = lines.median_step_s(job.recent(BEFORE_S))
        if now_s is not None and (usual_s is None or now_s < HEALED * usual_s):
            return Level(now_s, _mean_s(job) if longer else None)
        if time.monotonic() > deadline:
            break
    return None


def _mean_s(job: Job) -> float | None:
    """Of SIDE_S that have begun when a stretch of BEFORE_S, which is just over, had used up what was left of a fault."""
    time.sleep(SIDE_S - (BEFORE_S - USED_UP_S))
    return lines.mean_step_s(job.recent(SIDE_S))


class _Question:
    """One case on a running job."""

    def __init__(self, job: Job, case: Case, before: Level, progress: Progress) -> None:
        self.job = job
        self.case = case
        self.before = before
        self.progress = progress
        self.folder = machine.FOLDER / "window"
        self.program = Path(__file__).parent / PROGRAMS / job.row.script
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self) -> Result:
        rng = random.Random(f"{self.case.row} {self.case.fault} {self.case.seed}")
        fault = ALL[self.case.fault](self.job, rng, self.before.median_s)
        try:
            result = self._observed(fault)
        except Impossible as error:
            result = Result(self.case, IMPOSSIBLE, str(error))
        except LabError as error:
            result = Result(self.case, FAILED, str(error))
        finally:
            fault.revert()
        return replace(result, before_s=self.before.median_s, healthy_before_s=self.before.mean_s)

    def _observed(self, fault: Fault) -> Result:
        job = self.job
        self.progress(self.case, "fault")
        truth = None if fault.in_window else fault.inject()
        if truth is not None and job.row.trains:
            time.sleep(fault.settle_s)
        self.progress(self.case, "observing")
        _, _, listed = call([rankscope(), "ranks", "--json"])
        members = set(machine.processes(job.group))
        ranks = (
            score.ranks_of(listed, job.pids(), members, job.row.ranks)
            if job.row.trains
            else score.ranks_before_training(listed, members, job.row.ranks)
        )
        names, others = score.job_names(listed, members)
        groups = (job.group, job.others)
        before = used(groups)
        if others and not names:  # the window would be of another job
            truth = truth or fault.inject()
            outcome, said, verdict = FAILED, f"no process of this job is seen as a rank: {score.reasons(listed)}", ""
        else:
            outcome, said, verdict, truth = self._asked(fault, truth, ["--job", names[0]] if others else [])
        beside = used(groups).beside(before)
        if isinstance(fault, Building) and any(job.lines()):
            raise Impossible("the extension was built before the window ended")
        if fault.in_window and not score.ended_in_window(verdict, job.lines()[fault.victim]):
            raise Impossible("the rank was not killed inside the window")
        result = Result(self.case, outcome, said, truth, ranks, verdict=verdict, beside=beside)
        return result if outcome else _if_undisturbed(score.judged(result, job.lines(), self.program))

    def _asked(self, fault: Fault, truth: Truth | None, chosen: list[str]) -> tuple[str, str, str, Truth]:
        """Outcome FAILED or '', why, the verdict, and the truth: what is done in the window is done here."""
        window_s = self.case.window_s * fault.windows
        command = [rankscope(), "record", "--out", str(self.folder), "--window", f"{window_s:g}", *chosen]
        if truth is None:
            with _in_background(command) as answer:
                time.sleep(KILL_AFTER_S)
                truth = fault.inject()
            outcome, said, printed = answer
        else:
            outcome, said, printed = call(command)
        if not outcome:
            outcome, said, printed = call([rankscope(), "diagnose", str(self.folder), "--json"])
        return outcome, said, printed, truth

    def keep(self, result: Result, good_ones: bool) -> None:
        """Put the window, the verdict and the job's lines aside; those of a case that was right only if it is asked for."""
        if not good_ones and result.outcome in {verdicts.FIRST, IMPOSSIBLE}:
            return
        folder = KEPT / "jobs" / self.case.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in (*self.job.folder.glob("*.lines"), *self.job.folder.glob("*.control"), self.job.folder / "log"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(file, folder)
        with contextlib.suppress(FileNotFoundError):
            shutil.copytree(self.folder, folder / "window")
        (folder / "verdict.json").write_text(result.verdict)
        (folder / "result.json").write_text(json.dumps(plain(result), indent=1))


def _if_undisturbed(result: Result) -> Result:
    """The result; not possible where nobody can say that nothing was wrong, because others used the CPUs."""
    if not ALL[result.case.fault].undisturbed or result.beside is None or result.beside <= QUIET:
        return result
    said = f"others used {100 * result.beside:.0f} % of the CPUs meanwhile ({result.said})"
    return replace(result, outcome=IMPOSSIBLE, said=said)


def judge_again(folder: Path) -> Iterator[Result]:
    """Ask rankscope once more about every window kept in a folder, without running a job."""
    for kept in sorted(folder.glob("*/result.json")):
        result = restored(Result, json.loads(kept.read_text()))
        row = BY_NAME.get(result.case.row)
        window = kept.parent / "window"
        if row is None or result.truth is None or not window.exists():
            continue
        outcome, said, printed = call([rankscope(), "diagnose", str(window), "--json"])
        again = replace(result, outcome=outcome, said=said, verdict=printed)
        program = Path(__file__).parent / PROGRAMS / row.script
        yield again if outcome else _if_undisturbed(score.judged(again, lines.read(kept.parent, row.ranks), program))


@contextlib.contextmanager
def _in_background(command: list[str]) -> Iterator[list[str]]:
    """Run a command while the block runs, which begins when the window does; what `call` would return of it is in the list afterwards."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    answer: list[str] = []
    assert process.stderr is not None
    try:
        # Probes load as fast as the host lets them: only the observer knows when the window begins.
        before = []
        for line in process.stderr:
            before.append(line)
            if OBSERVES in line:
                break
        yield answer
        said, complaint = process.communicate(timeout=150)
        complaint = "".join(before) + complaint
    except BaseException:
        process.kill()
        process.communicate()
        raise
    good = process.returncode in (0, 1, 2, 3)
    last = (complaint.strip() or "no message").splitlines()[-1]
    answer += ["", "", said] if good else [FAILED, f"exit code {process.returncode}: {last[:200]}", said + complaint]
