"""What the lab of hangs asks, how a case ended, and the file of results."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit import result_file
from labkit.cases import truth_from_json
from labkit.faults.base import Truth
from labkit.result_file import plain

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

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(asdict(self))
        return found


def read(path: Path) -> list[Result]:
    """The results in a file; none where there is no file. ValueError where it is not one of the lab's."""
    return result_file.read(path, _from_json, "the lab of hangs")


def _from_json(item: dict[str, Any]) -> Result:
    return Result(**{
        **item,
        "case": Case(**item["case"]),
        "truth": truth_from_json(item["truth"]) if item["truth"] else None,
        "service": Answer(**item["service"]),
        "command": Answer(**item["command"]) if item["command"] else None,
    })  # fmt: skip
