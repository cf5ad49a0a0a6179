"""Results of the census: ranks, their workers, and processes that only look like ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace

from rankscope.observer.census.candidates import Candidate, Libraries
from rankscope.observer.census.containers import Container
from rankscope.observer.census.identity import RankIdentity


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that belongs to a rank.

    kind: loader (feeds data) | tracker, forkserver (of Python's multiprocessing) | compiler
    (torch.compile, gcc, nvcc, …) | helper (anything else the rank started).
    """

    pid: int
    kind: str
    comm: str


@dataclass(frozen=True, slots=True)
class FoundRank:
    """A training process. (pid, start_ticks) identifies it for ever; `start_s` is seconds since
    boot.

    `launcher`: where its identity comes from; `guessed`: its number is a guess; `owner`: the user
    of the host, -1 unknown.
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
    """Name the owner of a rank: 'user UID', or for root, which is in many containers, 'root in CGROUP'."""
    return f"user {rank.owner}" if rank.owner > 0 else f"root in {rank.cgroup}"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A process that looks like a rank and is none, with the reason."""

    pid: int
    comm: str
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A rank that its siblings' launcher started on this host, but no process is it."""

    job: str
    rank: int


@dataclass(frozen=True, slots=True)
class RankCensus:
    """The ranks of a host, ordered by job and rank. `notes`: what could not be determined, and why.

    `alone`: rejected processes with a training library and no visible partners. `starting`:
    processes whose environment names a rank, but that have no training library yet. `gone`: empty
    if some process was not inspected.
    """

    ranks: tuple[FoundRank, ...]
    rejected: tuple[Rejected, ...]
    notes: tuple[str, ...]
    alone: tuple[Candidate, ...] = ()
    starting: tuple[Candidate, ...] = ()
    gone: tuple[Gone, ...] = ()

    def has_all_of(self, jobs: Collection[str]) -> bool:
        """Tell whether all ranks of these jobs were found, so that none is on another host."""
        sizes = {one.identity.job: one.identity.world_size for one in self.ranks}
        found = Counter(job for job, _ in {(one.identity.job, one.identity.rank) for one in self.ranks})
        return all(found[job] == sizes.get(job) for job in jobs)

    def brief(self) -> RankCensus:
        """Return a copy without `alone`, `starting` and `gone`; command lines in the former may be
        very long.
        """
        return replace(self, alone=(), starting=(), gone=())
