"""What the suite asks, and how a case ended."""

from __future__ import annotations

from dataclasses import dataclass

PRICE_WITHIN = 5.0  # points of a hundred
WANTED = 0.9


@dataclass(frozen=True, slots=True)
class Case:
    """One kind, healthy or at fault."""

    kind: str
    seed: int
    fault: bool

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed}-{'fault' if self.fault else 'healthy'}"


@dataclass(frozen=True, slots=True)
class Result:
    """How a case ended: `outcome` is one of verdicts.FIRST …; `said`: a line for the reader; `verdict`: the JSON.

    step_s: mean step in the window, by the job's own lines. told_percent: the price of the first suspect; true_percent: how much
    shorter the mean step of the healthy variant is; None where there is none.
    """

    case: Case
    outcome: str
    said: str
    step_s: float | None = None
    told_percent: float | None = None
    true_percent: float | None = None
    verdict: str = ""
    wall_s: float = 0.0

    @property
    def price_right(self) -> bool | None:
        """Whether the price is within 5 points; None where there is nothing to compare."""
        if self.told_percent is None or self.true_percent is None:
            return None
        return abs(self.told_percent - self.true_percent) <= PRICE_WITHIN
