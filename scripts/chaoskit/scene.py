"""What a fault has to work with, and what every fault needs: a job, a folder of its own, chance by the seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from chaoskit.command import Plan
from chaoskit.job import Job

RECORD, DIAGNOSE, SWEEP = "record", "diagnose", "sweep"


@dataclass(frozen=True, slots=True)
class Scene:
    """`folder` is empty and goes with the case."""

    job: Job
    folder: Path
    chance: random.Random
    window_s: float

    @property
    def running_s(self) -> float:
        """About how long a command runs: loading, waiting for the window to begin, the window, finishing."""
        return self.window_s + 5.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A fault: `hurt` does it for as long as its context lasts, and says how the command is to be run."""

    name: str
    what: str
    commands: tuple[str, ...]
    hurt: Callable[[Scene], AbstractContextManager[Plan]]


def arguments(command: str, place: Path, window_s: float) -> list[str]:
    """The command line."""
    return {
        RECORD: ["record", "--window", str(window_s), "--out", str(place / "out")],
        DIAGNOSE: ["diagnose", "--window", str(window_s), "--history", str(place / "history")],
        SWEEP: ["sweep", "--state", str(place / "state")],
    }[command]
