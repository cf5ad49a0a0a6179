"""The command line of scripts/kernels."""

from __future__ import annotations

import argparse
import fnmatch
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from kernelkit import arm_root, record
from kernelkit.architecture import ARCHITECTURES, Architecture
from kernelkit.archive import fetch
from kernelkit.kernels import IN_EVERY_RUN, KERNELS, Kernel
from kernelkit.lines import Check
from kernelkit.machine import Booted, boot, needed
from kernelkit.record import Result
from labkit.machine.command import Parser, ended
from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, EXIT_NOT_PERMITTED, LabError

STAGES = ("probes", "job", "tests")
# A safety: on two free cores the stages take 60, 250 and 300 s, beside other work several times that.
DEADLINE_S = {"probes": 900.0, "job": 2100.0, "tests": 1500.0}
_EPILOG = """Each kernel runs this clone and its .venv, as root of the emulated machine, on a copy in memory of this host's root.

exit codes: 0 all good, 1 a check failed, 64 wrong usage, 69 emulator or archive is missing, 77 not root"""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nothing is left in /tmp
    return ended("kernels", lambda: _asked(args), "the same command begins again; kernels that were fetched stay")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="scripts/kernels",
        description=sys.modules["kernelkit"].__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(kernel.name for kernel in KERNELS)
    parser.add_argument("--only", metavar="PATTERN", default="*", help=f"kernels by name, A,B or 6.*: {names}")
    parser.add_argument("--arch", choices=[*ARCHITECTURES], default="x86_64")
    parser.add_argument(
        "--stages", metavar="A,B", default=",".join(STAGES),
        help="probes: programs, one sampled stack, one timed call; job: healthy and slow; tests: of the kernel (default: all)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_const", dest="stages", const="probes", help="as --stages probes")
    parser.add_argument(
        "--record", action="store_true", help="keep the results in results.json and in the table of .github/EVIDENCE.md"
    )
    parser.add_argument("--fetch", action="store_true", help="only download the kernels")
    parser.add_argument("--table", action="store_true", help="only print the committed table")
    parser.add_argument(
        "--every-run",
        action="store_const",
        dest="only",
        const=",".join(IN_EVERY_RUN),
        help=f"as --only {','.join(IN_EVERY_RUN)}",
    )
    args = parser.parse_args(argv)
    patterns = args.only.split(",")
    args.kernels = [one for one in KERNELS if any(fnmatch.fnmatch(one.name, pattern) for pattern in patterns)]
    if not args.kernels:
        parser.error(f"no such kernel: {args.only} (there are {names})")
    args.stages = args.stages.split(",")
    if unknown := [name for name in args.stages if name not in STAGES]:
        parser.error(f"no such stage: {', '.join(unknown)} (there are {', '.join(STAGES)})")
    return args


def _asked(args: argparse.Namespace) -> int:
    if args.table:
        print(record.table(record.read()))
        return 0
    if os.geteuid() != 0:
        raise LabError("kernels are fetched and booted as root", "Run it with sudo.", EXIT_NOT_PERMITTED)
    machine = ARCHITECTURES[args.arch]
    if not machine.is_of_host:
        arm_root.ready(machine, _say)
    if not args.fetch:
        needed(machine)
    good = True
    for kernel in args.kernels:
        fetched = fetch(kernel, machine, _say)
        if args.fetch:
            _say(f"{kernel.name}: {fetched.package} is there")
            continue
        _say(f"{kernel.name}: booting {fetched.package} on {machine.name}")
        deadline_s = sum(DEADLINE_S[stage] for stage in args.stages)
        result = _result(
            kernel, machine, boot(fetched, machine, args.stages, deadline_s, _heard), fetched.release, args.stages
        )
        good = good and result.good
        if args.record:
            record.keep(result)
            record.EVIDENCE.write_text(record.in_evidence(record.EVIDENCE.read_text("utf-8"), record.read()), "utf-8")
    return 0 if good else EXIT_NOT_GOOD_ENOUGH


def _result(kernel: Kernel, machine: Architecture, booted: Booted, release: str, stages: Sequence[str]) -> Result:
    result = Result(
        kernel.name, machine.name, release, datetime.now(timezone.utc).date().isoformat(), round(booted.seconds),
        tuple(booted.checks), booted.ended,
    )  # fmt: skip
    missing = [name for name in stages if name not in {check.name for check in result.checks}]
    if missing and not result.ended:
        result = replace(result, ended=f"it was switched off before {missing[0]} was done")
    _say(
        f"{kernel.name}: {'good' if result.good else 'NOT good'}, {result.seconds} s{f': {result.ended}' if result.ended else ''}"
    )
    return result


def _heard(check: Check) -> None:
    mark = "ok" if check.good else "FAILED"
    _say(f"  {mark:7} {check.name:16} {check.seconds:6.1f} s  {check.words}")


def _say(words: str) -> None:
    print(words, flush=True)
