"""By how much observing slows a job down: short stretches with and without an observer in one run, in random order, with the interval.

The probes are loaded once and stand by, as those of `rankscope watch` do; each stretch with an observer is one window of theirs. It is
compared with a stretch without one that stands next to it, before or after it by lot, and the mean of the logarithms of these ratios has an
interval (Student's t over pairs). What makes rows of a window and what lets go of the probes lies between stretches and is in none of them.

Beside it two figures that are known sooner. By how much more CPU time the ranks take for a step, in percent of the step: what probes do in
their threads, without the noise of waiting for each other. And what is to be expected: the kernel's own account of the programs, and a trap
for each hit of a probe on a function, `--trap` microseconds each (10 in a nested virtual machine, 1-2 on bare metal). Both as if all of it
lay on every rank's critical path.

`--json FILE` keeps every pair as it ends; the next call goes on: an interval that is wide enough takes minutes, one of 0.2 % hours.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scipy import stats

from labkit.launch import Job, Plan
from labkit.machine.shell import LabError, set_up
from labkit.step_times import Pace
from rankscope.diagnose.cli.output import progress
from rankscope.observer.recorder import Order, RecordOptions, stand_by
from rankscope.observer.window.folder import Window

TARGET_PERCENT = 0.3
RESOLVED_PERCENT = 0.2
_SETTLED_S = 1.0  # after probes are let go
_ON_FUNCTIONS = ("rs_enter_", "rs_leave_")  # a trap each
_BUSY_MS, _BUSY_VIEWS = 5.0, 120  # a job that leaves no core free


@dataclass(frozen=True, slots=True)
class Pair:
    """Two stretches next to each other. `hits`: of probes on functions; `programs_s`: the kernel's account; both of all ranks. `cpu_s`: of
    a rank in a step."""

    busy: bool
    ranks: int
    observed_first: bool
    seconds: float
    step_s: float
    observed_step_s: float
    hits: int
    programs_s: float
    cpu_s: float = math.nan
    observed_cpu_s: float = math.nan


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--busy", action="store_true", help="beside a job that leaves no core free")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--stretch", type=float, default=8.0, help="seconds")
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
        turns = _Turns(job, options, pairs, rng, ends, say)
        stand_by(RecordOptions(job=job.name), lambda _: turns.order(), turns.take, lambda _: None)
        turns.end()
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


class _Turns:
    """Which stretch is next. `order` is asked when no probe is attached, and `take` has what was observed."""

    def __init__(
        self, job: Job, options: argparse.Namespace, pairs: list[Pair], rng: random.Random, ends: float, say: Callable[[str], None]
    ) -> None:  # fmt: skip
        self._job, self._options, self._pairs, self._rng, self._ends, self._say = job, options, pairs, rng, ends, say
        self._alone: Pace | None = None  # the stretch before the one that is observed
        self._observed: tuple[Window, Pace] | None = None  # one that has none before it

    def order(self) -> Order:
        self._job.check_alive()
        self.end()
        left_s = self._ends - time.monotonic()
        self._say(f"pair {len(self._pairs) + 1}, {left_s / 60:.1f} minutes left")
        self._alone = self._stretch() if self._rng.random() < 0.5 else None
        return Order(self._options.stretch, last=left_s < 3 * self._options.stretch)

    def take(self, window: Window) -> None:
        began = window.manifest.start - (time.time() - time.monotonic())
        pace = _pace(self._job, began, began + window.manifest.seconds)
        if self._alone is None:
            self._observed = window, pace
        else:
            self._keep(window, pace, self._alone, observed_first=False)

    def end(self) -> None:
        """The stretch that a pair still lacks."""
        time.sleep(_SETTLED_S)
        if self._observed is not None:
            window, pace = self._observed
            self._observed = None
            self._keep(window, pace, self._stretch(), observed_first=True)

    def _stretch(self) -> Pace:
        began = time.monotonic()
        time.sleep(self._options.stretch)
        return _pace(self._job, began, time.monotonic())

    def _keep(self, window: Window, observed: Pace, alone: Pace, *, observed_first: bool) -> None:
        costs = window.manifest.costs
        self._pairs.append(
            Pair(
                self._options.busy,
                self._options.ranks,
                observed_first,
                window.manifest.seconds,
                alone.step_s,
                observed.step_s,
                sum(cost.run_count for cost in costs if cost.program.startswith(_ON_FUNCTIONS)),
                sum(cost.run_time_ns for cost in costs) / 1e9,
                statistics.fmean(alone.cpu_s),
                statistics.fmean(observed.cpu_s),
            )
        )
        if self._options.json:
            self._options.json.write_text(json.dumps([asdict(pair) for pair in self._pairs]))


def _pace(job: Job, since: float, until: float) -> Pace:
    pace = job.pace(since, until)
    if pace is None:
        raise LabError("the job made no step in a stretch: make it longer")
    return pace


def slowdown(pairs: Sequence[Pair]) -> tuple[float, float]:
    """Percent, and half its 95 % interval; infinite where one pair says nothing about it."""
    return _mean([math.log(pair.observed_step_s / pair.step_s) for pair in pairs])


def more_cpu(pairs: Sequence[Pair]) -> tuple[float, float]:
    """CPU time that a rank takes more for a step, in percent of the step, and half its 95 % interval."""
    return _mean([(pair.observed_cpu_s - pair.cpu_s) / pair.step_s for pair in pairs])


def _mean(shares: Sequence[float]) -> tuple[float, float]:
    half = math.inf
    if len(shares) > 1:
        half = float(stats.t.ppf(0.975, len(shares) - 1)) * statistics.stdev(shares) / math.sqrt(len(shares))
    return 100 * statistics.fmean(shares), 100 * half


def predicted(pairs: Sequence[Pair], trap_us: float) -> tuple[float, float]:
    """Percent of a rank's time: in the programs, and in the traps of probes on functions."""
    rank_s = sum(pair.ranks * pair.seconds for pair in pairs)
    programs_s, hits = sum(pair.programs_s for pair in pairs), sum(pair.hits for pair in pairs)
    return 100 * programs_s / rank_s, 100 * hits * trap_us / 1e6 / rank_s


def _summary(pairs: Sequence[Pair], busy: bool, trap_us: float) -> tuple[list[str], bool]:
    percent, half = slowdown(pairs)
    more, more_half = more_cpu(pairs)
    programs, traps = predicted(pairs, trap_us)
    lines = [
        f"{'no core free' if busy else 'cores free'}, {pairs[0].ranks} ranks, {len(pairs)} pairs of {pairs[0].seconds:.0f} s, "
        f"step {1e3 * statistics.median(pair.step_s for pair in pairs):.0f} ms",
        f"{'slow-down, %':34}{percent:8.2f}   95 %: {percent - half:.2f} to {percent + half:.2f}   target {TARGET_PERCENT}",
        f"{'more CPU time in a step, %':34}{more:8.2f}   95 %: {more - more_half:.2f} to {more + more_half:.2f}",
        f"{'expected: programs + traps, %':34}{programs + traps:8.2f}   {programs:.2f} + {traps:.2f}",
    ]
    if RESOLVED_PERCENT < half < math.inf:
        wanted = math.ceil(len(pairs) * (half / RESOLVED_PERCENT) ** 2)
        lines.append(f"{RESOLVED_PERCENT} % can be told from nothing with about {wanted} pairs")
    return lines, percent + half <= TARGET_PERCENT
