"""Reputation: after how many jobs a component that is always a little slow is named, and how often a sound one is.

named        of ten fleets of 10,000 components, drawn anew into jobs of 64, one is 2 % of the step slower, beside 1 % by which sound
             ones differ: the job in which it was named, the 90th percentile over the fleets; and sound ones that were named
false names  of sound components in 1,000 weeks of fleets, fifty jobs a week

    scripts/bench reputation
"""

from __future__ import annotations

import argparse

import numpy as np

from rankscope.diagnose.past.reputation import needed_nats
from rankscope.diagnose.stats import detector
from rankscope.probes.arrays import Floats

COMPONENTS, JOBS, SLOW, DIFFER = 10_000, 50, 0.02, 0.01
FLEETS, SIZE = 10, 64  # components of a job
WEEKS, JOBS_A_WEEK, AT_ONCE, SOUND = 1000, 50, 100, 512
FALSE_MOST = 1
_WEEK_S = 7 * 86400.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1)
    parser.set_defaults(run=run, anywhere=True)


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 when all targets are met."""
    jobs, wrong = zip(*(_one_fleet(options.seed + at) for at in range(FLEETS)), strict=True)
    late = float(np.percentile(jobs, 90))
    false = _false_names(options.seed)
    rows = (
        (f"2 % slow among {COMPONENTS}: named after jobs, 90th percentile", late, JOBS),
        (f"sound ones named meanwhile, {FLEETS} fleets", float(sum(wrong)), FALSE_MOST),
        (f"sound ones named in {WEEKS} weeks of fleets", float(false), FALSE_MOST),
    )
    for what, value, most in rows:
        print(f"{what:<60} {value:>6.1f}   target <= {most:<4} {'met' if value <= most else 'MISSED'}")
    return 0 if all(value <= most for _, value, most in rows) else 1


def _one_fleet(seed: int) -> tuple[float, int]:
    """The job in which the slow one was named, infinite where in none; sound ones that were named."""
    rng = np.random.default_rng(seed)
    state = np.zeros((COMPONENTS, len(detector.SHIFTS)))
    needed = needed_nats(COMPONENTS, COMPONENTS * JOBS, [0.0, _WEEK_S])
    named, false = float("inf"), np.zeros(COMPONENTS, dtype=bool)
    for job in range(JOBS):
        order = rng.permutation(COMPONENTS)
        for first in range(0, COMPONENTS, SIZE):
            members = order[first : first + SIZE]
            excess = DIFFER * (rng.normal(0, 1, len(members)) + rng.standard_t(3, len(members)) / 3)
            excess[members == 0] += SLOW
            state[members] = detector.followed(state[members], _nats(excess))
        over = detector.combined(state) >= needed
        named = min(named, job + 1.0) if over[0] else named
        false[1:] |= over[1:]
    return named, int(false.sum())


def _false_names(seed: int) -> int:
    """Fleets of sound components side by side, for as many weeks as make WEEKS together; each component is named once."""
    rng = np.random.default_rng(seed)
    state = np.zeros((AT_ONCE * SOUND, len(detector.SHIFTS)))
    needed = needed_nats(SOUND, JOBS_A_WEEK * SOUND, [0.0, _WEEK_S])
    nats = _nats(np.arange(SOUND, dtype=np.float64))
    named = np.zeros(len(state), dtype=bool)
    for _ in range(WEEKS // AT_ONCE * JOBS_A_WEEK):
        place = np.argsort(rng.random((AT_ONCE, SOUND)), axis=1).reshape(-1)
        state = detector.followed(state, nats[place])
        named |= detector.combined(state) >= needed
    return int(named.sum())


def _nats(excess: Floats) -> Floats:
    return detector.evidence(detector.normal_scores(excess), len(excess))
