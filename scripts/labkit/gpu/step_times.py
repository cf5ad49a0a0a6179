"""The ground truth of the GPU lab: step times that the job itself wrote, read beside the observer and never shown to it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from labkit.step_times import Pace, rows

# Waiting for the GPU longer than this means that the step did wait; a step that runs ahead of its GPU does not wait at all.
_WAITED_S = 1e-3


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank, in seconds, in the order of job.STEP_COLUMNS; `end` on CLOCK_MONOTONIC.

    load … wait by the host's clock, `wait` being loss.item(); copy, compute and exchange by CUDA events: the copy to the
    GPU, forward and backward, and what of the gradients' exchange nothing hides, waiting for other ranks included.
    """

    step: int
    end: float
    seconds: float
    load: float
    prepare: float
    forward: float
    backward: float
    optimizer: float
    metrics: float
    wait: float
    cpu: float
    copy: float
    compute: float
    exchange: float

    @property
    def host(self) -> float:
        """Python that keeps the GPU waiting, where the job waits for it in every step."""
        return self.load + self.prepare + self.metrics


@dataclass(frozen=True, slots=True)
class GpuPace(Pace):
    """Where the time of each rank's step goes, means in seconds: see Step. `host_s`: Python that keeps the GPU waiting."""

    host_s: tuple[float, ...]
    copy_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    exchange_s: tuple[float, ...]


def read(path: Path) -> list[Step]:
    """The steps in a file."""
    return [Step(int(row[0]), *map(float, row[1:])) for row in rows(path, len(fields(Step)))]


def _whole_groups(steps: list[Step], since: float, until: float) -> list[Step]:
    """The steps from one wait for the GPU to another: where a job waits only now and then, the steps between are short.

    From the first wait in the interval to the last; if it holds only one, from the wait before it.
    """
    waits = [at for at, step in enumerate(steps) if step.wait > _WAITED_S and step.end <= until]
    inside = [at for at in waits if steps[at].end > since]
    if len(inside) == 1:
        inside = waits[-2:]
    return steps[inside[0] + 1 : inside[-1] + 1] if inside else []


def pace(folder: Path, ranks: int, since: float, until: float) -> GpuPace | None:
    """How the job went between two instants of CLOCK_MONOTONIC; None where some rank ended no step in them."""
    of_rank = [_whole_groups(read(folder / f"rank{rank}.steps"), since, until) for rank in range(ranks)]
    if not all(of_rank):
        return None

    def means(figure: Callable[[Step], float]) -> tuple[float, ...]:
        return tuple(statistics.fmean(map(figure, steps)) for steps in of_rank)

    return GpuPace(
        steps=min(len(steps) for steps in of_rank),
        step_s=statistics.fmean(step.seconds for steps in of_rank for step in steps),
        own_s=means(lambda step: step.host + step.copy + step.compute),
        cpu_s=means(lambda step: step.cpu),
        host_s=means(lambda step: step.host),
        copy_s=means(lambda step: step.copy),
        compute_s=means(lambda step: step.compute),
        exchange_s=means(lambda step: step.exchange),
    )
