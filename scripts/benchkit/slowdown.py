"""By how much observing slows a job down: short stretches with and without an observer in one run, in random order, with the interval.

Two rounds on a quiet machine differ by more than an observer costs, so each stretch with an observer is compared with the one without that
stands next to it, before or after it by lot, and the mean of the logarithms of these ratios has an interval (Student's t over pairs). What
loads and lets go of the probes stands between stretches and is in none of them. Beside it what is to be expected: the kernel's own account
of the programs, and a trap for each hit of a probe on a function, `--trap` microseconds each (10 in a nested virtual machine, 1-2 on bare
metal), as if all of it lay on every rank's critical path.

`--json FILE` keeps every pair as it ends; the next call goes on: an interval that is wide enough takes minutes, one of 0.2 % hours.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scipy import stats

from benchkit import recording
from labkit.launch import Job, Plan
from labkit.machine.shell import LabError, set_up
from rankscope.diagnose.cli.output import progress

TARGET_PERCENT = 0.3
RESOLVED_PERCENT = 0.2
_SETTLED_S = 1.0  # after probes are let go
_BUSY_MS, _BUSY_VIEWS = 5.0, 120  # a job that leaves no core free


@dataclass(frozen=True, slots=True)
class Pair:
    """Two stretches next to each other. `hits`: of probes on functions; `programs_s`: the kernel's account; both of all ranks."""

    busy: bool
    ranks: int
    observed_first: bool
    seconds: float
    step_s: float
    observed_step_s: float
    hits: int
    programs_s: float


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--busy", action="store_true", help="beside a job that leaves no core free")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--stretch", type=float, default=4.0, help="seconds")
    parser.add_argument("--trap", type=float, default=10.0, help="what a probe on a function costs here, microseconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the slow-down of all pairs kept; 0 where the interval lies below the target."""
    set_up(torch=True)
    pairs = _read(options.json) if options.json else []
    ends = time.monotonic() + 60 * options.minutes
    rng = random.Random(f"{options.seed} {len(pairs)}")
    plan = Plan(options.ranks, options.hosts, 0)
    if options.busy:
        plan = Plan(options.ranks, options.hosts, 0, device_ms=_BUSY_MS, views=_BUSY_VIEWS, free_cores=True)
    with Job(plan, options.seed) as job, progress() as say:
        job.wait_until_healthy()
        time.sleep(_SETTLED_S)
        took_s = 0.0
        while time.monotonic() + took_s < ends:
            began = time.monotonic()
            say(f"pair {len(pairs) + 1}, {(ends - began) / 60:.1f} minutes left")
            pairs.append(_pair(job, options, rng.random() < 0.5))
            took_s = time.monotonic() - began
            if options.json:
                options.json.write_text(json.dumps([asdict(pair) for pair in pairs]))
    fine = True
    for busy in (False, True):
        mine = [pair for pair in pairs if pair.busy == busy]
        if mine:
            lines, met = _summary(mine, busy, options.trap)
            print("\n".join(lines))
            fine &= met
    return 0 if fine else 1


def _read(path: Path) -> list[Pair]:
    try:
        return [Pair(**one) for one in json.loads(path.read_text())]
    except FileNotFoundError:
        return []


def _pair(job: Job, options: argparse.Namespace, observed_first: bool) -> Pair:
    job.check_alive()
    alone_s = _alone(job, options.stretch) if not observed_first else 0.0
    done = recording.record(options.stretch)
    observed_s = _step_s(job, done.window_began, done.window_began + done.window_s)
    time.sleep(_SETTLED_S)
    if observed_first:
        alone_s = _alone(job, options.stretch)
    return Pair(
        options.busy,
        options.ranks,
        observed_first,
        done.window_s,
        alone_s,
        observed_s,
        done.function_hits,
        done.kernel_s,
    )


def _alone(job: Job, seconds: float) -> float:
    began = time.monotonic()
    time.sleep(seconds)
    return _step_s(job, began, time.monotonic())


def _step_s(job: Job, since: float, until: float) -> float:
    pace = job.pace(since, until)
    if pace is None:
        raise LabError("the job made no step in a stretch: make it longer")
    return pace.step_s


def slowdown(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Percent, and half its 95 % interval; infinite where one pair says nothing about it."""
    logs = [math.log(pair.observed_step_s / pair.step_s) for pair in pairs]
    half = math.inf
    if len(logs) > 1:
        half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return 100 * statistics.fmean(logs), 100 * half


def predicted(pairs: Sequence[Pair], trap_us: float) -> tuple[float, float]:
    """Percent of a rank's time: in the programs, and in the traps of probes on functions."""
    rank_s = sum(pair.ranks * pair.seconds for pair in pairs)
    programs_s, hits = sum(pair.programs_s for pair in pairs), sum(pair.hits for pair in pairs)
    return 100 * programs_s / rank_s, 100 * hits * trap_us / 1e6 / rank_s


def _summary(pairs: Sequence[Pair], busy: bool, trap_us: float) -> tuple[list[str], bool]:
    percent, half = slowdown(pairs)
    programs, traps = predicted(pairs, trap_us)
    lines = [
        f"{'no core free' if busy else 'cores free'}, {pairs[0].ranks} ranks, {len(pairs)} pairs of {pairs[0].seconds:.0f} s, "
        f"step {1e3 * statistics.median(pair.step_s for pair in pairs):.0f} ms",
        f"{'slow-down, %':34}{percent:8.2f}   95 %: {percent - half:.2f} to {percent + half:.2f}   target {TARGET_PERCENT}",
        f"{'expected: programs + traps, %':34}{programs + traps:8.2f}   {programs:.2f} + {traps:.2f}",
    ]
    if RESOLVED_PERCENT < half < math.inf:
        wanted = math.ceil(len(pairs) * (half / RESOLVED_PERCENT) ** 2)
        lines.append(f"{RESOLVED_PERCENT} % can be told from nothing with about {wanted} pairs")
    return lines, percent + half <= TARGET_PERCENT
