"""Folders that the labs keep (`scripts/lab --keep`) as cases of the corpus."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corpuskit.archive import keep_window
from corpuskit.case import STRONG, WEAK, Case, Place
from corpuskit.paths import Replacements
from labkit.cases import Result as OfFaults
from labkit.faults.base import Truth
from labkit.jobs import lines, score
from labkit.jobs.beside import QUIET
from labkit.jobs.cases import Result as OfJobs
from labkit.jobs.rows import BY_NAME, PROGRAMS
from labkit.launch import Plan
from labkit.machine.shell import EXIT_USAGE, LabError
from labkit.result_file import restored
from labkit.verdicts import IMPOSSIBLE
from rankscope.observer.window.folder import find_windows
from rankscope.probes.base.errors import BadData

# The lab of jobs has one dose; what it did to the job's own steps tells strong from weak. Between the doses of the lab of faults.
STRONG_FROM = 0.3
# Of the step. A fault that lengthens it by less is below what the diagnoser promises to see (limits.EFFECT_SHARE); where nothing was
# done, a step that is longer by more than the weakest dose was slowed by something that the lab does not know.
FELT = 0.05
UNTOUCHED = 0.12
# By so much of the step its means before and after may differ: half of it is what the truth may be off.
STEADY = 0.05
ENOUGH = 3  # cases of one job that tell its usual step
_NO_STEPS = {"stopped", "dead", "building"}


@dataclass(frozen=True, slots=True)
class Recording:
    """What a kept folder does not tell. code: version that recorded it; '' asks git about the folder."""

    archive: str
    quiet: bool
    code: str = ""


def cases(place: Path, recording: Recording, folder: Path, replacements: Replacements) -> Iterator[Case]:
    """The kept cases below a place; their windows are put below `folder`. Those without a window are left out."""
    found = sorted(place.glob("*/result.json")) or sorted(place.glob("result.json"))
    if not found:
        raise LabError(f"{place} holds no kept cases", "Give a folder of scripts/lab --keep.", EXIT_USAGE)
    read = []
    for kept in found:
        item = json.loads(kept.read_text())
        how = _of_jobs if "row" in item["case"] else _of_card if "card" in item["case"] else _of_faults
        case = how(kept.parent, item, recording)
        if case is None:
            continue
        windows, baseline = (_kept(one, folder, replacements) for one in _windows(kept.parent))
        if windows:
            recorded = _date(kept.parent)
            code = recording.code or _version(place, recorded)
            read.append(replace(case, code=code, windows=windows, baseline=baseline, recorded=recorded))
    for case in read:
        usual = usual_s(case, read)
        yield replace(case, doubt=case.doubt or doubt(case, usual), unsteady=unsteady(case, usual))


def usual_s(case: Case, others: Sequence[Case]) -> float | None:
    """A healthy step of an ordinary job: the shortest before any case that it served, for what runs beside a job only makes its
    steps longer. None where they are too few to tell, and in the labs of faults, whose jobs are of another shape for each fault.
    """
    if case.two_sided:
        return None  # what it was before and after says more
    job = (case.lab, case.job, case.seed)
    healthy = [one.healthy_s for one in others if one.healthy_s and (one.lab, one.job, one.seed) == job]
    return min(healthy) if case.lab == "jobs" and len(healthy) >= ENOUGH else None


def unsteady(case: Case, usual_s: float | None) -> str:
    """What the job's own steps say against the lost time: they were not the same before and after, or other work ran before the fault."""
    if case.two_sided and max(case.sides_s) / min(case.sides_s) - 1 > STEADY:
        before_s, after_s = case.sides_s
        return f"its step was {1e3 * before_s:.0f} ms before and {1e3 * after_s:.0f} ms after"
    if case.healthy_s and usual_s and case.healthy_s / usual_s - 1 > UNTOUCHED:
        return (
            f"its step before was {1e3 * case.healthy_s:.0f} ms, of the same job at other times {1e3 * usual_s:.0f} ms"
        )
    return ""


def doubt(case: Case, usual_s: float | None = None) -> str:
    """What the job's own steps say against the truth."""
    if case.healthy_s is None or case.during_s is None:
        return ""
    longer = case.during_s / min(case.healthy_s, usual_s or case.healthy_s) - 1
    if case.truth.status == "fault" and longer < FELT and case.fault not in _NO_STEPS:
        return f"the job's own steps became {100 * longer:.0f} % longer only"
    if case.truth.status == "healthy" and longer > UNTOUCHED:
        return f"the job's own steps became {100 * longer:.0f} % longer in a healthy run"
    return ""


def _of_faults(folder: Path, item: dict[str, Any], recording: Recording) -> Case | None:
    """Of the lab of faults, and of the GPU lab."""
    result = restored(OfFaults, item)
    if result.outcome == IMPOSSIBLE or result.truth is None:
        return None
    gpu = "sync_every" in item["plan"]
    return Case(
        archive=recording.archive,
        name=result.case.name,
        lab="gpu" if gpu else "faults",
        job=_gpu_job(item["plan"]) if gpu else _job(result.plan),
        fault=result.case.fault,
        dose=result.case.dose,
        seed=result.case.seed,
        ranks=result.plan.ranks,
        hosts=result.plan.hosts,
        truth=result.truth,
        healthy_s=result.before.step_s if result.before else None,
        during_s=result.after.step_s if result.after else None,
        quiet=recording.quiet,
        recorded="",
        code="",
        windows=(),
    )


def _job(plan: Plan) -> str:
    """Which of the jobs of the lab: training/ in the shapes that faults ask for."""
    if plan.stages > 1:
        return "lab, stages"
    if plan.workers:
        return "lab, loader processes"
    return "lab, equipped" if plan.report_bytes or plan.lookups else "lab"


def _gpu_job(plan: dict[str, Any]) -> str:
    return "gpu lab" if plan["sync_every"] == 1 else "gpu lab, ahead"


def _of_jobs(folder: Path, item: dict[str, Any], recording: Recording) -> Case | None:
    result = restored(OfJobs, item)
    row = BY_NAME.get(result.case.row)
    if result.outcome == IMPOSSIBLE or result.truth is None or row is None:
        return None
    before_s = statistics.fmean(result.sides_s) if result.sides_s else result.before_s
    during_s = None
    window = score.window_of(result.verdict)
    if window and result.case.fault not in _NO_STEPS:
        during_s = lines.mean_step_s(lines.between(lines.read(folder, row.ranks), *window))
    dose = ""
    if result.truth.status == "fault" and before_s and during_s:
        dose = STRONG if during_s / before_s - 1 >= STRONG_FROM else WEAK
    program = Path(lines.__file__).parent / PROGRAMS / row.script
    span = score.span_of(program, result.truth.function) if result.truth.function else None
    return Case(
        archive=recording.archive,
        name=result.case.name,
        lab="jobs",
        job=row.name,
        fault=result.case.fault,
        dose=dose or STRONG,
        seed=result.case.seed,
        ranks=row.ranks,
        hosts=1,
        truth=result.truth,
        healthy_s=before_s,
        during_s=during_s,
        quiet=recording.quiet and (result.beside or 0.0) <= QUIET,
        recorded="",
        code="",
        windows=(),
        place=Place(program.name, *span) if span else None,
        doubt="" if result.sound else "the job's own lines contradict themselves",
        sides_s=result.sides_s,
    )


def _of_card(folder: Path, item: dict[str, Any], recording: Recording) -> Case:
    """Of `scripts/bench gpu --faults`: a real GPU, which the ranks share."""
    told = item["case"]
    return Case(
        archive=recording.archive,
        name=f"{told['fault']}-{told['seed']}",
        lab="card",
        job=told.get("job", told["card"]),
        fault=told["fault"],
        dose=STRONG,
        seed=told["seed"],
        ranks=told["ranks"],
        hosts=1,
        truth=restored(Truth, told["truth"]),
        healthy_s=told["healthy_s"],
        during_s=told["during_s"],
        quiet=recording.quiet,
        recorded="",
        code="",
        windows=(),
    )


def _windows(kept: Path) -> tuple[Path, Path]:
    """Where the windows and the earlier windows of a kept case lie."""
    return (kept / "window", kept / "baseline") if (kept / "window").exists() else _of_lab(kept / "windows")


def _of_lab(windows: Path) -> tuple[Path, Path]:
    return windows / "case", windows / "baseline"


def _kept(place: Path, folder: Path, replacements: Replacements) -> tuple[str, ...]:
    try:
        return tuple(keep_window(one, folder, replacements) for one in find_windows(place))
    except BadData:
        return ()  # nothing was recorded


def _date(kept: Path) -> str:
    """When the first window began, UTC."""
    starts = [json.loads((one / "window.json").read_text())["start"] for one in find_windows(_windows(kept)[0])]
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(starts)))


def _version(place: Path, recorded: str) -> str:
    """What was checked out there when the window was recorded."""
    command = ["git", "-C", str(place), "rev-parse", "--short", f"HEAD@{{{recorded}}}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{place} does not tell which version recorded it", "Give --code.", EXIT_USAGE)
    return done.stdout.strip()
