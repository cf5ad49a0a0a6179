"""What a soak has seen, summed up: growth of the observer, forks of the host, the job's steps with and without an observer. Pure.

A soak is made of pieces, each with an observer of its own. What grows in each of them would have grown by all of it in one observer that
had lived as long: so the growths of the pieces are multiplied.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

SETTLING_S = 600.0
_TENTHS_OF = 30  # values: of fewer a tenth is no median
_FEW_STEPS = 5  # of a sample say nothing of it


class Who(IntEnum):
    """Who observes while a sample is taken: nobody, a process that takes windows for hours, a command for one window, the service."""

    NOBODY = 0
    HELD = 1
    ONCE = 2
    WATCH = 3


IN_WORDS = {Who.HELD: "one process", Who.ONCE: "a command each", Who.WATCH: "the service"}


@dataclass(frozen=True, slots=True)
class Sample:
    """Some seconds of a soak. `at_s`: since its piece began. `rss_mb`, `fds`, `cpu_s`: of the observer; of a command, its peak. `fork_ms`:
    the longest fork of the host; `probes_ms`: how long one of them waited for probes put in or taken out, at most. `median_ms`,
    `mean_ms`, `steps`: of the job's rank 0."""

    piece: float
    who: int
    at_s: float
    seconds: float
    rss_mb: float = 0.0
    fds: float = 0.0
    cpu_s: float = 0.0
    fork_ms: float = 0.0
    median_ms: float = 0.0
    mean_ms: float = 0.0
    steps: float = 0.0
    probes_ms: float = 0.0


Series = Mapping[str, Sequence[float]]
_NAMES = tuple(field.name for field in fields(Sample))
HELD: dict[str, Callable[[Sample], float]] = {"memory": lambda one: one.rss_mb, "descriptors": lambda one: one.fds}


def series_of(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Samples as the columns of a row of results."""
    return {name: [round(float(getattr(one, name)), 3) for one in samples] for name in _NAMES}


def samples_of(series: Series) -> list[Sample]:
    """And back, in order of time."""
    forks = series.get("fork_ms", ())  # of rows from before it was known what a fork waited for
    rows = zip(*(series.get(name, forks if name == "probes_ms" else ()) for name in _NAMES), strict=True)
    return sorted((Sample(*row) for row in rows), key=lambda one: (one.piece, one.at_s))


def pieces_of(samples: Iterable[Sample]) -> list[list[Sample]]:
    """By piece, in order."""
    return [list(piece) for _, piece in itertools.groupby(samples, lambda one: one.piece)]


def growth(times_s: Sequence[float], values: Sequence[float]) -> float:
    """By how much a series grows from its first moment to its last, as a share. Single readings jump by pages: so by the median of the
    slopes between all pairs, and, where something grows late or at once, by the medians of its first and its last tenth; the larger."""
    if len(values) < 4:
        return 0.0
    at, value = np.asarray(times_s, float), np.asarray(values, float)
    first, second = np.triu_indices(len(value), 1)
    slope = float(np.median((value[second] - value[first]) / (at[second] - at[first])))
    begun = float(np.median(value - slope * (at - at[0])))
    found = slope * float(at[-1] - at[0]) / begun if begun > 0 else 0.0
    if (tenth := len(value) // 10) and len(value) >= _TENTHS_OF:
        # Of what grows evenly nine tenths lie between the middles of these two.
        found = max(found, (float(np.median(value[-tenth:]) / np.median(value[:tenth])) - 1.0) / 0.9)
    return found


def settled(samples: Sequence[Sample], who: Who) -> list[Sample]:
    """Samples of one sort after the first ten minutes of their piece; of a shorter piece after its first third."""
    return [
        one
        for piece in pieces_of(samples)
        for one in piece
        if one.who == who and one.rss_mb and one.at_s >= min(SETTLING_S, (piece[-1].at_s + piece[-1].seconds) / 3)
    ]


def grown(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    """Growth over all pieces together, as a share."""
    shares = (growth([one.at_s for one in piece], [value(one) for one in piece]) for piece in pieces_of(samples))
    return math.prod(1.0 + share for share in shares) - 1.0


def slope_mb_per_hour(samples: Sequence[Sample]) -> float:
    """Mean of the pieces' growths of memory, per hour."""
    found = [
        growth([one.at_s for one in piece], [one.rss_mb for one in piece]) * piece[0].rss_mb / (piece[-1].at_s - piece[0].at_s) * 3600
        for piece in pieces_of(samples)
        if len(piece) >= 4
    ]  # fmt: skip
    return statistics.fmean(found) if found else 0.0


def slowed(samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """The job's steps while it is observed, to those in the pauses before and after: of each round the median step, and the mean."""
    medians, means = [], []
    for piece in pieces_of(samples):
        rounds = [list(one) for _, one in itertools.groupby(piece, lambda one: one.who != Who.NOBODY)]
        for number, observed in enumerate(rounds):
            if observed[0].who == Who.NOBODY:
                continue
            near = [
                one for part in rounds[max(number - 1, 0) : number + 2] if part[0].who == Who.NOBODY for one in part
            ]
            with_it, alone = steps_of(observed), steps_of(near)
            if with_it and alone:
                medians.append(with_it[0] / alone[0] - 1.0)
                means.append(with_it[1] / alone[1] - 1.0)
    return medians, means


def steps_of(samples: Sequence[Sample]) -> tuple[float, float] | None:
    """Median and mean step of some samples, ms: the median of their medians, and the mean of all steps; None where there are too few."""
    timed = [one for one in samples if one.steps >= _FEW_STEPS]
    if not timed:
        return None
    return statistics.median(one.median_ms for one in timed), sum(one.mean_ms * one.steps for one in timed) / sum(
        one.steps for one in timed
    )


def share_of_a_core(samples: Sequence[Sample]) -> float:
    """CPU time of the observer over the time that it was there."""
    seen = [one for one in samples if one.who != Who.NOBODY]
    return sum(one.cpu_s for one in seen) / sum(one.seconds for one in seen) if seen else 0.0


def longest_wait_s(samples: Sequence[Sample]) -> float:
    """How long a fork waited for probes, at most."""
    return max((one.probes_ms for one in samples), default=0.0) / 1e3


def longest_fork_s(samples: Sequence[Sample], *, observed: bool) -> float:
    """With an observer, or without one."""
    return max((one.fork_ms for one in samples if (one.who != Who.NOBODY) == observed), default=0.0) / 1e3
