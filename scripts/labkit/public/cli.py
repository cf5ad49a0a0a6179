"""scripts/lab --public: the part of the command line that is about public reports of slow training, rebuilt in kind."""

from __future__ import annotations

import argparse
import time
from functools import partial

from labkit import told
from labkit.jobs import machine
from labkit.machine import guard
from labkit.machine.shell import set_up
from labkit.public import table
from labkit.public.cases import Case, Result
from labkit.public.kinds import KINDS
from labkit.public.run import run_cases
from labkit.result_file import examined, printed


def act(args: argparse.Namespace) -> int:
    """Run what the arguments ask for; the exit code."""
    names = told.names("kind", args.faults, list(KINDS))
    # Seeds of a kind follow one another: each case at fault has a healthy one before it and one after it.
    cases = [Case(name, seed, fault) for name in names for seed in args.seeds for fault in (False, True)]
    set_up(torch=True)
    with guard.lab_to_oneself(machine.LOCK, machine.clean_up), machine.reaper():
        results = examined(
            args, Result, cases, lambda left: run_cases(left, args.window, _say_stage, args.keep),
            partial(_say, time.monotonic()),
        )  # fmt: skip
    return printed(table.table(results), table.good_enough(results))


def _say_stage(case: Case, stage: str) -> None:
    told.stage(case.name, stage)


def _say(began: float, result: Result, number: int, of: int) -> None:
    told.ended(began, f"{number}/{of}", result.case.name, result.outcome, table.case_line(result), result.wall_s)
