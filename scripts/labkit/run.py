"""One case: start a job, hurt it, ask rankscope, compare."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from labkit import verdicts
from labkit.faults import ALL, Truth
from labkit.launch import Job, Plan, RankEnded
from labkit.shell import REPOSITORY, Impossible, LabError, rankscope
from labkit.steps import Pace

# (ranks, hosts), taken in turn by seed.
SIZES = ((4, 2), (8, 4), (2, 2), (4, 4), (8, 3), (6, 3), (3, 3))
KEPT = REPOSITORY / "lab-out"
HEALTHY_S = 2.5
SETTLE_S = 2.5


@dataclass(frozen=True, slots=True)
class Case:
    """What to do. `ranks`, `hosts`: None lets the seed choose. `observe`: ask rankscope, else only measure the job."""

    fault: str
    seed: int
    ranks: int | None = None
    hosts: int | None = None
    window_s: float = 10.0
    dose: str = "strong"
    observe: bool = True
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """How a case ended: `outcome` is one of verdicts.FIRST … IMPOSSIBLE, `said` a line for the reader.

    seconds: from the fault to the verdict. before, after: the job's pace by its own clock, without and with the fault.
    """

    case: Case
    plan: Plan
    outcome: str
    said: str
    truth: Truth | None = None
    seconds: float | None = None
    cause_right: bool = False
    culprit_named: bool = False
    before: Pace | None = None
    after: Pace | None = None
    verdict: str = ""

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        if self.truth:
            found["truth"]["causes"] = {name: sorted(causes) for name, causes in self.truth.causes.items()}
        return found


def plan_of(case: Case) -> Plan:
    """The sizes of a case and the rank with a core of its own, by its seed."""
    rng = random.Random(f"plan {case.fault} {case.seed}")
    least = ALL[case.fault].min_hosts
    sizes = [size for size in SIZES if size[1] >= least]
    ranks, hosts = sizes[(case.seed - 1) % len(sizes)]
    if case.ranks is not None:
        ranks, hosts = case.ranks, min(max(hosts, least), case.ranks)
    if case.hosts is not None:
        hosts = min(case.hosts, ranks)
    return Plan(ranks=ranks, hosts=hosts, lone=rng.randrange(ranks))


def run_case(case: Case, progress: Callable[[str], None]) -> Result:
    """Run one case; LabError only where the lab itself is broken."""
    plan = plan_of(case)
    if plan.hosts < ALL[case.fault].min_hosts:
        return Result(case, plan, verdicts.IMPOSSIBLE, f"needs {ALL[case.fault].min_hosts} hosts")
    progress("starting")
    with Job(plan, case.seed) as job:
        try:
            job.wait_until_healthy()
            result = _observe(case, plan, job, progress)
        except Impossible as error:
            result = Result(case, plan, verdicts.IMPOSSIBLE, str(error))
        except RankEnded as error:
            result = Result(case, plan, verdicts.FAILED, str(error))
        bad = case.observe and result.outcome not in {verdicts.FIRST, verdicts.IMPOSSIBLE}
        if case.keep or bad:
            _keep(case, job, result)
    return result


def _observe(case: Case, plan: Plan, job: Job, progress: Callable[[str], None]) -> Result:
    rng = random.Random(f"case {case.fault} {case.seed}")
    progress("healthy")
    began = time.monotonic()
    time.sleep(HEALTHY_S + rng.uniform(0, 3))
    before = job.pace(began, time.monotonic())
    if before is None:
        raise LabError("a healthy rank ended no step: this host is too busy for the lab")
    fault = ALL[case.fault](job, rng, case.dose, before)
    injected = time.monotonic()
    truth = fault.inject()
    progress("fault")
    time.sleep(SETTLE_S)
    seen_from = time.monotonic()
    if case.observe:
        progress("observing")
        outcome, said, verdict = _diagnose(case)
    else:
        time.sleep(case.window_s)
        outcome, said, verdict = verdicts.SILENT, "not asked", ""
    seconds = time.monotonic() - injected
    after = job.pace(seen_from, time.monotonic())
    fault.revert()
    job.check_alive()
    common = {"truth": truth, "seconds": seconds, "before": before, "after": after, "verdict": verdict}
    if outcome == verdicts.FAILED or not case.observe:
        return Result(case, plan, outcome, said, **common)
    try:
        parsed = verdicts.parse(verdict)
    except verdicts.BadVerdict as error:
        return Result(case, plan, verdicts.FAILED, f"no verdict: {error}", **common)
    return Result(
        case,
        plan,
        verdicts.score(parsed, truth),
        f"{parsed.status}: " + ("; ".join(map(str, parsed.suspects[:3])) or "nobody"),
        cause_right=verdicts.cause_is_right(parsed, truth),
        culprit_named=verdicts.culprit_is_named(parsed, truth),
        **common,
    )


def _diagnose(case: Case) -> tuple[str, str, str]:
    """Outcome FAILED or '', why, and what rankscope printed."""
    command = [rankscope(), "diagnose", "--window", f"{case.window_s:g}", "--json"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=3 * case.window_s + 90,
        )
    except subprocess.TimeoutExpired:
        return verdicts.FAILED, f"no verdict in {3 * case.window_s + 90:.0f} s", ""
    if done.returncode not in (0, 1, 2, 3):
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        return verdicts.FAILED, f"exit code {done.returncode}: {last[:200]}", done.stdout + done.stderr
    return "", "", done.stdout


def _keep(case: Case, job: Job, result: Result) -> None:
    folder = KEPT / f"{case.fault}-{case.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(job.folder, folder)
    (folder / "verdict.json").write_text(result.verdict)
