"""Chosen ranks by pid, and the evidence for each: connections and control groups shared with other ranks.

Of two processes with one number, the one that works with the other ranks is the rank. That is
queried for each of them while the draft changes: so a job's connections are looked up once and then
updated with the changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from rankscope.observer.census.candidates import Candidate
from rankscope.observer.census.identity import Claim

Job = tuple[str, int]  # its name, and the user who owns it


@dataclass(frozen=True, slots=True)
class Chosen:
    """A process considered a rank so far."""

    process: Candidate
    claim: Claim
    guessed: bool = False

    @property
    def job(self) -> Job:
        """The job's name and user; the same name of another user is another job."""
        return self.claim.job, self.process.owner


class ChosenRanks(dict[int, Chosen]):
    """A dictionary that records which jobs' ranks changed. Change it by `[pid] = …` and `pop` only."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: dict[Job, set[int]] = {}

    def __setitem__(self, pid: int, one: Chosen) -> None:
        self._change(pid)
        super().__setitem__(pid, one)
        self._change(pid)

    def pop(self, pid: int, *default: Chosen | None) -> Chosen:  # type: ignore[override]
        """Remove and return an entry, as dict.pop."""
        self._change(pid)
        return super().pop(pid, *default)

    def _change(self, pid: int) -> None:
        """Record that a process of its present job changes; do nothing if it is not chosen."""
        if pid in self:
            self._changed.setdefault(self[pid].job, set()).add(pid)

    def changed(self, job: Job) -> set[int]:
        """Return the pids of a job that changed since the last call."""
        return self._changed.pop(job, set())


@dataclass(slots=True)
class _Marks:
    """Counts, per mark, how many processes of each rank have it."""

    _ranks: dict[Hashable, Counter[int]] = field(default_factory=dict)

    def add(self, mark: Hashable, rank: int) -> None:
        """Count one more process of this rank that has the mark."""
        self._ranks.setdefault(mark, Counter())[rank] += 1

    def remove(self, mark: Hashable, rank: int) -> None:
        """Count one process less of this rank that has the mark."""
        ranks = self._ranks[mark]
        ranks[rank] -= 1
        if not ranks[rank]:
            del ranks[rank]

    def of_another(self, mark: Hashable, rank: int) -> bool:
        """Tell whether a process of another rank has the mark."""
        ranks = self._ranks.get(mark)
        return ranks is not None and len(ranks) > (rank in ranks)


@dataclass(slots=True)
class _Ranks:
    """The connections and control groups of one job's chosen ranks, as counted so far."""

    ranks: dict[int, int] = field(default_factory=dict)  # pid -> rank, of those counted
    ends: _Marks = field(default_factory=_Marks)
    cgroups: _Marks = field(default_factory=_Marks)


@dataclass(slots=True)
class Evidence:
    """Evidence for chosen ranks. `ends`: a process's connections, as seen from both ends. `cgroup`:
    its control group.
    """

    taken: ChosenRanks
    ends: Callable[[int], Iterable[tuple[Hashable, Hashable]]]
    cgroup: Callable[[int], str]
    _jobs: dict[Job, _Ranks] = field(default_factory=dict)

    def of(self, pid: int) -> tuple[bool, bool]:
        """Tell whether a process is connected with another rank of its job, and whether it shares a
        control group with one.
        """
        job, rank = self.taken[pid].job, self.taken[pid].claim.rank
        of_job = self._jobs.setdefault(job, _Ranks())
        for each in self.taken.changed(job):
            self._follow(of_job, job, each)
        linked = any(of_job.ends.of_another(other, rank) for _, other in self.ends(pid))
        return linked, of_job.cgroups.of_another(self.cgroup(pid), rank)

    def _follow(self, of_job: _Ranks, job: Job, pid: int) -> None:
        """Update a job's counts for a process that changed: remove what was counted of it, and add what it is now."""
        before = of_job.ranks.pop(pid, None)
        now = self.taken.get(pid)
        if before is not None:
            for end, _ in self.ends(pid):
                of_job.ends.remove(end, before)
            of_job.cgroups.remove(self.cgroup(pid), before)
        if now is not None and now.job == job:
            rank = of_job.ranks[pid] = now.claim.rank
            for end, _ in self.ends(pid):
                of_job.ends.add(end, rank)
            of_job.cgroups.add(self.cgroup(pid), rank)
