"""The budget of a step: seconds by kind of activity, for the job and for each rank.

All numbers are means over ranks, because means add up: the parts of a budget sum to its `seconds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rankscope.diagnose.infer.verdict.function import Function


class Kind(str, Enum):
    """Kinds of activity of a training thread; every instant belongs to one."""

    PYTHON = "python"
    LIBRARIES = "libraries"
    SYSTEM = "system"
    OWN = "own-work"
    GPU = "gpu"
    WAITING = "waiting"
    EXCHANGE = "exchange"
    COLLECTIVES = "collectives"
    GENERATION = "generation"
    SERVERS = "servers"
    INPUT = "input"
    PAUSES = "pauses"
    QUEUE = "cpu-queue"
    LOCKS = "locks"
    GC = "gc"
    FILES = "files"
    MEMORY = "memory"
    COMPILING = "compiling"
    ASLEEP = "asleep"
    STOPPED = "stopped"
    UNKNOWN = "not-timed"


# What people read.
IN_WORDS: dict[Kind, str] = {
    Kind.PYTHON: "computing in Python",
    Kind.LIBRARIES: "computing in libraries",
    Kind.SYSTEM: "in the kernel (system calls, new pages)",
    Kind.OWN: "own work",
    Kind.GPU: "GPU",
    Kind.WAITING: "waiting for other ranks",
    Kind.EXCHANGE: "exchanging data",
    Kind.COLLECTIVES: "in collectives",
    Kind.GENERATION: "waiting for generation",
    Kind.SERVERS: "sending to servers, waiting for them",
    Kind.INPUT: "input",
    Kind.PAUSES: "pauses",
    Kind.QUEUE: "CPU queue",
    Kind.LOCKS: "locks, threads and processes",
    Kind.GC: "garbage collection",
    Kind.FILES: "files",
    Kind.MEMORY: "waiting for memory",
    Kind.COMPILING: "compiling",
    Kind.ASLEEP: "asleep",
    Kind.STOPPED: "stopped",
    Kind.UNKNOWN: "not timed",
}

COMPUTING = (Kind.PYTHON, Kind.LIBRARIES, Kind.SYSTEM)  # told as one where there is little room


@dataclass(frozen=True, slots=True)
class Item:
    """Part of a kind: a function of the user's code, a file, a process in whose way a rank stands.

    `what`: words on the activity or the process, '' if the function says all.
    """

    what: str
    function: Function | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of one kind, with its largest items.

    `meanwhile`: for input, what the loader workers do, in seconds of all workers together; these
    are no part of the sum.
    """

    kind: Kind
    seconds: float
    items: tuple[Item, ...] = ()
    meanwhile: tuple[Item, ...] = ()


@dataclass(frozen=True, slots=True)
class RankBudget:
    """Budget of one rank: the length of its step, and seconds by kind."""

    rank: int
    seconds: float
    parts: tuple[tuple[Kind, float], ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of an iteration: the user's function that the training loop calls, and its seconds.

    Seconds per step, mean over the ranks that ask servers; `function` None: all the rest.
    """

    function: Function | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Budget:
    """Mean over `ranks` ranks of the seconds of a step, or of the window where no step was seen.

    `parts`: largest first, without empty ones. `by_rank`: empty for a job of very many ranks.
    `stages`: largest first; only for runs in which ranks ask servers.
    """

    seconds: float
    ranks: int
    parts: tuple[Part, ...]
    of_window: bool = False
    by_rank: tuple[RankBudget, ...] = ()
    stages: tuple[Stage, ...] = ()

    def share(self, seconds: float) -> float:
        """Share of the whole, 0..1."""
        return min(max(seconds / self.seconds, 0.0), 1.0) if self.seconds > 0 else 0.0
