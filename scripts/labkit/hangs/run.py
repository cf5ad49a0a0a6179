"""One hang after the other, each on a job of its own: a service beside it from the first, and a command typed at the silence."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from labkit import step_times, verdicts
from labkit.cases import Case as LabCase
from labkit.cases import plan_of, random_of
from labkit.hangs import score
from labkit.hangs.cases import Answer, Case, Result
from labkit.hangs.kinds import ALL, LONG_S, Hang
from labkit.hangs.service import Service
from labkit.launch import Job, Plan
from labkit.machine import disk
from labkit.machine.shell import Impossible, LabError, rankscope
from labkit.result_file import plain
from labkit.run import KEPT, call

SILENCE_S = 5.0  # after which somebody types a command
_WINDOW_S = 4.0
_SETTLED_S = 3.0
_TOLD_S = 30.0  # a service that says nothing for so long says nothing
_FOLDER = disk.FOLDER / "service"


def run_cases(cases: Sequence[Case], keep: bool) -> Iterator[Result]:
    """Run all; LabError only where the lab itself is broken."""
    for case in cases:
        began = time.monotonic()
        yield replace(_run(case, keep), wall_s=time.monotonic() - began)


def _kind(case: Case) -> type[Hang]:
    kind = ALL[case.kind]
    assert issubclass(kind, Hang)
    return kind


def plan(case: Case) -> Plan:
    return plan_of(LabCase(case.kind, case.seed), ALL)


def _run(case: Case, keep: bool) -> Result:
    shape = plan(case)
    for attempt in (1, 2):
        shutil.rmtree(_FOLDER, ignore_errors=True)
        try:
            with Job(shape, case.seed) as job, Service(_FOLDER, job.name) as service:
                job.wait_until_healthy()
                service.wait_until_it_knows_the_step()
                time.sleep(_SETTLED_S)
                return _observe(case, shape, job, service, keep)
        except Impossible as error:
            return Result(case, shape.ranks, shape.hosts, None, Answer(verdicts.IMPOSSIBLE, str(error)), None)
        except LabError as error:
            if attempt == 2:
                return Result(case, shape.ranks, shape.hosts, None, Answer(verdicts.FAILED, str(error)), None)
    raise AssertionError


def _observe(case: Case, shape: Plan, job: Job, service: Service, keep: bool) -> Result:
    kind = _kind(case)
    pace = job.pace(time.monotonic() - _SETTLED_S, time.monotonic())
    if pace is None:
        raise LabError("a healthy rank ended no step: this host is too busy for the lab")
    fault = kind(job, random_of(LabCase(case.kind, case.seed)), "strong", pace)
    before = len(service.events())
    truth = fault.inject()
    try:
        service.wait_for(_told if kind.hangs else _never, _TOLD_S if kind.hangs else SILENCE_S + 2.0, before)
        last_s = _last_step_s(job, shape)
        command, printed = None, ""
        if kind.leaves_ranks:
            asked_s = time.monotonic()
            printed, trouble = _ask(job)
            after_s = SILENCE_S + time.monotonic() - asked_s
            command = Answer(*trouble) if trouble else score.of_command(printed, truth, after_s)
        if not kind.hangs:
            service.wait_for(_never, max(last_s + LONG_S + SILENCE_S - time.monotonic(), 0.0), before)
    finally:
        fault.revert()
    events = service.events()[before:]
    told = score.of_service(events, truth, time.time() - time.monotonic() + last_s)
    result = Result(case, shape.ranks, shape.hosts, truth, told, command, printed)
    if keep or not all(score.is_right(answer, truth) for answer in result.answers):
        _keep(result, job, events)
    return result


def _told(events: Sequence[dict[str, Any]]) -> bool:
    """A verdict, or a death, which is one by itself."""
    return any(one["kind"] == "verdict" or (one["kind"] == "alarm" and one["alarm"] == "dead") for one in events)


def _never(_: Sequence[dict[str, Any]]) -> bool:
    return False


def _last_step_s(job: Job, shape: Plan) -> float:
    """When the last step ended on any rank, CLOCK_MONOTONIC."""
    return max(step_times.read(job.folder / f"rank{rank}.steps")[-1].end for rank in range(shape.ranks))


def _ask(job: Job) -> tuple[str, tuple[str, str] | None]:
    """What `rankscope diagnose` printed, and what went wrong. Its history keeps the window."""
    words = ["diagnose", "--window", f"{_WINDOW_S:g}", "--job", job.name, "--history", str(_FOLDER / "case"), "--json"]
    outcome, said, printed = call(job.observer_command([rankscope(), *words]))
    return printed, (outcome, said) if outcome else None


def _keep(result: Result, job: Job, events: Sequence[dict[str, Any]]) -> None:
    folder = KEPT / "hangs" / result.case.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(job.folder, folder, ignore=shutil.ignore_patterns("*.draft", "*.state"))
    for name, kept_as in (("case", "case"), ("history", "service")):
        with contextlib.suppress(FileNotFoundError):
            shutil.copytree(_FOLDER / name / "windows", folder / "windows" / kept_as)
    (folder / "events.json").write_text(json.dumps(list(events), indent=1))
    (folder / "verdict.json").write_text(result.verdict)
    (folder / "result.json").write_text(json.dumps(plain(result), indent=1))
