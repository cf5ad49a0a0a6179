"""What of the diagnoser is fitted on the corpus: functions that take cases and return the fitted numbers.

A new one is a function here and its name in FITS. It may ask the judge as often as it likes, also with other numbers (every
threshold of a grid, say): answers are remembered, so leaving out one kind after the other costs no second judging.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corpuskit.case import Case
from corpuskit.judging import Judge
from corpuskit.overrides import Overrides

Fit = Callable[[Sequence[Case], Judge], Overrides]


def calibration(cases: Sequence[Case], judge: Judge) -> Overrides:
    """The map from scores to confidences. Hangs have none of their own, so they are left out."""
    from rankscope.diagnose.solve.calibration import fit, score_of

    slow = [case for case in cases if case.truth.status != "hang"]
    accusations = [answer for answer in judge(slow) if answer.accused]
    points = fit((score_of(answer.confidence), answer.right) for answer in accusations)
    return {"rankscope.diagnose.solve.calibration:POINTS": points}


FITS: dict[str, Fit] = {"calibration": calibration}
