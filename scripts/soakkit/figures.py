"""What was seen, summed up: growth of the observer, and the job's steps with and without it.

A soak may be made of parts, each with an observer of its own that begins anew. What grows in each of them would have grown by all of it
in one observer that had lived as long: so the growths of the parts are multiplied.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FLAT = 0.01  # growth after the first minutes
SETTLING_S = 600.0


@dataclass(frozen=True, slots=True)
class Interval:
    """One window, or one pause of the same length without any. Times by a clock that runs while the soak does, from part to part.

    `once`: a command started for this window alone, of which `rss_bytes` and `descriptors` are the peak; else what is held after it.
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


HELD: dict[str, Callable[[Interval], float]] = {
    "memory": lambda one: one.rss_bytes, "descriptors": lambda one: one.descriptors
}  # fmt: skip


def parts_of(intervals: Sequence[Interval]) -> list[list[Interval]]:
    """By part, in order."""
    return [list(part) for _, part in itertools.groupby(intervals, lambda one: one.part)]


def length_s(intervals: Sequence[Interval]) -> float:
    """How long all parts took."""
    return sum(part[-1].ended_s - part[0].began_s for part in parts_of(intervals))


def growth(values: Sequence[float]) -> float:
    """How much the second half of a series lies above the first, in shares: of medians, as single readings jump by pages."""
    if len(values) < 4:
        return 0.0
    half = len(values) // 2
    return statistics.median(values[half:]) / statistics.median(values[:half]) - 1.0


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
    return math.prod(1.0 + growth([value(one) for one in part]) for part in parts_of(intervals)) - 1.0


def steps_in(times: Sequence[float], intervals: Sequence[Interval]) -> list[float]:
    """Lengths of the steps that lie wholly in one of the intervals, which are in order."""
    found, place = [], 0
    for earlier, later in itertools.pairwise(times):
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


def problems(intervals: Sequence[Interval]) -> list[str]:
    """What is not as it must be."""
    found = [f"a window failed: {one.failed}" for one in intervals if one.failed]
    for once, words in ((False, "one process"), (True, "a command each")):
        part = settled(intervals, once)
        for name, value in HELD.items():
            if (more := grown(part, value)) > FLAT:
                found.append(f"{words}: {name} grew by {more:.1%}")
    return found
