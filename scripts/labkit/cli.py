"""The command line of scripts/lab."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from rich.console import Console
from rich.live import Live
from rich.text import Text

from labkit import demo, table, through_store, verdicts
from labkit.faults import ALL, CLASSIC, Fault
from labkit.faults.base import DOSES
from labkit.machine import guard
from labkit.machine.command import Parser, ended
from labkit.machine.shell import EXIT_USAGE, LabError, set_up
from labkit.programs import PROGRAMS
from labkit.result_file import examined, printed, save
from labkit.run import CPU, SIZES, Bench, Case, Result, judge_again, run_cases

EPILOG = """examples:
  scripts/lab --faults all --seeds 10 --json results.json      the whole examination: hours
  scripts/lab --faults all --seeds 10 --resume results.json    go on where it stopped; the table is over all of it
  scripts/lab --faults classic --doses strong                  the first six kinds of fault and a healthy run
  scripts/lab --faults python,none --seeds 1 --ranks 4 --hosts 2
  scripts/lab --effects --faults all                           what each fault does to the job, without observing it
  scripts/lab --judge-again lab-out --json after.json          ask once more about the windows that were kept
  scripts/lab --gpu --faults all --seeds 5                     the GPU lab: eight ranks on an emulated machine
  scripts/lab --hangs --seeds 3                                what stops a job for ever, and what only looks so
  scripts/lab --public --seeds 3                               where the time goes: public reports rebuilt in kind
  scripts/lab --store                                          four hosts, a spool each, judged from an S3 server
  scripts/lab --run-only 60 --ranks 4                          a healthy job to look at
  scripts/lab --clean                                          remove what an interrupted lab left

exit codes: 0 good enough, 1 not good enough, 64 wrong usage, 69 something is missing, 77 not root, 130 interrupted"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    args = parser.parse_args(argv)
    return ended("lab", lambda: _act(args), "job, namespaces and control groups are removed")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="scripts/lab",
        description=sys.modules["labkit"].__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _which_cases(parser)
    _what_to_do(parser)
    return parser


def _which_cases(parser: argparse.ArgumentParser) -> None:
    among = f"names or groups ({', '.join(_groups())}), of: {', '.join(ALL)}; with --gpu: others"
    seeds = "seeds 1 to N, or A to B (default 1)"
    parser.add_argument("--faults", default="all", metavar="all|A,B", help=among)
    parser.add_argument("--gpu", action="store_true", help="the GPU lab (8 ranks on 2 hosts)")
    parser.add_argument("--seeds", type=_seeds, default=[1], metavar="N|A-B", help=seeds)
    parser.add_argument("--program", choices=PROGRAMS, default="job", help="what is trained (default job)")
    parser.add_argument("--ranks", type=int, choices=range(2, 9), metavar="2-8", help="default: by seed")
    parser.add_argument("--hosts", type=int, choices=range(1, 5), metavar="1-4", help="default: by seed")
    parser.add_argument("--window", type=float, default=10.0, metavar="S", help="seconds observed (default 10)")
    parser.add_argument("--doses", choices=("both", *DOSES), default="both", help="how strong the faults are")


def _what_to_do(parser: argparse.ArgumentParser) -> None:
    def flag(name: str, words: str) -> None:
        parser.add_argument(name, action="store_true", help=words)

    def file(name: str, words: str, metavar: str = "FILE") -> None:
        parser.add_argument(name, type=Path, metavar=metavar, help=words)

    file("--json", "write every case with its verdict and the job's own times")
    file("--resume", "as --json; leave out the cases that are already in it, and print the table over all of it")
    file("--judge-again", "judge the windows kept in DIR once more, and end", "DIR")
    flag("--keep", "keep logs and verdicts of all cases in lab-out/, not only of bad ones")
    flag("--effects", "do not observe; measure what the faults do to the job")
    parser.add_argument(
        "--jobs", metavar="all|A,B", help="ordinary jobs of many frameworks instead of the lab's own (labkit/jobs)"
    )
    flag("--hangs", "what stops a job for ever, and what only looks so, told by `watch` and `diagnose` (labkit/hangs)")
    flag(
        "--public",
        "public reports of slow training, rebuilt in kind: what all ranks share, or one alone (labkit/public)",
    )
    parser.add_argument("--run-only", type=float, metavar="S", help="run a healthy job for S seconds (0: until Ctrl-C)")
    flag(
        "--store", "a job over four hosts, recorded into spools and judged from an S3 server (labkit/through_store.py)"
    )
    flag("--demo", "one slow function, observed and reported (see scripts/demo)")
    flag("--clean", "remove what an interrupted lab left, and end")


def _groups(known: dict[str, type[Fault]] = ALL) -> list[str]:
    classic = ["classic"] if set(CLASSIC) <= known.keys() else []
    return [*classic, *dict.fromkeys(kind.group for kind in known.values())]


def faults_named(text: str, known: dict[str, type[Fault]]) -> list[str]:
    """Names of faults from names and groups, in the order in which they are known."""
    words = set(text.split(","))
    chosen = [
        name
        for name, kind in known.items()
        if words & {"all", name, kind.group} or ("classic" in words and name in CLASSIC)
    ]
    unknown = sorted(words - {"all", "classic", *known, *(kind.group for kind in known.values())})
    if unknown or not chosen:
        groups = ", ".join(_groups(known))
        why = f"no such fault: {', '.join(unknown)} (there are: all, {', '.join(known)}; groups: {groups})"
        raise LabError(why, exit_code=EXIT_USAGE)
    return chosen


def _bench(args: argparse.Namespace) -> Bench:
    if not args.gpu:
        return CPU
    if args.ranks or args.hosts or args.program != "job":
        raise LabError(
            "the GPU lab has one program, 8 ranks on 2 hosts", "Leave --ranks, --hosts and --program out.", EXIT_USAGE
        )
    from labkit.gpu.lab import GPU

    return GPU


def _seeds(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    seeds = list(range(int(first), int(last) + 1)) if dash else list(range(1, int(first) + 1))
    if not seeds or seeds[0] < 1:
        raise argparse.ArgumentTypeError("seeds are numbers from 1 on")
    return seeds


def _act(args: argparse.Namespace) -> int:
    if args.jobs:
        from labkit.jobs import cli as jobs

        return jobs.act(args)
    if args.hangs:
        from labkit.hangs import cli as hangs

        return hangs.act(args, faults_named)
    if args.public:
        from labkit.public import cli as public

        return public.act(args)
    bench = _bench(args)
    faults = faults_named(args.faults, bench.faults)
    if not args.clean:
        set_up(torch=not (args.gpu or args.judge_again))
    if args.judge_again:
        results = list(judge_again(args.judge_again))
        if args.json:
            save(args.json, results)
        return _print_table(args, bench, results)
    with guard.lab_to_oneself() as leftovers:
        if args.clean:
            print(f"{leftovers} leftovers removed" if leftovers else "nothing was left behind")
            return 0
        if args.demo:
            return demo.run(args.window)
        if args.store:
            return through_store.act(args.window, args.seeds[0])
        if args.run_only is not None:
            return _run_only(args, bench)
        return _examine(args, bench, faults)


def _examine(args: argparse.Namespace, bench: Bench, faults: list[str]) -> int:
    doses = tuple(DOSES) if args.doses == "both" else (args.doses,)
    cases = [
        Case(fault, seed, args.ranks, args.hosts, args.window, dose, not args.effects, args.keep, args.program)
        for seed in args.seeds
        for fault in faults
        for dose in doses
        if dose == doses[0] or not bench.faults[fault].one_dose
        if fault not in PROGRAMS[args.program].lacks
    ]
    with _Progress(bench) as progress:
        results = examined(
            args,
            Result,
            cases,
            lambda left: run_cases(left, progress, bench),
            progress.ended,
            key=lambda case: case.key,
        )
    return _print_table(args, bench, results)


def _print_table(args: argparse.Namespace, bench: Bench, results: list[Result]) -> int:
    if args.effects:
        return printed((bench.effect_table or table.effect_table)(results), True)
    return printed(table.verdict_table(results, bench.wanted), table.good_enough(results, bench.wanted))


class _Progress:
    """What goes on now, in a line that is redrawn where somebody looks on; a line for each case that ended."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._began = time.monotonic()
        self._console = Console(stderr=True)
        self._live = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> _Progress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, case: Case, stage: str) -> None:
        if self._live.is_started:
            line = f"{time.monotonic() - self._began:5.0f} s {self._title(case)}: {stage} …"
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

    def _title(self, case: Case) -> str:
        plan = self._bench.plan_of(case)
        return f"{case.fault} {case.dose} seed {case.seed}, {plan.ranks} ranks on {plan.hosts} hosts"

    def ended(self, result: Result, number: int, of: int) -> None:
        if self._live.is_started:
            self._live.update(Text(""), refresh=True)
        quiet = not result.case.observe and result.outcome == verdicts.SILENT
        outcome = "" if quiet else f" {result.outcome.upper()}"
        line = f"[{number}/{of}] {self._title(result.case)}:{outcome} {table.case_line(result)}"
        print(f"{time.monotonic() - self._began:5.0f} s {line} [{result.wall_s:.0f} s]", flush=True)


def _run_only(args: argparse.Namespace, bench: Bench) -> int:
    ranks = args.ranks or SIZES[0][0]
    plan = bench.plan_of(Case("none", args.seeds[0], ranks, args.hosts, program=args.program))
    with bench.job(plan, args.seeds[0]) as job:
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
    """Idle time of all cores since boot, seconds."""
    times = psutil.cpu_times()
    return float(times.idle + times.iowait)
