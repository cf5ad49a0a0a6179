"""What a fault has to work with, and what every fault needs: a job, a folder of its own, chance by the seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from chaoskit.command import Plan
from chaoskit.job import Job

RECORD, DIAGNOSE, SWEEP = "record", "diagnose", "sweep"


@dataclass(frozen=True, slots=True)
class Scene:
    """`folder` is empty and goes with the case. `moment`: 0 to 1, spread evenly over the seeds of a kind and command. `running_s`: how
    long the command takes without a fault: loading, waiting for the window to begin, the window, finishing."""

    job: Job
    folder: Path
    chance: random.Random
    window_s: float
    running_s: float
    moment: float
    command: str = RECORD
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """A fault: `hurt` does it for as long as its context lasts, and says how the command is to be run. `harmless`: it keeps nobody from
    observing, so that the command has to end in a verdict."""

    name: str
    what: str
    commands: tuple[str, ...]
    hurt: Callable[[Scene], AbstractContextManager[Plan]]
    harmless: bool = False


def arguments(command: str, place: Path, window_s: float, pids: Sequence[int]) -> list[str]:
    """The command line. `pids`: of the ranks; other jobs of the host are let alone, and no longer look is taken than one window."""
    window = ["--window", str(window_s), *(word for pid in pids for word in ("--pid", str(pid)))]
    return {
        RECORD: ["record", *window, "--out", str(place / "out")],
        DIAGNOSE: ["diagnose", *window, "--at-most", str(window_s), "--history", str(place / "history")],
        SWEEP: ["sweep", "--state", str(place / "state")],
    }[command]
