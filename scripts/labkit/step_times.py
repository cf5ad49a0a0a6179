"""The ground truth: step times that the job itself wrote, read beside the observer and never shown to it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank, in seconds, in the order of job.STEP_COLUMNS; `end` on CLOCK_MONOTONIC.

    `backward` contains the allreduce and its waiting.
    """

    step: int
    end: float
    seconds: float
    load: float
    prepare: float
    forward: float
    device: float
    backward: float
    optimizer: float
    metrics: float
    cpu: float

    @property
    def own(self) -> float:
        """Time in the rank's own work: all but backward and the wait for the device."""
        return self.seconds - self.backward - self.device


@dataclass(frozen=True, slots=True)
class Pace:
    """Means over an interval: of the steps of all ranks, and of the own work and CPU time of each rank, seconds.

    Means, not medians: a fault may strike every second step only.
    """

    steps: int
    step_s: float
    own_s: tuple[float, ...]
    cpu_s: tuple[float, ...]


def read(path: Path) -> list[Step]:
    """The steps in a file."""
    return [Step(int(row[0]), *map(float, row[1:])) for row in rows(path, len(fields(Step)))]


def rows(path: Path, width: int | None = None) -> list[list[str]]:
    """The lines (of so many words) in a file, without the line that is being written."""
    try:
        lines = path.read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    split = [line.split() for line in lines]
    return [row for row in split if width in {None, len(row)}]


def pace(folder: Path, ranks: int, since: float, until: float) -> Pace | None:
    """How the job went between two instants of CLOCK_MONOTONIC; None where some rank ended no step in them."""
    of_rank = [
        [step for step in read(folder / f"rank{rank}.steps") if since < step.end - step.seconds and step.end <= until]
        for rank in range(ranks)
    ]
    if not all(of_rank):
        return None
    return Pace(
        steps=min(len(steps) for steps in of_rank),
        step_s=statistics.fmean(step.seconds for steps in of_rank for step in steps),
        own_s=tuple(statistics.fmean(step.own for step in steps) for steps in of_rank),
        cpu_s=tuple(statistics.fmean(step.cpu for step in steps) for steps in of_rank),
    )
