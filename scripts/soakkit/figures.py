"""What was seen, summed up: growth of the observer, the job's steps with and without it, a table. What of that is too much: judged.py.

A soak may be made of parts, each with an observer of its own that begins anew. What grows in each of them would have grown by all of it
in one observer that had lived as long: so the growths of the parts are multiplied.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

SETTLING_S = 600.0
_TENTHS_OF = 30  # values: of fewer a tenth is no median
_FEW_STEPS = 5  # of an interval say nothing of it


@dataclass(frozen=True, slots=True)
class Interval:
    """One window, or one pause of the same length without any. Times by a clock that runs while the soak does, from part to part.

    `once`: a command started for this window alone, of which `rss_bytes` and `descriptors` are the peak; else what is held after it.
    `ranks`: that it told of; `stepped`: those of which it told steps; `watched`: whether it told of processes that a rank had started.
    `ended`: ranks of the job that were no more at its end.
    """

    began_s: float
    ended_s: float
    observed: bool
    once: bool = False
    rss_bytes: int = 0
    descriptors: int = 0
    ranks: int = 0
    lost: int = 0
    failed: str = ""
    part: int = 0
    stepped: int = 0
    watched: bool = False
    ended: int = 0


HELD: dict[str, Callable[[Interval], float]] = {
    "memory": lambda one: one.rss_bytes, "descriptors": lambda one: one.descriptors
}  # fmt: skip


def parts_of(intervals: Sequence[Interval]) -> list[list[Interval]]:
    """By part, in order."""
    return [list(part) for _, part in itertools.groupby(intervals, lambda one: one.part)]


def length_s(intervals: Sequence[Interval]) -> float:
    """How long all parts took."""
    return sum(part[-1].ended_s - part[0].began_s for part in parts_of(intervals))


def growth(times_s: Sequence[float], values: Sequence[float]) -> float:
    """By how much a series grows from its first moment to its last, in shares. Single readings jump by pages: so by the median of the
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


def settled(intervals: Sequence[Interval], once: bool) -> list[Interval]:
    """Windows of one sort after the first ten minutes of their part; of a shorter part after its first third."""
    return [
        one
        for part in parts_of(intervals)
        for one in part
        if one.observed and one.once == once and not one.failed
        and one.began_s >= part[0].began_s + min(SETTLING_S, length_s(part) / 3)
    ]  # fmt: skip


def grown(intervals: Sequence[Interval], value: Callable[[Interval], float]) -> float:
    """Growth over all parts together, in shares."""
    return (
        math.prod(
            1.0 + growth([one.began_s for one in part], [value(one) for one in part]) for part in parts_of(intervals)
        )
        - 1.0
    )


def slowed(intervals: Sequence[Interval], times: Sequence[float]) -> tuple[list[float], list[float]]:
    """Of each round of windows the job's steps in them to those in the pauses before and after: of the median step, and of the mean."""
    medians, means = [], []
    for part in parts_of(intervals):
        rounds = [list(one) for _, one in itertools.groupby(part, lambda one: one.observed)]
        for number, windows in enumerate(rounds):
            if not windows[0].observed:
                continue
            observed = steps_in(times, windows)
            around = [
                pause for near in rounds[max(number - 1, 0) : number + 2] if not near[0].observed for pause in near
            ]
            alone = steps_in(times, around)
            if min(len(observed), len(alone)) >= _FEW_STEPS:
                medians.append(statistics.median(observed) / statistics.median(alone) - 1.0)
                means.append(statistics.fmean(observed) / statistics.fmean(alone) - 1.0)
    return medians, means


def steps_in(times: Sequence[float], intervals: Sequence[Interval]) -> list[float]:
    """Lengths of the steps that lie wholly in one of the intervals, which are in order."""
    found: list[float] = []
    place = 0
    if not intervals:
        return found
    within = times[bisect_left(times, intervals[0].began_s) : bisect_right(times, intervals[-1].ended_s)]
    for earlier, later in itertools.pairwise(within):
        while place < len(intervals) and intervals[place].ended_s < later:
            place += 1
        if place < len(intervals) and intervals[place].began_s <= earlier:
            found.append(later - earlier)
    return found


HEADER = (
    f"{'minutes':>8}{'windows':>9}{'failed':>7}{'ranks':>6}{'held MB':>9}{'fds':>5}{'peak MB':>9}{'fds':>5}{'lost':>7}"
    f"{'step ms':>9}{'without':>9}"
)


def table(intervals: Sequence[Interval], times: Sequence[float], every_s: float = 600.0) -> list[str]:
    """One line per ten minutes, then what counts: whether it is flat, and what it costs."""
    if not intervals:
        return [HEADER]
    return [HEADER, *rows(intervals, times, every_s), *sums(intervals, times)]


def rows(intervals: Sequence[Interval], times: Sequence[float], every_s: float, ended: bool = False) -> list[str]:
    """A line for each `every_s`; with `ended` of those alone to which no interval will be added."""
    if not intervals:
        return []
    began = intervals[0].began_s
    lines = []
    for number in range(int((intervals[-1].began_s - began) // every_s) + (not ended)):
        part = [one for one in intervals if number * every_s <= one.began_s - began < (number + 1) * every_s]
        if part:
            lines.append(f"{(part[-1].ended_s - began) / 60:>8.1f}" + _line(part, times))
    return lines


def sums(intervals: Sequence[Interval], times: Sequence[float]) -> list[str]:
    """Whether what observes is flat, and what it costs the job."""
    lines = []
    for once, words in ((False, "one process"), (True, "a command each")):
        found = settled(intervals, once)
        rss, descriptors = (grown(found, value) for value in HELD.values())
        parts = len(parts_of(found))
        in_parts = f" of {parts} parts" if parts > 1 else ""
        lines.append(
            f"{words}: {len(found)} windows after settling{in_parts}; memory {rss:+.1%}, descriptors {descriptors:+.1%}"
        )
    medians, means = slowed(intervals, times)
    if medians:
        lines.append(
            f"steps: in {len(medians)} rounds, to the pauses beside each, median {statistics.median(medians):+.1%}; "
            f"of their means {statistics.median(means):+.1%}"
        )
    observed, alone = (steps_in(times, [one for one in intervals if one.observed == kind]) for kind in (True, False))
    if observed and alone:
        with_s, without_s = statistics.fmean(observed), statistics.fmean(alone)
        lines.append(
            f"steps: mean {with_s * 1e3:.2f} ms with, {without_s * 1e3:.2f} ms without ({with_s / without_s - 1:+.1%}); "
            f"median {statistics.median(observed) * 1e3:.2f} and {statistics.median(alone) * 1e3:.2f} ms"
        )
    return lines


def _line(part: Sequence[Interval], times: Sequence[float]) -> str:
    held, peaks = (
        [one for one in part if one.observed and not one.failed and one.once == once] for once in (False, True)
    )
    observed, alone = (steps_in(times, [one for one in part if one.observed == kind]) for kind in (True, False))
    ranks = [one.ranks for one in held] or [0]
    return (
        f"{sum(one.observed for one in part):>9}{sum(bool(one.failed) for one in part):>7}{min(ranks):>6}"
        f"{held[-1].rss_bytes / (1 << 20) if held else 0:>9.1f}{held[-1].descriptors if held else 0:>5}"
        f"{max((one.rss_bytes for one in peaks), default=0) / (1 << 20):>9.1f}{max((one.descriptors for one in peaks), default=0):>5}"
        f"{sum(one.lost for one in part):>7}"
        f"{statistics.fmean(observed) * 1e3 if observed else 0:>9.2f}{statistics.fmean(alone) * 1e3 if alone else 0:>9.2f}"
    )
