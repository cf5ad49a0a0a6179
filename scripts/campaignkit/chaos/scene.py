"""What a fault has to work with, and what every fault needs: a job, a folder of its own, chance by the seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from campaignkit.chaos.command import Plan
from campaignkit.chaos.job import Job
from rankscope.diagnose.service.place import WatchPlace

RECORD, DIAGNOSE, SWEEP, WATCH = "record", "diagnose", "sweep", "watch"
WATCHED_S = 10.0  # a service goes on until it is told to end
_ASKED_AFTER_S = 2.0


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
        WATCH: [
            "watch", "--json", "--no-routine", "--window", str(max(window_s, 1.0)), "--state", str(place / "watch"),
            "--history", str(place / "history"), "--sweep", str(place / "state"),
        ],
    }[command]  # fmt: skip


def asking_for_a_look(scene: Scene) -> Plan:
    """How a service is run in every case: after two seconds it is asked for a look; it is told to end by SIGTERM."""
    place, began, asked = WatchPlace(scene.folder / "watch"), time.monotonic(), False

    def ask() -> None:
        nonlocal asked
        if not asked and time.monotonic() - began > _ASKED_AFTER_S and (scene.folder / "watch/lock").exists():
            asked = True
            place.ask("")

    if scene.command != WATCH:
        return Plan(scene.folder)
    return Plan(scene.folder, meanwhile=ask, signal_after_s=WATCHED_S)
