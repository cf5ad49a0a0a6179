"""What of the diagnoser is fitted on the corpus: functions that take cases and return the fitted numbers.

A new one is a function here and its name in FITS. It may ask the judge as often as it likes, also with other numbers (every
threshold of a grid, say): answers are remembered, so leaving out one kind after the other costs no second judging.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corpuskit.case import Case
from corpuskit.judging import Judge
from corpuskit.numbers.overrides import Overrides
from labkit.verdicts import FIRST

# Steps of the square root of two around today's.
THRESHOLDS = (1.6, 2.3, 3.2, 4.5, 6.4, 9.0, 12.7, 18.0, 25.5)
INNOCENT_ACCUSED = 0.01

Fit = Callable[[Sequence[Case], Judge], Overrides]


def calibration(cases: Sequence[Case], judge: Judge) -> Overrides:
    """The map from scores to confidences. Hangs have none of their own, so they are left out."""
    from rankscope.diagnose.solve.calibration import fit

    name = "rankscope.diagnose.solve.calibration:POINTS"
    slow = [case for case in cases if case.truth.status != "hang"]
    as_scored = judge(slow, {name: ((0.0, 0.0), (1.0, 1.0))})
    return {name: fit((answer.confidence, answer.right) for answer in as_scored if answer.accused)}


def score_threshold(cases: Sequence[Case], judge: Judge) -> Overrides:
    """The score that admits a hypothesis: the one that names most culprits first, of those that accuse at most 1 % of the innocent.

    Where several are as good the middle one, which is farthest from where it gets worse.
    """
    name = "rankscope.diagnose.limits:SCORE_LEAST"
    innocent = [case for case in cases if not case.guilty]
    guilty = [case for case in cases if case.guilty]
    named: dict[float, int] = {}
    for threshold in THRESHOLDS:
        if sum(answer.accused for answer in judge(innocent, {name: threshold})) <= INNOCENT_ACCUSED * len(innocent):
            named[threshold] = sum(answer.outcome == FIRST for answer in judge(guilty, {name: threshold}))
    best = [threshold for threshold in named if named[threshold] == max(named.values())] or [THRESHOLDS[-1]]
    return {name: best[len(best) // 2]}


FITS: dict[str, Fit] = {"score": score_threshold, "calibration": calibration}
