"""scripts/lab --jobs: the part of the command line that is about ordinary jobs of many frameworks."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from functools import partial

from labkit import told
from labkit.jobs import machine, table
from labkit.jobs.cases import Case, Result
from labkit.jobs.faults import ALL, Building
from labkit.jobs.launch import installed
from labkit.jobs.rows import BY_NAME, MAIN
from labkit.jobs.run import judge_again, run_cases
from labkit.machine import guard
from labkit.machine.shell import REPOSITORY, LabError, set_up
from labkit.result_file import examined, printed, save

# What is asked of a job that has not begun to train, and of no other.
BEFORE_TRAINING = Building.name


def act(args: argparse.Namespace) -> int:
    """Run what the arguments ask for; the exit code."""
    chosen = [case for seed in args.seeds for case in cases_of(args.jobs, args.faults, seed, args.window)]
    if args.clean:
        with guard.lab_to_oneself(machine.LOCK, machine.clean_up) as leftovers:
            print(f"{leftovers} leftovers removed" if leftovers else "nothing was left behind")
        return 0
    set_up(torch=False)
    if args.judge_again:
        results = list(judge_again(args.judge_again))
        if args.json:
            save(args.json, results)
        return printed(table.table(results), table.good_enough(results))
    _install()
    with guard.lab_to_oneself(machine.LOCK, machine.clean_up), machine.reaper():
        tell = partial(_say, time.monotonic())
        # Those that others disturbed are asked again.
        results = examined(
            args, Result, chosen, lambda left: run_cases(left, _say_stage, args.keep), tell,
            counts=lambda result: not result.disturbed,
        )  # fmt: skip
    return printed(table.table(results), table.good_enough(results))


def cases_of(jobs: str, faults: str, seed: int, window_s: float) -> list[Case]:
    rows = told.names("job", jobs, list(BY_NAME))
    kinds = told.names("fault", faults, list(ALL))
    found = []
    for row in rows:
        fitting = [kind for kind in kinds if (kind == BEFORE_TRAINING) != BY_NAME[row].trains]
        found += [Case(row, kind, seed, window_s) for kind in fitting]
    return found


def _install() -> None:
    if (installed() / MAIN / "bin/python").exists():
        return
    print("the jobs' frameworks are not installed yet: scripts/setup --jobs", file=sys.stderr, flush=True)
    done = subprocess.run([str(REPOSITORY / "scripts/setup"), "--jobs"], stdout=sys.stderr, check=False)
    if done.returncode:
        raise LabError("scripts/setup failed: see above", exit_code=done.returncode)


def _say_stage(case: Case, stage: str) -> None:
    told.stage(case.name, stage)


def _say(began: float, result: Result, number: int, of: int) -> None:
    told.ended(began, f"{number}/{of}", result.case.name, result.outcome, table.case_line(result), result.wall_s)
