"""Function-level profiles and how far they are apart. Pure."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

LEAST_SHARE = 0.01
_MAX_SPLITS = 200
_SUMS = ("running", "attempts", "failed", "truncated", "waits", "wall_s", "kernel_cpu_s", "own_cpu_s", "other_cpu_s")


@dataclass(slots=True)
class Reading:
    """What one observer took from some processes in one stretch of time.

    `samples` are the stacks that it reports, by bare name of their leaf function; `running` how many of them were of threads
    on a CPU. `failed` stacks or readings gave no name; `attempts` is what they are a share of. CPU times in seconds:
    `kernel_cpu_s` in the BPF programs that take stacks, `own_cpu_s` of the observer's processes, `other_cpu_s` in BPF programs
    that serve other purposes, `start_cpu_s` before the first sample, in none of the others.
    """

    samples: Counter[str] = field(default_factory=Counter)
    running: float = 0.0
    attempts: int = 0
    failed: int = 0
    truncated: int = 0
    waits: int = 0
    wall_s: float = 0.0
    kernel_cpu_s: float = 0.0
    own_cpu_s: float = 0.0
    other_cpu_s: float = 0.0
    start_cpu_s: float = 0.0
    behind_s: float = 0.0

    @property
    def reported(self) -> int:
        """All stacks: of threads that run, and of those that wait where the observer takes them."""
        return self.samples.total() + self.waits

    @property
    def cpu_s(self) -> float:
        return self.kernel_cpu_s + self.own_cpu_s

    @property
    def per_1000_running_s(self) -> float:
        return 1000 * self.cpu_s / self.running if self.running else float("nan")

    @property
    def per_1000_reported_s(self) -> float:
        return 1000 * self.cpu_s / self.reported if self.reported else float("nan")

    @property
    def failed_percent(self) -> float:
        return 100 * self.failed / self.attempts if self.attempts else float("nan")


def together(readings: Sequence[Reading]) -> Reading:
    """The sum of several readings; start-up is the mean."""
    total = Reading()
    for reading in readings:
        total.samples.update(reading.samples)
        for name in _SUMS:
            setattr(total, name, getattr(total, name) + getattr(reading, name))
        total.behind_s = max(total.behind_s, reading.behind_s)
    total.start_cpu_s = statistics.fmean(reading.start_cpu_s for reading in readings) if readings else 0.0
    return total


def only(counts: Mapping[str, float], names: Container[str]) -> Counter[str]:
    """The part of a profile that concerns `names`."""
    return Counter({name: count for name, count in counts.items() if name in names})


def shares(counts: Mapping[str, float]) -> dict[str, float]:
    """Counts or seconds as shares of their sum."""
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Total variation distance, half the sum of |p - q|, over the functions with at least 1 % in either."""
    p, q = shares(one), shares(other)
    if not p or not q:
        return float("nan")
    names = {name for name in p.keys() | q.keys() if max(p.get(name, 0.0), q.get(name, 0.0)) >= LEAST_SHARE}
    return sum(abs(p.get(name, 0.0) - q.get(name, 0.0)) for name in names) / 2


def split_distances(ours: Sequence[Counter[str]], theirs: Sequence[Counter[str]]) -> tuple[float, float]:
    """(distance of `ours` to them, their distance to themselves), from samples of equal size.

    They have twice as many turns as we. Each way to deal theirs into two halves gives one distance between the halves, which
    is their noise, and two distances to ours; the result is the mean over all ways (200 of them where there are more).
    """
    turns = range(len(theirs))
    ways = list(combinations(turns, len(theirs) // 2))
    if len(ways) > _MAX_SPLITS:
        ways = random.Random(1).sample(ways, _MAX_SPLITS)
    pooled = sum(ours, Counter())
    agreement, noise = [], []
    for way in ways:
        half = sum((theirs[turn] for turn in way), Counter())
        rest = sum((theirs[turn] for turn in turns if turn not in way), Counter())
        noise.append(distance(half, rest))
        agreement += [distance(pooled, half), distance(pooled, rest)]
    return statistics.fmean(agreement), statistics.fmean(noise)


def expected_noise(truth: Mapping[str, float], taken: int, quantile: float = 0.5) -> float:
    """The distance to `truth` of so many independent samples drawn from it: the noise of a perfect observer."""
    p = shares(truth)
    if not p or not taken:
        return float("nan")
    weights = np.array(list(p.values()))
    drawn = np.random.default_rng(1).multinomial(taken, weights, 2000) / taken
    counted = np.where(np.maximum(drawn, weights) >= LEAST_SHARE, np.abs(drawn - weights), 0.0)
    return float(np.quantile(counted.sum(axis=1) / 2, quantile))
