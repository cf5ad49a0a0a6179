"""The command line of scripts/lab."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from labkit import demo, guard, table, verdicts
from labkit.faults import ALL
from labkit.faults.base import DOSES
from labkit.launch import Job
from labkit.run import SIZES, Case, Result, plan_of, run_case
from labkit.shell import EXIT_NOT_GOOD_ENOUGH, LabError

EPILOG = """examples:
  scripts/lab --faults all --seeds 5        the whole examination
  scripts/lab --faults python-slow,none --seeds 1 --ranks 4 --hosts 2
  scripts/lab --effects --faults all        what each fault does to the job, without observing it
  scripts/lab --run-only 60 --ranks 4       a healthy job to look at
  scripts/lab --clean                       remove what an interrupted lab left

exit codes: 0 good enough, 1 not good enough, 64 wrong usage, 69 something is missing, 77 not root, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        return _act(args)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        if error.help:
            print(f"     {error.help}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep Python from complaining once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("\nlab: interrupted; job, namespaces and control groups are removed", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(64, f"lab: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="scripts/lab",
        description=sys.modules["labkit"].__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--faults", type=_faults, default=list(ALL), metavar="all|A,B", help=f"of: {', '.join(ALL)}")
    parser.add_argument(
        "--seeds", type=_seeds, default=[1], metavar="N|A-B", help="seeds 1 to N, or A to B (default 1)"
    )
    parser.add_argument("--ranks", type=int, choices=range(2, 9), metavar="2-8", help="default: by seed")
    parser.add_argument("--hosts", type=int, choices=range(1, 5), metavar="1-4", help="default: by seed")
    parser.add_argument("--window", type=float, default=10.0, metavar="S", help="seconds observed (default 10)")
    parser.add_argument("--dose", choices=DOSES, default="strong", help="how strong the faults are")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every case with its verdict and the job's own times"
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep logs and verdicts of all cases in lab-out/, not only of bad ones",
    )
    parser.add_argument("--effects", action="store_true", help="do not observe; measure what the faults do to the job")
    parser.add_argument("--run-only", type=float, metavar="S", help="run a healthy job for S seconds (0: until Ctrl-C)")
    parser.add_argument(
        "--demo", action="store_true", help="one slow function, observed and reported (see scripts/demo)"
    )
    parser.add_argument("--clean", action="store_true", help="remove what an interrupted lab left, and end")
    return parser


def _faults(text: str) -> list[str]:
    chosen = list(ALL) if text == "all" else text.split(",")
    unknown = sorted(set(chosen) - set(ALL))
    if unknown:
        raise argparse.ArgumentTypeError(f"no such fault: {', '.join(unknown)} (there are: all, {', '.join(ALL)})")
    return chosen


def _seeds(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    seeds = list(range(int(first), int(last) + 1)) if dash else list(range(1, int(first) + 1))
    if not seeds or seeds[0] < 1:
        raise argparse.ArgumentTypeError("seeds are numbers from 1 on")
    return seeds


def _act(args: argparse.Namespace) -> int:
    with guard.lab_to_oneself() as leftovers:
        if args.clean:
            print(f"{leftovers} leftovers removed" if leftovers else "nothing was left behind")
            return 0
        if args.demo:
            return demo.run(args.window)
        if args.run_only is not None:
            return _run_only(args)
        return _examine(args)


def _examine(args: argparse.Namespace) -> int:
    cases = [
        Case(fault, seed, args.ranks, args.hosts, args.window, args.dose, not args.effects, args.keep)
        for seed in args.seeds
        for fault in args.faults
    ]
    results: list[Result] = []
    began = time.monotonic()
    for number, case in enumerate(cases, 1):
        results.append(_run_with_progress(case, f"[{number}/{len(cases)}]", began))
        if args.json:
            args.json.write_text(json.dumps([result.as_json() for result in results], indent=1))
    print()
    lines = table.effect_table(results) if args.effects else table.verdict_table(results)
    print("\n".join(lines))
    return 0 if args.effects or table.good_enough(results) else EXIT_NOT_GOOD_ENOUGH


def _run_with_progress(case: Case, place: str, began: float) -> Result:
    plan = plan_of(case)
    title = f"{place} {case.fault} seed {case.seed}, {plan.ranks} ranks on {plan.hosts} hosts"
    live = sys.stderr.isatty()

    def progress(stage: str) -> None:
        if live:
            print(
                f"\r\033[K{time.monotonic() - began:5.0f} s {title}: {stage} …",
                end="",
                file=sys.stderr,
                flush=True,
            )

    try:
        result = run_case(case, progress)
    finally:
        if live:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
    outcome = "" if not case.observe and result.outcome == verdicts.SILENT else f" {result.outcome.upper()}"
    print(f"{time.monotonic() - began:5.0f} s {title}:{outcome} {table.case_line(result)}", flush=True)
    return result


def _run_only(args: argparse.Namespace) -> int:
    ranks = args.ranks or SIZES[0][0]
    plan = plan_of(Case("none", args.seeds[0], ranks, args.hosts))
    with Job(plan, args.seeds[0]) as job:
        job.wait_until_healthy()
        for rank, process in enumerate(job.processes):
            print(f"rank {rank} pid {process.pid} node {job.hosts[plan.host_of(rank)].node}")
        print(f"steps in {job.folder}/rank<N>.steps\nready", flush=True)
        began, idle = time.monotonic(), _idle_s()
        while not args.run_only or time.monotonic() - began < args.run_only:
            time.sleep(0.5)
            job.check_alive()
        idle = (_idle_s() - idle) / (time.monotonic() - began) / (os.cpu_count() or 1)
        pace = job.pace(began, time.monotonic())
        if pace:
            print(
                f"{pace.steps} steps, mean {1e3 * pace.step_s:.1f} ms, "
                f"CPU per rank and step {1e3 * statistics.fmean(pace.cpu_s):.1f} ms, cores {100 * idle:.0f} % idle"
            )
    return 0


def _idle_s() -> float:
    """Idle time of all cores since boot, seconds (/proc/stat)."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
