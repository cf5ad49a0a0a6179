"""From a score to a confidence that means something: of the verdicts given with 0.9, nine in ten should be right.

A suspect's score orders suspects (../README.md, "Confidence"); how often suspects of a score are right is counted, offline, on cases
with a known answer, and written down here as a map:

  1. pairs (score, right), sorted by score, in groups of at least `GROUP`
  2. p(group) = (right + 1) / (count + 2)          rule of succession (Laplace): few cases are never certainty
  3. isotonic regression: neighbours whose p falls are pooled (pool adjacent violators; Zadrozny & Elkan 2002)
  4. straight lines between the groups' mean scores, of the least group from its least score on; made strictly rising

`PROVENANCE` says what the map was fitted on: accusations in recorded windows of real jobs with real faults. It is as good as those are
like the world. `scripts/corpus calibrate` fits it anew.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.hypotheses.hypothesis import SCORE_LEAST

Pair = tuple[float, bool]  # score (or confidence), and whether the suspect was right

PROVENANCE = (
    "395 accusations of what is slow in 613 recorded windows, 394 of them right; most by rules that such windows had mended "
    "(scripts/corpus calibrate)"
)
POINTS: tuple[tuple[float, float], ...] = (
    (0.0, 0.4821), (0.26, 0.9626), (0.6302, 0.9663), (0.8814, 0.9688), (1.0, 0.97),
)  # fmt: skip
GROUP = 25
LEAST, MOST = SCORE_LEAST, POINTS[-1][1]  # of a confidence: nothing is certain
_RISE = limits.NOTHING  # least slope between two points
_Z_95 = 1.959963984540054  # normal quantile of 0.975: a two-sided 95 % interval


def calibrate(score: float, points: Sequence[tuple[float, float]] = POINTS) -> float:
    """The confidence for a score in [0, 1]."""
    if not math.isfinite(score):
        return LEAST
    return float(np.clip(np.interp(score, [x for x, _ in points], [y for _, y in points]), LEAST, MOST))


def calibrate_uncounted(score: float, points: Sequence[tuple[float, float]] = POINTS) -> float:
    """The confidence for a hang's score, an imbalance's, a guess's: min(score, calibrate(score)).

    The map was counted on witnessed faults of slow jobs. A hang is told by other facts (a process that is stopped or gone, a device that
    failed), an imbalance accuses nobody, and what nothing witnesses is hardly met in the lab: so the map may make them less sure, never
    surer than they say themselves.
    """
    return min(score, calibrate(score, points))


def fit(pairs: Iterable[Pair], group: int = GROUP) -> tuple[tuple[float, float], ...]:
    """The map for these (score, right). Too few pairs for one group: the identity, drawn half-way to one half."""
    known = sorted((float(score), bool(right)) for score, right in pairs if math.isfinite(score))
    if len(known) < group:
        return ((0.0, 0.25), (1.0, 0.75))
    groups = np.array_split(np.arange(len(known)), max(len(known) // group, 1))
    # One block per group: [right, count, sum of scores]
    blocks: list[list[float]] = []
    for rows in groups:
        chosen = [known[row] for row in rows]
        blocks.append([float(sum(right for _, right in chosen)), float(len(chosen)), sum(score for score, _ in chosen)])
        while len(blocks) > 1 and _share(blocks[-2]) >= _share(blocks[-1]):
            last = blocks.pop()
            blocks[-1] = [before + more for before, more in zip(blocks[-1], last, strict=True)]
    points = [(block[2] / block[1], _share(block)) for block in blocks]
    # Outside what was counted: towards 0 below; above, no surer than the surest.
    points = [(0.0, 0.5 * points[0][1]), (known[0][0], points[0][1]), *points, (1.0, points[-1][1])]
    return tuple(_rising(points))


def _share(block: Sequence[float]) -> float:
    return (block[0] + 1) / (block[1] + 2)


def _rising(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The points with strictly rising scores, and confidences that rise by `_RISE` of the score at least, to `MOST` at most."""
    before: tuple[float, float] | None = None
    for x, y in points:
        y = min(y, MOST - _RISE * (1 - x))  # noqa: PLW2901
        if before is not None:
            if x <= before[0] + 1e-6:
                continue
            y = max(y, before[1] + _RISE * (x - before[0]))  # noqa: PLW2901
        before = round(x, 4), round(y, 4)
        yield before


# ---- reliability -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bin:
    """Verdicts of about one confidence: how many, their mean confidence, how many were right, and between what that may be true."""

    low: float
    high: float
    count: int
    mean: float
    right: float
    least: float  # 95 % interval of the share that is right (Wilson 1927)
    most: float


def reliability(pairs: Iterable[Pair], edges: Sequence[float] = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)) -> tuple[Bin, ...]:
    """The reliability table: bins that hold no verdict are left out."""
    known = [(float(value), bool(right)) for value, right in pairs]
    bins = []
    for low, high in itertools.pairwise(edges):
        chosen = [
            (value, right) for value, right in known if low <= value < high or (high == edges[-1] and value == high)
        ]
        if chosen:
            right = sum(flag for _, flag in chosen)
            least, most = wilson(right, len(chosen))
            mean = sum(value for value, _ in chosen) / len(chosen)
            bins.append(Bin(low, high, len(chosen), mean, right / len(chosen), least, most))
    return tuple(bins)


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927): (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)."""
    if count == 0:
        return 0.0, 1.0
    share, spread = right / count, _Z_95**2 / count
    middle, half = share + spread / 2, math.sqrt(spread * (share * (1 - share) + spread / 4))
    return max((middle - half) / (1 + spread), 0.0), min((middle + half) / (1 + spread), 1.0)


def expected_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: mean over verdicts of |mean confidence - share right| of their bin."""
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.mean - each.right) for each in bins) / total if total else 0.0
