"""The command line of scripts/chaos: cases one after the other, results kept, a table over all of them."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from chaoskit.case import Result, judge, key_of
from chaoskit.command import LATE_S, Plan, run
from chaoskit.job import Job, running
from chaoskit.kinds import KINDS
from chaoskit.scene import RECORD, Kind, arguments
from labkit.machine.command import Parser, ended
from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, EXIT_NOT_PERMITTED, Impossible, LabError

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = REPOSITORY / "tests/data/chaos/results.json"
_EPILOG = f"""Each case runs the real `rankscope record`, `diagnose` or `sweep` beside a small job while something is wrong with
the host. It is good if the command ends in a verdict or one clear line within its window + {LATE_S:g} s, with no exit code but the
documented ones, leaves nothing in the kernel, on the disk or running, and if the job goes on stepping. A run goes on where the last
one ended.

exit codes: 0 all good, 1 not, 64 wrong usage, 69 something is missing, 77 not root"""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.list:
        print("\n".join(f"{kind.name:16} {', '.join(dict.fromkeys(kind.commands)):24} {kind.what}" for kind in KINDS))
        return 0
    return ended("chaos", lambda: _asked(args), "the same command goes on")


def _asked(args: argparse.Namespace) -> int:
    wanted = [kind for kind in KINDS if args.kinds == ["all"] or kind.name in args.kinds]
    done = {} if args.fresh else read(args.results)
    try:
        if not args.table:
            _run(wanted, args, done)
    except KeyboardInterrupt:
        print("chaos: interrupted; the same command goes on", file=sys.stderr)
    shown = {kind: [one for one in done.values() if one.key.partition(" ")[0] == kind.name] for kind in wanted}
    print("\n".join(table(shown)))
    return EXIT_NOT_GOOD_ENOUGH if any(one.problems for found in shown.values() for one in found) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="scripts/chaos", epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=["all"], metavar="KIND", help="all, or some of --list")
    parser.add_argument("--seeds", type=int, default=1, help="of each kind and command (default 1)")
    parser.add_argument("--window", type=float, default=2.0, help="seconds (default 2)")
    parser.add_argument("--ranks", type=int, default=2, help="of the job (default 2)")
    parser.add_argument("--seconds", type=float, default=900.0, help="begin no case after these (default 900)")
    parser.add_argument(
        "--results",
        type=Path,
        default=REPOSITORY / "chaos-out/results.json",
        help="kept there (default chaos-out/results.json)",
    )
    parser.add_argument(
        "--record", action="store_true", help="kept in the committed record, which other runs and clones go on with"
    )
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--table", action="store_true", help="only the table")
    parser.add_argument("--list", action="store_true", help="the kinds")
    args = parser.parse_args(argv)
    if args.record:
        args.results = RECORDED
    if unknown := sorted(set(args.kinds) - {"all", *(kind.name for kind in KINDS)}):
        parser.error(f"no such kind: {', '.join(unknown)}")
    return args


def read(path: Path) -> dict[str, Result]:
    """Results by key; none where none were written."""
    if not path.exists():
        return {}
    return {one["key"]: Result(**{**one, "problems": tuple(one["problems"])}) for one in json.loads(path.read_text())}


def _write(path: Path, done: dict[str, Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps([asdict(one) for one in done.values()], indent=1))
    partial.replace(path)


def _run(wanted: Sequence[Kind], args: argparse.Namespace, done: dict[str, Result]) -> None:
    if os.geteuid() != 0:
        raise LabError("observing needs root", exit_code=EXIT_NOT_PERMITTED)
    began, commit = time.monotonic(), _commit()
    cases = [(kind, turn, seed) for seed in range(args.seeds) for kind in wanted for turn in range(len(kind.commands))]
    left = [case for case in cases if key_of(*case) not in done]
    if not left:
        return
    with (
        tempfile.TemporaryDirectory(prefix="rankscope-chaos-job-") as folder,
        running(Path(folder) / "job", args.ranks) as job,
    ):
        _warm_up(job, args.window)
        for number, case in enumerate(left, 1):
            if time.monotonic() - began > args.seconds:
                print(f"{len(left) - number + 1} cases left: the same command goes on")
                return
            try:
                result = replace(judge(*case, job, args.window), commit=commit)
            except Impossible as error:
                print(f"{key_of(*case)}: left out: {error}", flush=True)
                continue
            done[result.key] = result
            _write(args.results, done)
            words = "; ".join(result.problems) or "good"
            print(
                f"{result.key:32} {result.outcome:9} {result.code:4} {result.seconds:5.1f} s  {words}: {result.said}"[
                    :200
                ],
                flush=True,
            )


def _commit() -> str:
    """Of this clone, with a + where something was changed since; '' outside of one."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )  # fmt: skip
    return said.stdout.strip()


def _warm_up(job: Job, window_s: float) -> None:
    """The first command compiles the probes, which is no fault and takes its time; and it must see the job."""
    with tempfile.TemporaryDirectory(prefix="rankscope-chaos-") as folder:
        ended = run(arguments(RECORD, Path(folder), window_s), Plan(Path(folder)), window_s)
    if ended.code != 0 or f"{len(job.ranks)} ranks" not in ended.said:
        raise LabError(f"without any fault: exit {ended.code}: {(ended.complained or ended.said).strip()[-300:]}")


def table(shown: dict[Kind, list[Result]]) -> list[str]:
    """One line per kind."""
    lines = [
        f"{'kind':17}{'cases':>6}{'verdict':>8}{'one line':>9}{'killed':>7}{'bad':>5}{'slowest s':>10}{'steps':>7}{'longest gap s':>14}"
    ]
    for kind, found in shown.items():
        if found:
            counts = [sum(one.outcome == outcome for one in found) for outcome in ("verdict", "one line", "killed")]
            slower = sorted(one.slower for one in found)[len(found) // 2]
            lines.append(
                f"{kind.name:17}{len(found):>6}{counts[0]:>8}{counts[1]:>9}{counts[2]:>7}{sum(bool(one.problems) for one in found):>5}"
                f"{max(one.seconds for one in found):>10.1f}{slower:>6.2f}x{max(one.gap_s for one in found):>14.2f}"
            )
    every = [one for found in shown.values() for one in found]
    lines.append(f"{'all':17}{len(every):>6}{'':>24}{sum(bool(one.problems) for one in every):>5}")
    lines += [f"  {one.key}: {'; '.join(one.problems)}: {one.said}" for one in every if one.problems]
    return lines
