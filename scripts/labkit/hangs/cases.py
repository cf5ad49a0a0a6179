"""What the lab of hangs asks, and how a case ended."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.faults.base import Truth

WITHIN_S = 15.0
WANTED = 0.95


@dataclass(frozen=True, slots=True)
class Case:
    """One kind on one job."""

    kind: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.seed}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service or a command said: `outcome` of verdicts.FIRST …; `after_s`: since the job's last step; `said`: a line."""

    outcome: str
    said: str
    after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """How a case ended. command: None where nobody was left to be asked. verdict: what the command printed."""

    case: Case
    ranks: int
    hosts: int
    truth: Truth | None
    service: Answer
    command: Answer | None
    verdict: str = ""
    wall_s: float = 0.0

    @property
    def answers(self) -> tuple[Answer, ...]:
        return (self.service, self.command) if self.command else (self.service,)
