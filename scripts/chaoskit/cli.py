"""The command line of scripts/chaos: cases one after the other, results kept, a table over all of them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from chaoskit import record
from chaoskit.case import LONGEST_GAP_S, MOST_SLOWER, Result, judge, key_of
from chaoskit.command import LATE_S, VERDICTS, Plan, run
from chaoskit.faults.kinds import KINDS
from chaoskit.job import Job, running
from chaoskit.scene import RECORD, Kind, arguments
from chaoskit.sources import REPOSITORY, TELLS_WHAT_IT_LOADS, fingerprint, fingerprints, missing
from chaoskit.table import slowed, table
from labkit.machine.command import Parser, ended
from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, EXIT_NOT_PERMITTED, Impossible, LabError

Case = tuple[Kind, int, int]  # kind, which of its commands, seed
RECORDED = REPOSITORY / "tests/data/chaos/results.json"
_EPILOG = f"""Each case runs the real `rankscope record`, `diagnose` or `sweep` beside a small job while something is wrong with
the host. It is good if the command ends in a verdict or one clear line within its window + {LATE_S:g} s, with no exit code but the
documented ones, leaves nothing in the kernel, on the disk or running, and tells what the fault must bring about; and if all ranks go
on stepping, none {LONGEST_GAP_S:g} s without a step, nor in steps of more than {MOST_SLOWER:g} times the length. A run goes on where
the last one ended, and may stand beside others: what is not its own is not counted.

exit codes: 0 all good, 1 not, 64 wrong usage, 69 something is missing, 77 not root"""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.list:
        print("\n".join(f"{kind.name:16} {', '.join(dict.fromkeys(kind.commands)):24} {kind.what}" for kind in KINDS))
        return 0
    return ended("chaos", lambda: _asked(args), "the same command goes on")


def _asked(args: argparse.Namespace) -> int:
    wanted = [kind for kind in KINDS if args.kinds == ["all"] or kind.name in args.kinds]
    if args.fresh:
        args.results.unlink(missing_ok=True)
    sources = fingerprints()
    try:
        if not args.table:
            _run(wanted, args, sources)
    except KeyboardInterrupt:
        print("chaos: interrupted; the same command goes on", file=sys.stderr)
    done = record.read(args.results)
    shown = {kind: [one for one in done.values() if one.key.partition(" ")[0] == kind.name] for kind in wanted}
    together = slowed(shown)
    print("\n".join([*table(shown, sources), *together]))
    return EXIT_NOT_GOOD_ENOUGH if together or any(one.problems for found in shown.values() for one in found) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="scripts/chaos", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["all"], metavar="KIND", help="all, or some of --list")
    parser.add_argument("--seeds", type=int, default=1, help="of each kind and command (default 1)")
    parser.add_argument("--window", type=float, default=1.0, help="seconds (default 1)")
    parser.add_argument("--ranks", type=int, default=2, help="of the job (default 2)")
    parser.add_argument(
        "--seconds", type=float, default=900.0, help="begin no case after these, from the first one on (default 900)"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=REPOSITORY / "chaos-out/results.json",
        help="kept there (default chaos-out/results.json)",
    )
    parser.add_argument(
        "--record", action="store_true", help="kept in the committed record, which other runs and clones go on with"
    )
    parser.add_argument("--again", action="store_true", help="what was bad is done again, too")
    parser.add_argument("--renew", action="store_true", help="what was done with other sources is done again, too")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--table", action="store_true", help="only the table")
    parser.add_argument("--list", action="store_true", help="the kinds")
    args = parser.parse_args(argv)
    if args.record:
        args.results = RECORDED
    if unknown := sorted(set(args.kinds) - {"all", *(kind.name for kind in KINDS)}):
        parser.error(f"no such kind: {', '.join(unknown)}")
    return args


def left_of(
    cases: Sequence[Case], done: Mapping[str, Result], sources: Mapping[str, str], *, again: bool, renew: bool
) -> list[Case]:
    """Those that are still to be done. `again`: bad ones too; `renew`: those of other sources too."""
    found = []
    for case in cases:
        kind, turn, _ = case
        known = done.get(key_of(*case))
        stale = renew and known is not None and known.source != sources[kind.commands[turn]]
        if known is None or stale or (again and known.problems):
            found.append(case)
    return found


def _run(wanted: Sequence[Kind], args: argparse.Namespace, sources: Mapping[str, str]) -> None:
    if os.geteuid() != 0:
        raise LabError("observing needs root", exit_code=EXIT_NOT_PERMITTED)
    cases = [(kind, turn, seed) for seed in range(args.seeds) for kind in wanted for turn in range(len(kind.commands))]
    left = left_of(cases, record.read(args.results), sources, again=args.again, renew=args.renew)
    if not left:
        return
    commit = _commit()
    with (
        tempfile.TemporaryDirectory(prefix="rankscope-chaos-job-") as folder,
        running(Path(folder) / "job", args.ranks) as job,
    ):
        # The first one compiles the probes, which is no fault.
        running_s = {RECORD: _undisturbed_s(RECORD, job, args.window)}
        began = time.monotonic()
        for number, case in enumerate(left):
            kind, turn, _ = case
            if time.monotonic() - began > args.seconds:
                print(f"{len(left) - number} cases left: the same command goes on")
                return
            command = kind.commands[turn]
            if command not in running_s:
                running_s[command] = _undisturbed_s(command, job, args.window)
            try:
                result = judge(*case, job, args.window, running_s[command])
            except Impossible as error:
                print(f"{key_of(*case)}: left out: {error}", flush=True)
                continue
            if fingerprint(command) != sources[command]:
                raise LabError("the sources were changed meanwhile", "The same command goes on, with those of now.")
            result = replace(result, commit=commit, source=sources[command])
            record.keep(args.results, result)
            words = "; ".join(result.problems) or "good"
            line = f"{result.key:32} {result.outcome:9} {result.code:4} {result.seconds:5.1f} s  {words}: {result.said}"
            print(line[:200], flush=True)


def _commit() -> str:
    """Of this clone, with a + where something was changed since; '' outside of one."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )  # fmt: skip
    return said.stdout.strip()


def _undisturbed_s(command: str, job: Job, window_s: float) -> float:
    """How long the command takes without a fault; and it must see the job, and load nothing that its fingerprint does not hold."""
    with tempfile.TemporaryDirectory(prefix="rankscope-chaos-") as folder:
        plan = Plan(Path(folder), environment=TELLS_WHAT_IT_LOADS)
        ended = run(arguments(command, Path(folder), window_s, job.pids), plan, window_s)
    if unseen := missing(command, ended.complained):
        raise LabError(f"{command} loads {', '.join(unseen)}, which its fingerprint does not hold (sources.py)")
    if ended.code not in VERDICTS or (command == RECORD and f"{len(job.ranks)} ranks" not in ended.said):
        raise LabError(f"without any fault: exit {ended.code}: {(ended.complained or ended.said).strip()[-300:]}")
    return ended.seconds
