"""One recorded case: what was done to which job, the right answer, and what it cost by the job's own clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.faults.base import Truth
from labkit.result_file import plain, restored

STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the function of the truth stands: a verdict that names it must name one of its lines."""

    file: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Case:
    """A case of the corpus. The windows lie in its archive under their identities.

    lab: which lab recorded it (faults, jobs, gpu: the emulated machine, card: a real GPU). job: what kind of job, or which row of the
    table of jobs.
    healthy_s, during_s: a step without and with the fault, by the job's own lines: means. sides_s: of the lab of jobs the mean
    before the fault and that after it was undone, as far as they were measured; healthy_s is their mean, without them a median
    of four seconds. quiet: nothing else ran on that machine. code: version of Rankscope that recorded it. place: None where the
    lab has no line to hold the function against. doubt: why the truth may be wrong, unsteady: why the lost time may be; ''
    where nothing speaks against it.
    """

    archive: str
    name: str
    lab: str
    job: str
    fault: str
    dose: str
    seed: int
    ranks: int
    hosts: int
    truth: Truth
    healthy_s: float | None
    during_s: float | None
    quiet: bool
    recorded: str
    code: str
    windows: tuple[str, ...]
    baseline: tuple[str, ...] = ()
    place: Place | None = None
    doubt: str = ""
    unsteady: str = ""
    sides_s: tuple[float, ...] = ()

    @property
    def key(self) -> str:
        """Of this case and no other in the corpus."""
        return f"{self.archive}/{self.name}"

    @property
    def kind(self) -> str:
        return f"{self.lab}/{self.fault}"

    @property
    def guilty(self) -> bool:
        """Whether there is somebody to be named."""
        return self.truth.status in {"fault", "hang"}

    @property
    def two_sided(self) -> bool:
        """Whether the healthy step is known from before and after, so that a drift of the job cancels."""
        return len(self.sides_s) == 2

    @property
    def lost_s(self) -> float | None:
        """What the fault really took of each step; None where steps do not end, nobody is guilty, or it is not to be trusted."""
        if self.truth.status != "fault" or self.doubt or self.unsteady or not (self.healthy_s and self.during_s):
            return None
        return self.during_s - self.healthy_s

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        del found["archive"]  # the name of the file that it lies in
        return found


def from_json(item: dict[str, Any], archive: str) -> Case:
    return restored(Case, {**item, "archive": archive})
