"""scripts/lab --hangs: the part of the command line that is about hangs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from labkit.faults import Fault
from labkit.hangs import table
from labkit.hangs.cases import Case, Result
from labkit.hangs.kinds import ALL
from labkit.hangs.run import run_cases
from labkit.machine import guard
from labkit.machine.shell import set_up
from labkit.result_file import examined, printed


def act(args: argparse.Namespace, faults_named: Callable[[str, dict[str, type[Fault]]], list[str]]) -> int:
    """Run what the arguments ask for; the exit code."""
    chosen = [Case(kind, seed) for seed in args.seeds for kind in faults_named(args.faults, ALL)]
    set_up(torch=True)
    began = time.monotonic()

    def tell(result: Result, number: int, of: int) -> None:
        start = f"{time.monotonic() - began:5.0f} s [{number}/{of}] {result.case.name}"
        print(f"{start}, {result.ranks} ranks on {result.hosts} hosts: {table.case_line(result)}", flush=True)

    with guard.lab_to_oneself():
        results = examined(args, Result, chosen, lambda left: run_cases(left, args.keep), tell)
    return printed(table.table(results), table.good_enough(results))
