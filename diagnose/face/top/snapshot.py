"""State of a host at one time, as frozen data: from windows (from_windows.py) or the service (from_watch.py)."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = ("works", "files", "waits for a CPU", "locks", "waits for others")
OWN, FILES, CPU, LOCKS, OTHERS = range(len(PARTS))


@dataclass(frozen=True, slots=True)
class RankNow:
    """One rank. `parts`: shares of its time in the order of PARTS, (): unknown.

    `most`, `place`: what it works on most, with share, and location; '' without stacks; `state`: ''
    if running.
    """

    number: int
    guessed: bool = False
    step_s: float | None = None
    parts: tuple[float, ...] = ()
    most: str = ""
    place: str = ""
    state: str = ""
    accused: bool = False


@dataclass(frozen=True, slots=True)
class SuspectNow:
    """A suspect in words.

    `seen`: in how many of the last `looks` windows; `now`: in the last one too.
    """

    words: str
    seen: int = 1
    looks: int = 1
    now: bool = True


@dataclass(frozen=True, slots=True)
class JobNow:
    """One job's ranks on this host.

    `steps_s`: its last steps, oldest first; `usual_s`: usual step, None: unknown.
    """

    title: str
    ranks: tuple[RankNow, ...]
    steps_s: tuple[float, ...] = ()
    usual_s: float | None = None
    status: str = ""
    suspects: tuple[SuspectNow, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True)
class CounterNow:
    """A host counter in words: 'memory pressure', '12 %'. `sick`: highlight it."""

    name: str
    amount: str
    sick: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of a host at Unix time `at`. `source`: description of the observer."""

    at: float
    host: str
    source: str
    jobs: tuple[JobNow, ...] = ()
    counters: tuple[CounterNow, ...] = ()
