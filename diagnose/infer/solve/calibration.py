"""Calibrated confidence: of verdicts given with 0.9, nine in ten should be right.

A suspect's score is in ../causes/rank/suspects.py and ../causes/rows.py. How often suspects of a score are
right is counted offline, on cases with a known answer, and stored here as a map:

  1. pairs (score, right), sorted by score, in groups of at least `GROUP`
  2. p(group) = (right + 1) / (count + 2): rule of succession (Laplace), since few cases are never
     certainty
  3. isotonic regression: neighbours whose p falls are pooled (pool adjacent violators; Zadrozny &
     Elkan 2002)
  4. straight lines between the groups' mean scores, from the least score of the least group on;
     made strictly rising

`PROVENANCE` says what the map was fitted on: suspects in recorded windows of real jobs with real
faults. It is as good as those represent other jobs. `scripts/corpus calibrate` fits it anew.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import SCORE_LEAST

Pair = tuple[float, bool]  # score (or confidence), and whether the suspect was right

PROVENANCE = (
    "395 accusations of what is slow in 613 recorded windows, 394 of them right; most by rules that such windows had mended "
    "(scripts/corpus calibrate)"
)
POINTS: tuple[tuple[float, float], ...] = (
    (0.0, 0.4821), (0.26, 0.9626), (0.6302, 0.9663), (0.8814, 0.9688), (1.0, 0.97),
)  # fmt: skip
GROUP = 25
LEAST, MOST = SCORE_LEAST, POINTS[-1][1]  # bounds of a confidence: nothing is certain
_RISE = limits.NOTHING  # least slope between two points
_Z_95 = 1.959963984540054  # normal quantile of 0.975: a two-sided 95 % interval


def calibrate(score: float, points: Sequence[tuple[float, float]] = POINTS) -> float:
    """Map a score in [0, 1] to a confidence; `LEAST` for a score that is not finite."""
    if not math.isfinite(score):
        return LEAST
    return float(np.clip(np.interp(score, [x for x, _ in points], [y for _, y in points]), LEAST, MOST))


def calibrate_uncounted(score: float, points: Sequence[tuple[float, float]] = POINTS) -> float:
    """Confidence of a hang, an imbalance, waste or a guess: min(score, calibrate(score)).

    The map was counted on slow jobs with witnessed faults. A hang rests on other facts (a stopped
    or missing process, a failed device), an imbalance names no fault, and faults without a witness
    are rare in the lab: the map may lower these scores, but never raise them.
    """
    return min(score, calibrate(score, points))


def fit(pairs: Iterable[Pair], group: int = GROUP) -> tuple[tuple[float, float], ...]:
    """Fit the map to pairs (score, right), as points (score, confidence).

    With fewer pairs than one group: from (0, 0.25) to (1, 0.75).
    """
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
    # Beyond the counted scores: towards 0 below, no more confident above.
    points = [(0.0, 0.5 * points[0][1]), (known[0][0], points[0][1]), *points, (1.0, points[-1][1])]
    return tuple(_rising(points))


def _share(block: Sequence[float]) -> float:
    """Estimated share that is right: (right + 1) / (count + 2); `block`: right, count, sum of scores."""
    return (block[0] + 1) / (block[1] + 2)


def _rising(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield points with strictly rising scores and confidences, at most `MOST`.

    Confidences rise by at least `_RISE` of the rise of the score.
    """
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
    """Verdicts of similar confidence: number, mean confidence, and share right with its 95 %
    interval.
    """

    low: float
    high: float
    count: int
    mean: float
    right: float
    least: float  # 95 % interval of the share that is right (Wilson 1927)
    most: float


def reliability(pairs: Iterable[Pair], edges: Sequence[float] = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)) -> tuple[Bin, ...]:
    """Return the reliability table by bins of confidence, without empty bins."""
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
    """Return the 95 % interval of the share `right` / `count` (Wilson 1927); (0, 1) if count is 0.

    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n)
    """
    if count == 0:
        return 0.0, 1.0
    share, spread = right / count, _Z_95**2 / count
    middle, half = share + spread / 2, math.sqrt(spread * (share * (1 - share) + spread / 4))
    return max((middle - half) / (1 + spread), 0.0), min((middle + half) / (1 + spread), 1.0)


def expected_error(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error; 0 without verdicts.

    Mean over verdicts of |mean confidence - share right| of their bin.
    """
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.mean - each.right) for each in bins) / total if total else 0.0
