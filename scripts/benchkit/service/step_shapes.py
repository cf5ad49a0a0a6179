"""Step times of simulated jobs: what healthy ones look like. Half of the shapes are kept aside: nothing was fitted to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rankscope.probes.base.arrays import Floats

Shape = Callable[[np.random.Generator, int], Floats]


def _wandering(rng: np.random.Generator, count: int, rho: float) -> Floats:
    """An AR(1) series of unit variance."""
    from scipy.signal import lfilter  # of the tests' environment; the product does not need it

    white = rng.standard_normal(count) * np.sqrt(1 - rho**2)
    white[0] = rng.standard_normal()
    return np.asarray(lfilter([1.0], [1.0, -rho], white), dtype=np.float64)


def _noise(rng: np.random.Generator, count: int, share: float) -> Floats:
    return np.asarray(np.exp(share * rng.standard_normal(count)), dtype=np.float64)


def steady(rng: np.random.Generator, count: int) -> Floats:
    return 1.0 * _noise(rng, count, 0.02)


def noisy(rng: np.random.Generator, count: int) -> Floats:
    return 1.0 * _noise(rng, count, 0.10)


def autocorrelated(rng: np.random.Generator, count: int) -> Floats:
    return np.asarray(np.exp(0.04 * _wandering(rng, count, 0.9)), dtype=np.float64)


def checkpoints(rng: np.random.Generator, count: int) -> Floats:
    """Every 500 steps one that takes 20 to 30 steps' time, and is followed by two that refill caches."""
    values = steady(rng, count)
    for behind, least, most in ((0, 20, 30), (1, 1.3, 1.6), (2, 1.1, 1.3)):
        at = np.arange(499 + behind, count, 500)
        values[at] *= rng.uniform(least, most, len(at))
    return values


def evaluations(rng: np.random.Generator, count: int) -> Floats:
    """Ten minutes after each evaluation comes the next: four values that are 3 to 5 times as long, on a job with 3 % noise."""
    values = 1.0 * _noise(rng, count, 0.03)
    long = rng.uniform(3, 5)
    at = 600
    while at + 4 < count:
        values[at : at + 4] *= long
        at += 4 + int(np.searchsorted(np.cumsum(values[at + 4 : at + 800]), 600.0))
    return values


def sequence_lengths(rng: np.random.Generator, count: int) -> Floats:
    """A step is as long as its longest sequence: skewed, 25 % wide."""
    return np.asarray(0.6 + 0.4 * np.maximum.reduce(rng.lognormal(0.0, 0.5, (4, count))) / 1.7, dtype=np.float64)


def warm_up(rng: np.random.Generator, count: int) -> Floats:
    """Compiles at the first steps, and becomes faster for some hundred."""
    at = np.arange(count)
    return steady(rng, count) * (1 + 0.5 * np.exp(-at / 150)) * np.where(at < 3, 30.0, 1.0)


def drift(rng: np.random.Generator, count: int) -> Floats:
    """The day's temperature (± 3 %) and 10 % a week besides."""
    at = np.arange(count)
    return steady(rng, count) * (1 + 0.03 * np.sin(at / 86400 * 2 * np.pi) + 0.1 * at / 604800)


def long_memory(rng: np.random.Generator, count: int) -> Floats:
    """Wanders on three scales at once, 10 to 1,000 steps."""
    parts = sum(_wandering(rng, count, rho) for rho in (0.9, 0.99, 0.999))
    return np.asarray(np.exp(0.01 * parts + 0.02 * rng.standard_normal(count)), dtype=np.float64)


TUNED: dict[str, Shape] = {
    "steady": steady, "noisy": noisy, "autocorrelated": autocorrelated, "checkpoints": checkpoints, "evaluations": evaluations,
    "sequence lengths": sequence_lengths, "warm-up": warm_up, "drift": drift,
    "long memory": long_memory,
}  # fmt: skip


def heavy_tails(rng: np.random.Generator, count: int) -> Floats:
    """Student's t with 3 degrees of freedom, 3 %."""
    return np.asarray(np.exp(0.03 * np.clip(rng.standard_t(3, count), -30, 30)), dtype=np.float64)


def two_levels(rng: np.random.Generator, count: int) -> Floats:
    """A neighbour comes and goes, for 500 steps at a time in the mean: 2 % more while it is there."""
    there = np.repeat(np.arange(2 * count // 500 + 2) % 2, 1 + rng.geometric(1 / 500, 2 * count // 500 + 2))[:count]
    return steady(rng, count) * (1 + 0.02 * np.resize(there, count))


def accumulation(rng: np.random.Generator, count: int) -> Floats:
    """Every fourth pass is followed by the optimiser."""
    return steady(rng, count) * np.where(np.arange(count) % 4 == 3, 1.4, 1.0)


def two_pauses(rng: np.random.Generator, count: int) -> Floats:
    """Checkpoints every 700 steps, evaluations of three steps every 900, on 5 % noise."""
    values = 1.0 * _noise(rng, count, 0.05)
    values[699::700] *= 15
    for behind in range(3):
        at = np.arange(899 + behind, count, 900)
        values[at] *= rng.uniform(2, 3, len(at))
    return values


def irregular_stalls(rng: np.random.Generator, count: int) -> Floats:
    """One step in 200 is 1.5 to 4 times as long, without any rhythm."""
    stalled = rng.random(count) < 1 / 200
    return steady(rng, count) * np.where(stalled, rng.uniform(1.5, 4, count), 1.0)


def buckets(rng: np.random.Generator, count: int) -> Floats:
    """Batches of like length come 20 steps in a row."""
    level = rng.choice([0.7, 0.85, 1.0, 1.2, 1.5], -(-count // 20))
    return np.repeat(level, 20)[:count] * _noise(rng, count, 0.03)


def exact(rng: np.random.Generator, count: int) -> Floats:
    """A job on its own machine: 0.2 %."""
    return 1.0 * _noise(rng, count, 0.002)


def loggers(rng: np.random.Generator, count: int) -> Floats:
    """The host runs ahead of the GPU: nine short steps and the tenth waits for all of them."""
    return steady(rng, count) * np.where(np.arange(count) % 10 == 9, 5.5, 0.5)


ASIDE: dict[str, Shape] = {
    "heavy tails": heavy_tails, "two levels": two_levels, "accumulation": accumulation, "two pauses": two_pauses,
    "irregular stalls": irregular_stalls, "buckets": buckets, "exact": exact, "loggers": loggers,
}  # fmt: skip
