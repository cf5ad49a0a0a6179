"""What the census says: ranks, their workers, and processes that only look like ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankscope.observer.census.candidates import Candidate, Libraries
from rankscope.observer.census.containers import Container
from rankscope.observer.census.identity import RankIdentity


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that belongs to a rank. kind: loader (feeds data) | tracker, forkserver (of Python's multiprocessing) |
    compiler (torch.compile, gcc, nvcc, …) | helper (anything else the rank started)."""

    pid: int
    kind: str
    comm: str


@dataclass(frozen=True, slots=True)
class FoundRank:
    """A training process. (pid, start_ticks) names it for ever; `start_s` is seconds since boot.

    `launcher` says who gave it its identity; `guessed`: its number is a guess; `owner`: the user of the host, -1 unknown.
    """

    identity: RankIdentity
    pid: int
    start_ticks: int
    start_s: float
    workers: tuple[Worker, ...]
    libraries: Libraries
    container: Container | None
    cgroup: str
    launcher: str
    guessed: bool
    owner: int = -1


def user_of(rank: FoundRank) -> str:
    """Whose it is; of root, which is in many containers, the control group."""
    return f"user {rank.owner}" if rank.owner > 0 else f"root in {rank.cgroup}"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A process that looks like a rank and is none."""

    pid: int
    comm: str
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A rank that the launcher of its siblings started on this host, and that no process is."""

    job: str
    rank: int


@dataclass(frozen=True, slots=True)
class RankCensus:
    """The ranks of a host, by job and rank. `notes`: what could not be known, and why.

    `alone`: of the rejected those that have a training library and nobody to train with, as far as can be seen. `starting`: those
    whose environment names a rank, and that have no training library yet. `gone`: none where somebody was not looked at.
    """

    ranks: tuple[FoundRank, ...]
    rejected: tuple[Rejected, ...]
    notes: tuple[str, ...]
    alone: tuple[Candidate, ...] = ()
    starting: tuple[Candidate, ...] = ()
    gone: tuple[Gone, ...] = ()

    def brief(self) -> RankCensus:
        """Without those candidates, whose command lines may be as long as anybody likes, and without who is gone."""
        return replace(self, alone=(), starting=(), gone=())
