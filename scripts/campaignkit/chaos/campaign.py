"""The campaign of scripts/chaos: faults of the host, one case for each kind and command, each with so many seeds."""

from __future__ import annotations

import argparse
import inspect
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from campaignkit import sources
from campaignkit.campaign import Judged, Keep
from campaignkit.chaos.case import LONGEST_GAP_S, MOST_SLOWER, Outcome, judge
from campaignkit.chaos.command import LATE_S, VERDICTS, Plan, run
from campaignkit.chaos.faults.kinds import KINDS
from campaignkit.chaos.job import Job, running
from campaignkit.chaos.scene import RECORD, WATCH, WATCHED_S, arguments
from campaignkit.results import Result, today
from labkit.machine.shell import EXIT_NOT_PERMITTED, Impossible, LabError

# The median over the cases of a kind of how much slower the job stepped, to that of the kind `nothing`. Of 590 cases on two cores the
# kinds lay between 0.97 and 1.13 (commands that end in half a second, most of it importing), `nothing` at 1.00; with ten more at work
# on them a crowd was at 1.21. The noise of a single case, +-0.2, is +-0.05 in a median of twenty.
MOST_SLOWER_THAN_NOTHING = 1.3
_FEWEST = 10  # cases of a kind: the median of fewer says nothing
_NOTHING = "nothing"
_HERE, _JUDGE_NOTHING = Path(__file__).parent, ("__init__.py", "campaign.py")
OUTCOMES = {"verdict": "verdict", "one line": "one_line", "killed": "killed"}
BY_CASE = {
    f"{kind.name} {kind.commands[turn]}-{turn}": (kind, turn) for kind in KINDS for turn in range(len(kind.commands))
}


class Chaos:
    """Each case is a kind of fault and the command that meets it; `count` is how many seeds were run."""

    name = "chaos"
    lacking_code = 0
    epilog = f"""Each case runs the real `rankscope record`, `diagnose`, `sweep` or `watch` beside a small job while something is wrong with
the host. It is good if the command ends in a verdict or one clear line within its window + {LATE_S:g} s, with no exit code but the
documented ones, leaves nothing in the kernel, on the disk or running, and tells what the fault must bring about; and if all ranks go
on stepping, none {LONGEST_GAP_S:g} s without a step, nor in steps of more than {MOST_SLOWER:g} times the length.
"""

    def cases(self) -> Mapping[str, str]:
        """All kinds, each with all of its commands."""
        return {case: kind.what for case, (kind, _) in BY_CASE.items()}

    def options(self, parser: argparse.ArgumentParser) -> None:
        """How much is run, and for how long."""
        parser.add_argument("--seeds", type=int, default=1, help="of each kind and command (default 1)")
        parser.add_argument("--window", type=float, default=1.0, help="seconds (default 1)")
        parser.add_argument("--ranks", type=int, default=2, help="of the job (default 2)")
        parser.add_argument("--seconds", type=float, default=900.0, help="begin no case after these (default 900)")

    def wanted(self, args: argparse.Namespace) -> float:
        """Seeds of each case."""
        return float(args.seeds)

    def sources(self, cases: Sequence[str]) -> Mapping[str, str]:
        """Digest of the command, of what makes this kind of fault, and of what judges."""
        judges = [
            *sources.kit_files("chaos/programs"),
            *(path for path in _HERE.glob("*.py") if path.name not in _JUDGE_NOTHING),
        ]
        found = {}
        for case in cases:
            kind, turn = BY_CASE[case]
            makes = Path(inspect.getsourcefile(inspect.unwrap(kind.hurt)) or __file__)
            found[case] = sources.of_command(kind.commands[turn], {*judges, makes})
        return found

    def run(self, left: Mapping[str, float], digests: Mapping[str, str], args: argparse.Namespace, keep: Keep) -> None:
        """The next seeds of each case, one seed of all before the next."""
        if os.geteuid() != 0:
            raise LabError("observing needs root", exit_code=EXIT_NOT_PERMITTED)
        commit, running_s, began = sources.commit(), dict[str, float](), time.monotonic()
        todo = [(seed, case) for case, done in left.items() for seed in range(int(done), args.seeds)]
        with _job(args.ranks) as job:
            for seed, case in sorted(todo, key=lambda one: one[0]):
                if time.monotonic() - began > args.seconds:
                    return
                kind, turn = BY_CASE[case]
                command = kind.commands[turn]
                if command not in running_s:  # the first one compiles the probes, which is no fault
                    running_s[command] = _undisturbed_s(command, job, args.window)
                try:
                    outcome = judge(kind, turn, seed, job, args.window, running_s[command])
                except Impossible as error:
                    print(f"{case} {seed}: left out: {error}", flush=True)
                    continue
                keep(result_of(case, seed, outcome, commit, digests[case]))
                words = "; ".join(outcome.problems) or "good"
                line = f"{case} {seed}: {outcome.outcome}, {outcome.code}, {outcome.seconds:.1f} s; {words}: {outcome.said}"
                print(line[:200], flush=True)

    def table(self, found: Mapping[str, Result]) -> list[str]:
        """One line per case. Seconds are without those in the queue for a CPU, behind others."""
        lines = [
            f"{'case':28}{'runs':>5}{'verdict':>8}{'one line':>9}{'killed':>7}{'bad':>4}{'most s':>7}{'steps':>7}{'gap s':>6}{'fork s':>7}"
        ]
        for case, row in found.items():
            ends = [int(row.sums.get(name, 0)) for name in OUTCOMES.values()]
            fork = f"{row.most['fork_s']:.2f}" if row.most.get("fork_s") else ""
            lines.append(
                f"{case:28}{row.count:>5.0f}{ends[0]:>8}{ends[1]:>9}{ends[2]:>7}{row.sums.get('bad', 0):>4.0f}{row.most['seconds']:>7.1f}"
                f"{row.median('slower'):>6.2f}x{row.most['gap_s']:>6.2f}{fork:>7}"
            )
        bad = sum(row.sums.get("bad", 0) for row in found.values())
        return [*lines, f"all: {sum(row.count for row in found.values()):,.0f} runs, {bad:.0f} of them bad"]

    def judge(self, found: Mapping[str, Result], args: argparse.Namespace) -> Judged:
        """What only all cases of a kind show together."""
        return Judged(tuple(slowed(found)))


def result_of(case: str, seed: int, one: Outcome, commit: str, source: str) -> Result:
    """One run as a row of results."""
    sums = {OUTCOMES[one.outcome]: 1.0} | ({"bad": 1.0} if one.problems else {})
    most = {
        "seconds": round(max(0.0, one.seconds - one.queued_s), 2),
        "gap_s": one.gap_s,
        "fork_s": round(one.fork_s, 3),
    }
    problems = tuple(f"seed {seed}: {problem}: {one.said}"[:200] for problem in one.problems)
    day = today()
    return Result("chaos", case, day, commit, source, 1.0, sums, most, {"slower": [one.slower]}, problems)


def slowed(found: Mapping[str, Result]) -> list[str]:
    """Kinds whose cases disturb the job more than the command does without a fault, all together."""
    slower: dict[str, list[float]] = {}
    for case, row in found.items():
        slower.setdefault(case.split()[0], []).extend(row.series.get("slower", ()))
    medians = {kind: _median(values) for kind, values in slower.items() if len(values) >= _FEWEST}
    usual = min(max(medians.get(_NOTHING, 1.0), 1.0), MOST_SLOWER_THAN_NOTHING)
    allowed = {kind: (1.0 if kind == _NOTHING else usual) * MOST_SLOWER_THAN_NOTHING for kind in medians}
    return [
        f"{kind}: steps took {median:.2f} times as long in the median of its cases; {allowed[kind]:.2f} are allowed"
        for kind, median in medians.items()
        if median > allowed[kind]
    ]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


@contextmanager
def _job(ranks: int) -> Iterator[Job]:
    with (
        tempfile.TemporaryDirectory(prefix="rankscope-chaos-job-") as folder,
        running(Path(folder) / "job", ranks) as job,
    ):
        yield job


def _undisturbed_s(command: str, job: Job, window_s: float) -> float:
    """How long the command takes without a fault; and it must see the job, and import nothing that its digest does not hold."""
    with tempfile.TemporaryDirectory(prefix="rankscope-chaos-") as folder:
        plan = Plan(Path(folder), environment=dict(sources.PRINTS_IMPORTS))
        plan.signal_after_s = WATCHED_S if command == WATCH else None
        ended = run(arguments(command, Path(folder), window_s, job.pids), plan, window_s)
    if unseen := sources.missing(command, ended.complained):
        raise LabError(f"{command} imports {', '.join(unseen)}, which its digest does not hold (sources.py)")
    if ended.code not in VERDICTS or (command == RECORD and f"{len(job.ranks)} ranks" not in ended.said):
        raise LabError(f"without any fault: exit {ended.code}: {(ended.complained or ended.said).strip()[-300:]}")
    return WATCHED_S if command == WATCH else ended.seconds
