"""scripts/lab --hangs: the part of the command line that is about hangs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from labkit.faults import Fault
from labkit.hangs import cases, table
from labkit.hangs.cases import Case
from labkit.hangs.kinds import ALL
from labkit.hangs.run import run_cases
from labkit.machine import guard
from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, set_up
from labkit.result_file import resumed, save


def act(args: argparse.Namespace, faults_named: Callable[[str, dict[str, type[Fault]]], list[str]]) -> int:
    """Run what the arguments ask for; the exit code."""
    chosen = [Case(kind, seed) for seed in args.seeds for kind in faults_named(args.faults, ALL)]
    set_up(torch=True)
    file = args.resume or args.json
    results, left = resumed(args, cases.read, chosen, key=lambda case: case)
    began = time.monotonic()
    with guard.lab_to_oneself():
        for number, result in enumerate(run_cases(left, args.keep), 1):
            results.append(result)
            start = f"{time.monotonic() - began:5.0f} s [{number}/{len(left)}] {result.case.name}"
            print(f"{start}, {result.ranks} ranks on {result.hosts} hosts: {table.case_line(result)}", flush=True)
            if file:
                save(file, results)
    print()
    print("\n".join(table.table(results)))
    return 0 if table.good_enough(results) else EXIT_NOT_GOOD_ENOUGH
