"""Exact medians over millions of ranks, by group and column.

Blocks of ranks are tasks; no process sorts all.

bracket  from a sample of each group: values four standard errors of the median's rank to each side
block    number of known values, number below the bracket, and the values inside: a sixteenth
median   the middle values, counted from those below; of the column if the bracket misses them
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose.stats.robust import ROWS, nan_median
from rankscope.probes.base.arrays import Floats, Ints, Singles

_SAMPLE = 1 << 12  # ranks sampled per group; a smaller group is used whole


def blocks(rows: int) -> list[slice]:
    """Slices of rows that form one task each: megabytes, some hundredths of a second."""
    return [slice(at, at + ROWS) for at in range(0, rows, ROWS)]


def medians(matrices: Sequence[Singles], group: Ints, pool: Executor) -> list[Floats]:
    """Medians of each matrix (ranks x columns) by group and column; NaN where nothing is known.

    `group`: group number by rank, from 0.
    """
    groups, columns = int(group.max(initial=-1)) + 1, matrices[0].shape[1]
    found = [np.full((groups, columns), np.nan) for _ in matrices]
    brackets = np.full((2, len(matrices), groups, columns), np.nan, dtype=np.float32)
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(np.bincount(group, minlength=groups))
    for one, (first, last) in enumerate(zip(np.append(0, ends), ends, strict=False)):
        places = np.linspace(first, last - 1, min(_SAMPLE, last - first)).astype(np.int64)
        for number, matrix in enumerate(matrices):
            some = matrix if len(places) == len(matrix) else matrix[order[places]]
            if len(places) == last - first:
                found[number][one] = nan_median(some, 0)
            else:
                brackets[:, number, one] = _bracket(some)
    large = np.flatnonzero(np.diff(ends, prepend=0) > _SAMPLE)
    if not len(large):
        return found
    tasks = [
        pool.submit(_inside, [matrix[rows] for matrix in matrices], group[rows], large.tolist(), brackets)
        for rows in blocks(len(group))
    ]
    parts = [task.result() for task in tasks]
    for number, matrix in enumerate(matrices):
        for place, one in enumerate(large.tolist()):
            known = sum(part.known[number, place] for part in parts)
            below = sum(part.below[number, place] for part in parts)
            for column in range(columns):
                inside = np.concatenate([part.inside[number][place][column] for part in parts])
                middle = _middle(inside, int(known[column]), int(below[column]))
                if middle is None:
                    middle = float(nan_median(matrix[group == one, column], 0))
                found[number][one, column] = middle
    return found


def _bracket(sample: Singles) -> Singles:
    """Return bounds between which the median of a whole group lies almost surely (lower and upper, by column).

    -inf and inf in a column with too few known values, or none.
    """
    ordered = np.sort(sample, axis=0)  # NaN last
    known = (~np.isnan(sample)).sum(axis=0)
    away = np.ceil(2 * np.sqrt(known)).astype(np.int64)  # the rank of a median has a standard error of sqrt(n) / 2
    low, high = (known - 1) // 2 - away, known // 2 + away
    each, last = np.arange(sample.shape[1]), len(sample) - 1
    return np.array(
        [
            np.where(low >= 0, ordered[low.clip(0, last), each], -np.inf),
            np.where(high < known, ordered[high.clip(0, last), each], np.inf),
        ],
        dtype=np.float32,
    )


@dataclass(frozen=True, slots=True)
class _Inside:
    """Part of a block by matrix, group and column: count known, count below the bracket, values
    inside it."""

    known: Ints
    below: Ints
    inside: list[list[list[Singles]]]


def _inside(matrices: Sequence[Singles], group: Ints, large: Sequence[int], brackets: Singles) -> _Inside:
    """Count and collect a block's values against the brackets of the groups `large`.

    Runs on a worker.
    """
    shape = (len(matrices), len(large), matrices[0].shape[1])
    known, below = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    inside: list[list[list[Singles]]] = [[[] for _ in large] for _ in matrices]
    for place, one in enumerate(large):
        mine = group == one
        for number, matrix in enumerate(matrices):
            by_column = np.ascontiguousarray((matrix if mine.all() else matrix[mine]).T)
            low, high = brackets[0, number, one][:, None], brackets[1, number, one][:, None]
            known[number, place] = by_column.shape[1] - np.isnan(by_column).sum(axis=1)
            below[number, place] = (by_column < low).sum(axis=1)
            between = (by_column >= low) & (by_column <= high)
            inside[number][place] = [values[there] for values, there in zip(by_column, between, strict=True)]
    return _Inside(known, below, inside)


def _middle(inside: Singles, known: int, below: int) -> float | None:
    """Median of `known` values, `below` of them below `inside`.

    None if `inside` does not contain it.
    """
    if not known:
        return float("nan")
    low, high = (known - 1) // 2 - below, known // 2 - below
    if low < 0 or high >= len(inside):
        return None
    ordered = np.partition(inside, (low, high))
    return float(np.mean(ordered[low : high + 1]))
