"""What is shown of one moment. Frozen data: from windows (from_windows.py) or from the service (from_watch.py), to lines (draw.py)."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = ("works", "files", "waits for a CPU", "locks", "waits for others")
OWN, FILES, CPU, LOCKS, OTHERS = range(len(PARTS))


@dataclass(frozen=True, slots=True)
class RankNow:
    """One rank. `parts`: shares of its time in the order of PARTS; () where nobody knows. `most`: what it works on most, with its share,
    and in which place; '' where no stacks were seen. `state`: '' for a rank that runs as it should."""

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
    """Who is accused, in words. `seen`: in how many of the last `looks`; `now`: in the last one of them as well."""

    words: str
    seen: int = 1
    looks: int = 1
    now: bool = True


@dataclass(frozen=True, slots=True)
class JobNow:
    """One job's ranks on this host. `steps_s`: its last steps, the oldest first; `usual_s`: where somebody knows what is usual."""

    title: str
    ranks: tuple[RankNow, ...]
    steps_s: tuple[float, ...] = ()
    usual_s: float | None = None
    status: str = ""
    suspects: tuple[SuspectNow, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True)
class CounterNow:
    """A counter of the host in words: 'memory pressure', '12 %'. `sick`: worth a colour."""

    name: str
    amount: str
    sick: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of one host. `at`: Unix time; `source`: who looked, in words."""

    at: float
    host: str
    source: str
    jobs: tuple[JobNow, ...] = ()
    counters: tuple[CounterNow, ...] = ()
