"""Cases, one after the other on a running job: hurt it, ask rankscope, compare, heal it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from labkit import verdicts
from labkit.cases import CPU, GOOD_ENOUGH, SIZES, Bench, Case, Result, plan_of, random_of, schedule
from labkit.launch import Job, RankEnded
from labkit.machine import disk
from labkit.machine.shell import REPOSITORY, Impossible, LabError, rankscope
from labkit.result_file import plain, restored

KEPT = REPOSITORY / "lab-out"
HEALTHY_S = 2.5
SETTLE_S = 2.5
# After a fault the job must step again as it did at first, within this factor; otherwise a new one is started.
HEALED = 1.25
_HEALING_S = 1.5
# A fault by which the job's own steps become less than so much longer is none that anybody could name, or would be asked about.
FELT = 0.02

Progress = Callable[[Case, str], None]


def run_cases(cases: Sequence[Case], progress: Progress, bench: Bench = CPU) -> Iterator[Result]:
    """Run all, those together that one job can serve; LabError only where the lab itself is broken."""
    for chunk in schedule(cases, bench):
        yield from _run_chunk(chunk, progress, bench)


def _run_chunk(cases: list[Case], progress: Progress, bench: Bench) -> Iterator[Result]:
    left = list(cases)
    tries = 0
    while left:
        case, began = left[0], time.monotonic()
        plan, kind = bench.plan_of(case), bench.faults[case.fault]
        if plan.hosts < kind.min_hosts or plan.ranks < kind.min_ranks:
            least = f"needs {kind.min_ranks} ranks on {kind.min_hosts} hosts"
            yield Result(left.pop(0), plan, verdicts.IMPOSSIBLE, least)
            continue
        progress(case, "starting")
        with bench.job(plan, case.seed) as job:
            try:
                job.wait_until_healthy()
            except RankEnded as error:
                yield Result(left.pop(0), plan, verdicts.FAILED, str(error))
                continue
            except LabError:
                tries += 1
                if tries > 1:
                    raise
                continue
            tries = 0
            session = _Session(job, bench, progress)
            while left and session.usable:
                result = session.run(left[0])
                if result is None:  # the job steps more slowly than at first: a new one is started for this case
                    break
                yield replace(result, wall_s=time.monotonic() - began)
                began = time.monotonic()
                left.pop(0)


class _Session:
    """One job and the cases that it serves."""

    def __init__(self, job: Job, bench: Bench, progress: Progress) -> None:
        self.job = job
        self.bench = bench
        self.progress = progress
        self.usable = True
        self._usual_s: float | None = None
        self._baseline_lone: int | None = None
        self._folder = disk.FOLDER / "windows"

    def run(self, case: Case) -> Result | None:
        """One case; None where the job does not step any more as it did at first."""
        plan = self.bench.plan_of(case)
        shutil.rmtree(self._folder / "case", ignore_errors=True)
        try:
            result = self._observe(case)
        except Impossible as error:
            self.usable = False
            return Result(case, plan, verdicts.IMPOSSIBLE, str(error))
        except LabError as error:
            if error.help:  # an error with a remedy: something is missing on this host, and every case would fail
                raise
            self.usable = False
            result = Result(case, plan, verdicts.FAILED, str(error))
        if result is None:
            return None
        bad = case.observe and result.outcome not in {verdicts.FIRST, verdicts.IMPOSSIBLE}
        if case.keep or bad:
            self._keep(result)
        return result

    def _observe(self, case: Case) -> Result | None:
        kind, plan, rng = self.bench.faults[case.fault], self.bench.plan_of(case), random_of(case)
        job = self.job
        if self._usual_s is not None:
            time.sleep(_HEALING_S)
        if plan.lone != job.lone:
            job.pin(plan.lone)
        baseline = self._baseline(case) if kind.needs_baseline and case.observe else None
        self.progress(case, "healthy")
        began = time.monotonic()
        time.sleep(HEALTHY_S + rng.uniform(0, 3))
        before = job.pace(began, time.monotonic())
        if before is None:
            raise LabError("a healthy rank ended no step: this host is too busy for the lab")
        if self._usual_s is None:
            self._usual_s = before.step_s
        elif before.step_s > HEALED * self._usual_s:
            self.usable = False
            return None
        fault = kind(job, rng, case.dose, before)
        self.progress(case, "fault")
        truth = fault.inject()
        injected = time.monotonic()
        time.sleep(SETTLE_S)
        seen_from = time.monotonic()
        window_s = case.window_s * max(kind.windows, plan.windows)
        if case.observe:
            self.progress(case, "observing")
            outcome, said, verdict = self._ask(window_s, baseline)
        else:
            time.sleep(window_s)
            outcome, said, verdict = verdicts.SILENT, "not asked", ""
        seconds = time.monotonic() - injected
        after = job.pace(seen_from, time.monotonic())
        fault.revert()
        self.usable = not kind.spoils
        job.check_alive()
        result = Result(case, plan, outcome, said, truth, seconds, before=before, after=after, verdict=verdict)
        if outcome == verdicts.FAILED or not case.observe:
            return result
        if truth.status in {"fault", "imbalance"} and after and after.step_s < (1 + FELT) * before.step_s:
            felt = (
                f"the job did not feel it: {before.step_s * 1e3:.0f} ms a step before, {after.step_s * 1e3:.0f} after"
            )
            return replace(result, outcome=verdicts.IMPOSSIBLE, said=felt)
        return judged(result)

    def _baseline(self, case: Case) -> Path:
        """A window of the healthy job; one is enough for all cases of a job whose ranks are on the same cores."""
        self._folder.mkdir(parents=True, exist_ok=True)
        folder = self._folder / "baseline"
        if self._baseline_lone != self.job.lone:
            shutil.rmtree(folder, ignore_errors=True)
            self._baseline_lone = self.job.lone
        if not folder.exists():
            self.progress(case, "healthy, observed")
            outcome, said, _ = self._record(folder, case.window_s)
            if outcome:
                shutil.rmtree(folder, ignore_errors=True)
                raise RankEnded(f"no baseline: {said}")
        return folder

    def _ask(self, window_s: float, baseline: Path | None) -> tuple[str, str, str]:
        """Outcome FAILED or '', why, and what rankscope printed; the window that it judged is kept.

        As an operator asks: one command, which observes further by itself where a longer window would tell.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._call(
            "diagnose", "--window", f"{window_s:g}", "--job", self.job.name, "--out", str(self._folder / "case"),
            "--no-history", *(["--baseline", str(baseline)] if baseline else []), "--json",
        )  # fmt: skip

    def _record(self, folder: Path, window_s: float) -> tuple[str, str, str]:
        """One window of this job; other jobs may run on this host."""
        return self._call("record", "--out", str(folder), "--window", f"{window_s:g}", "--job", self.job.name)

    def _call(self, *arguments: str) -> tuple[str, str, str]:
        return call(self.job.observer_command([rankscope(), *arguments]))

    def _keep(self, result: Result) -> None:
        folder = KEPT / self.bench.kept_in / result.case.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.job.folder, folder, ignore=shutil.ignore_patterns("*.draft"))
        for name in ("case", "baseline"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copytree(self._folder / name, folder / "windows" / name)
        if not self.bench.faults[result.case.fault].needs_baseline:
            shutil.rmtree(folder / "windows" / "baseline", ignore_errors=True)
        (folder / "verdict.json").write_text(result.verdict)
        (folder / "result.json").write_text(json.dumps(plain(result), indent=1))


def judged(result: Result) -> Result:
    """The same result, with its verdict compared with its truth."""
    assert result.truth is not None
    try:
        parsed = verdicts.parse(result.verdict)
    except verdicts.BadVerdict as error:
        return replace(result, outcome=verdicts.FAILED, said=f"no verdict: {error}")
    return replace(
        result,
        outcome=verdicts.score(parsed, result.truth),
        said=f"{parsed.status}: " + ("; ".join(map(str, parsed.suspects[:3])) or "nobody"),
        cause_right=verdicts.cause_is_right(parsed, result.truth),
        culprit_named=verdicts.culprit_is_named(parsed, result.truth),
        accused=parsed.accuses,
        accused_rightly=verdicts.first_is_right(parsed, result.truth),
        confidence=parsed.suspects[0].confidence if parsed.suspects else 0.0,
    )


def judge_again(folder: Path) -> Iterator[Result]:
    """Ask rankscope once more about every case kept in a folder, without running a job."""
    for kept in sorted(folder.glob("*/result.json")):
        result = restored(Result, json.loads(kept.read_text()))
        windows = kept.parent / "windows"
        if result.truth is None or not (windows / "case").exists():
            continue
        earlier = ["--baseline", str(windows / "baseline")] if (windows / "baseline").exists() else []
        outcome, said, printed = call([rankscope(), "diagnose", str(windows / "case"), *earlier, "--json"])
        again = replace(result, outcome=outcome, said=said, verdict=printed)
        yield again if outcome else judged(again)


def call(command: list[str]) -> tuple[str, str, str]:
    """Outcome FAILED or '', why, and what the command printed."""
    limit_s = 240.0  # 120 s of windows, at most
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return verdicts.FAILED, f"no answer in {limit_s:.0f} s", ""
    if done.returncode not in (0, 1, 2, 3):
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        return verdicts.FAILED, f"exit code {done.returncode}: {last[:200]}", done.stdout + done.stderr
    return "", "", done.stdout


__all__ = [
    "CPU", "GOOD_ENOUGH", "HEALTHY_S", "KEPT", "SETTLE_S", "SIZES", "Bench", "Case", "Result", "judge_again", "judged",
    "plan_of", "run_cases",
]  # fmt: skip
