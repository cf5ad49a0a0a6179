"""The change detector of `rankscope watch` on simulated jobs: false alarms a week, and how many steps a shift takes to be seen.

Each shape of step times (step_shapes.py) runs as `--jobs` jobs of three days each, at one step a second; then a shift of 3, 5, 10 or 30 %
comes at a random step of a job that has run for an hour. Shapes that are kept aside, and seeds that are, were not looked at when the
constants were set.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchkit.service.step_shapes import ASIDE, TUNED, Shape
from rankscope.diagnose.infer.fleet.large.isolated import isolate_children
from rankscope.diagnose.stats.change import ChangeDetector, State

SHIFTS = (0.03, 0.05, 0.1, 0.3)
TARGET_WEEKLY = 1.0
TARGET_DELAY = 10  # steps, of 10 % at 2 % noise ("steady")
_JOB_S = 3 * 86400
_WEEK_S = 7 * 86400
_BEFORE, _TURN, _AFTER = (
    3000,
    1000,
    1000,
)  # steps before a shift, those among which it comes, and those in which it may be seen
_ASIDE_SEED = 1_000_000


@dataclass(frozen=True, slots=True)
class Delay:
    """Steps until a shift is seen; of those that were seen at all."""

    shift: float
    median: float | None
    p90: float | None
    seen: float


@dataclass(frozen=True, slots=True)
class Row:
    """One shape."""

    shape: str
    aside: bool
    days: float
    alarms: int
    weekly: float
    delays: tuple[Delay, ...]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=10, help="of each shape, three days each")
    parser.add_argument("--trials", type=int, default=40, help="of each shift of each shape")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.set_defaults(run=run, anywhere=True)


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 where every shape is within the targets."""
    began = time.monotonic()
    isolate_children()
    with ProcessPoolExecutor() as pool:
        rows = [
            *_measure(TUNED, False, options.seed, options, pool),
            *_measure(ASIDE, True, options.seed + _ASIDE_SEED, options, pool),
        ]
    print(
        f"{options.jobs} jobs of 3 days a shape, {options.trials} shifts each; steps until it is told, median (of 90 %)"
    )
    print(f"{'':20}{'alarms':>7}{'a week':>8}" + "".join(f"{shift:>14.0%}" for shift in SHIFTS))
    for row in rows:
        name = f"{row.shape}{' *' if row.aside else ''}"
        print(f"{name:20}{row.alarms:>7}{row.weekly:>8.2f}" + "".join(f"{_words(one):>14}" for one in row.delays))
    print(f"* kept aside; {time.monotonic() - began:.0f} s")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))
    steady = next(one for row in rows if row.shape == "steady" for one in row.delays if one.shift == 0.1)
    in_time = steady.p90 is not None and steady.p90 <= TARGET_DELAY
    return 0 if in_time and all(row.weekly <= TARGET_WEEKLY for row in rows) else 1


def _measure(
    shapes: Mapping[str, Shape], aside: bool, seed: int, options: argparse.Namespace, pool: Executor
) -> list[Row]:
    rows = []
    for name, shape in shapes.items():
        jobs = [pool.submit(false_alarms, shape, seed + job) for job in range(options.jobs)]
        delays = [pool.submit(delays_of, shape, shift, seed, options.trials) for shift in SHIFTS]
        alarms = sum(job.result() for job in jobs)
        weeks = options.jobs * _JOB_S / _WEEK_S
        rows.append(
            Row(name, aside, weeks * 7, alarms, alarms / weeks, tuple(one.result() for one in delays)),
        )
    return rows


def false_alarms(shape: Shape, seed: int, count: int = _JOB_S) -> int:
    """Alarms of one job that nothing is wrong with."""
    told = ChangeDetector().feed(shape(np.random.default_rng(seed), count))
    return sum(change.state is State.HIGHER for change in told)


def delays_of(shape: Shape, shift: float, seed: int, trials: int) -> Delay:
    """How soon a shift is told."""
    delays = []
    for trial in range(trials):
        rng = np.random.default_rng(seed + trial)
        values = shape(rng, _BEFORE + _TURN + _AFTER)
        begin = _BEFORE + int(rng.integers(_TURN))
        values[begin:] *= 1 + shift
        told = ChangeDetector().feed(values[: begin + _AFTER])
        delays += [change.at - begin + 1 for change in told if change.state is State.HIGHER and change.at >= begin][:1]
    if not delays:
        return Delay(shift, None, None, 0.0)
    every = np.array(delays + [np.inf] * (trials - len(delays)))
    median, p90 = (float(np.quantile(every, share, method="higher")) for share in (0.5, 0.9))
    return Delay(
        shift, median if np.isfinite(median) else None, p90 if np.isfinite(p90) else None, len(delays) / trials
    )


def _words(delay: Delay) -> str:
    if delay.median is None:
        return f"{delay.seen:.0%} seen"
    return f"{delay.median:.0f} ({'-' if delay.p90 is None else f'{delay.p90:.0f}'})"
