"""scripts/lab --public: the part of the command line that is about public reports of slow training, rebuilt in kind."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial

from labkit.jobs import machine
from labkit.machine import guard
from labkit.machine.shell import EXIT_USAGE, LabError, set_up
from labkit.public import table
from labkit.public.cases import Case, Result
from labkit.public.kinds import KINDS
from labkit.public.run import run_cases
from labkit.result_file import examined, printed


def act(args: argparse.Namespace) -> int:
    """Run what the arguments ask for; the exit code."""
    names = _names(args.faults)
    cases = [Case(name, seed, fault) for seed in args.seeds for name in names for fault in (False, True)]
    set_up(torch=True)
    with guard.lab_to_oneself(machine.LOCK, machine.clean_up), machine.reaper():
        results = examined(
            args, Result, cases, lambda left: run_cases(left, args.window, _say_stage, args.keep),
            partial(_say, time.monotonic()),
        )  # fmt: skip
    return printed(table.table(results), table.good_enough(results))


def _names(text: str) -> list[str]:
    words = set(text.split(","))
    if unknown := sorted(words - {"all", *KINDS}):
        why = f"no such kind: {', '.join(unknown)} (there are: all, {', '.join(KINDS)})"
        raise LabError(why, exit_code=EXIT_USAGE)
    return [name for name in KINDS if words & {name, "all"}]


def _say_stage(case: Case, stage: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{case.name}: {stage} …", end="", file=sys.stderr, flush=True)


def _say(began: float, result: Result, number: int, of: int) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    start = f"{time.monotonic() - began:5.0f} s [{number}/{of}] {result.case.name}: {result.outcome.upper()}"
    print(f"{start} {table.case_line(result)} [{result.wall_s:.0f} s]", flush=True)
