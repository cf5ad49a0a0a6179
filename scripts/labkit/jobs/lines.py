"""The lines that a job prints, one per step: the truth for rank, step number and step time. Pure, but for reading the file."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from labkit.step_times import rows


@dataclass(frozen=True, slots=True)
class Line:
    """One step of one rank, as programs/knobs.py writes it: `end` on CLOCK_MONOTONIC, `wall` on CLOCK_REALTIME, seconds.

    pid: in the innermost PID namespace. born: when that process started, clock ticks since boot.
    """

    rank: int
    step: int
    end: float
    wall: float
    seconds: float
    pid: int
    born: int


def read(folder: Path, ranks: int) -> list[list[Line]]:
    """The lines of every rank so far."""
    return [[parse(words) for words in rows(folder / f"rank{rank}.lines", 7)] for rank in range(ranks)]


def parse(words: list[str]) -> Line:
    rank, step, end, wall, seconds, pid, born = words
    return Line(int(rank), int(step), float(end), float(wall), float(seconds), int(pid), int(born))


def between(lines: list[list[Line]], since: float, until: float) -> list[list[Line]]:
    """Of each rank the steps that began and ended between two instants of CLOCK_REALTIME."""
    return [[line for line in of_rank if since <= line.wall - line.seconds and line.wall <= until] for of_rank in lines]


def median_step_s(lines: list[list[Line]]) -> float | None:
    """Median of the seconds of all steps of all ranks; None where some rank has none."""
    if not all(lines):
        return None
    return statistics.median(line.seconds for of_rank in lines for line in of_rank)


def mean_step_s(lines: list[list[Line]]) -> float | None:
    """Mean of the seconds of all steps of all ranks: what comes in every second step counts; None where some rank has none."""
    return statistics.fmean(line.seconds for of_rank in lines for line in of_rank) if all(lines) else None


def numbering_is_sound(of_rank: list[Line]) -> bool:
    """Whether the steps of a rank go up by one, its seconds add up to the time that passed, and it is one process throughout."""
    if len(of_rank) < 2:
        return True
    steps = [line.step for line in of_rank]
    passed = of_rank[-1].end - of_rank[0].end
    told = sum(line.seconds for line in of_rank[1:])
    one_process = len({(line.pid, line.born, line.rank) for line in of_rank}) == 1
    return (
        one_process
        and steps == list(range(steps[0], steps[0] + len(steps)))
        and abs(passed - told) < 0.001 * len(steps)
    )
