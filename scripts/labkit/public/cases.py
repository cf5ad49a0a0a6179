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

    step_s: mean step in the window, by the job's own lines. told_percent: what would come back, as the first line says, where that was
    right and the kind has a price.
    """

    case: Case
    outcome: str
    said: str
    step_s: float | None = None
    told_percent: float | None = None
    verdict: str = ""
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Price:
    """What would come back: as the first line says, and by the steps of the healthy variant; percent of the mean step."""

    told: float
    true: float

    @property
    def right(self) -> bool:
        return abs(self.told - self.true) <= PRICE_WITHIN
