"""Programs outside the job that ran while its ranks were in the run queue, as the kernel counts them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.evidence.job_processes import ranks_named

# The observer, and the kernel's thread that samples memory for it.
_OURS = ("rankscope", "kdamond")


@dataclass(frozen=True, slots=True)
class Program:
    """A program outside the job, the seconds that it took, and its processes, largest first; -1: pid unknown."""

    comm: str
    seconds: float
    pids: tuple[int, ...]

    @property
    def is_ours(self) -> bool:
        """Whether it is the observer, or a thread of the kernel that works for it."""
        return self.comm.startswith(_OURS)

    @property
    def words(self) -> str:
        """'tar (4711)', 'tar (3 processes: 4711, 4712, 4713)', or the name alone."""
        known = [str(pid) for pid in self.pids if pid >= 0]
        if not known:
            return self.comm
        if len(known) == 1:
            return f"{self.comm} ({known[0]})"
        told = known[: budgets.INSTANCES_SHOWN]
        return f"{self.comm} ({len(known)} processes: {', '.join(told)}{', …' if len(known) > len(told) else ''})"


def culprits(found: Sequence[Program]) -> tuple[Program, ...]:
    """Select the programs that took at least a tenth of what the first took, at most budgets.TOLD.

    `found`: largest first. The observer's own are left out, unless there are no others.
    """
    others = [one for one in found if not one.is_ours] or list(found[:1])
    return tuple(one for one in others if one.seconds >= limits.FEW * others[0].seconds)[: budgets.TOLD]


def takers(fleet: Fleet, rows: Iterable[int]) -> list[tuple[str, float]]:
    """Return (process in words, seconds) of processes outside the job that took CPU from these ranks.

    Largest first; `rows`: ranks, of which limits.PEERS_SAMPLED at most are looked at.
    """
    ordered = sorted(_taken(fleet, rows).items(), key=lambda item: -item[1])
    return [(f"{comm} ({pid})" if pid >= 0 else comm, seconds) for (comm, pid), seconds in ordered]


def programs(fleet: Fleet, rows: Iterable[int]) -> list[Program]:
    """Programs outside the job that took CPU from these ranks, largest first.

    A process that became another program meanwhile counts as the one that took more.
    """
    taken, pids, name_of = dict[str, float](), dict[str, list[int]](), dict[int, str]()
    for (comm, pid), seconds in sorted(_taken(fleet, rows).items(), key=lambda item: -item[1]):
        name = name_of.setdefault(pid, comm) if pid >= 0 else comm
        taken[name] = taken.get(name, 0.0) + seconds
        if pid not in pids.setdefault(name, []):
            pids[name].append(pid)
    ordered = sorted(taken.items(), key=lambda item: -item[1])
    return [Program(comm, seconds, tuple(pids[comm])) for comm, seconds in ordered]


def _taken(fleet: Fleet, rows: Iterable[int]) -> dict[tuple[str, int], float]:
    """Seconds taken from these ranks (a sample) by (name, pid), for processes outside the job."""
    sampled, taken = list(rows)[: limits.PEERS_SAMPLED], dict[tuple[str, int], float]()
    counters = [counter for rank in sampled for counter in fleet.counters.of("cpu.taken_s", rank)]
    job = ranks_named(fleet, counters)
    for counter in counters:
        if (counter.observed_on, counter.pid) not in job:
            taken[counter.comm, counter.pid] = taken.get((counter.comm, counter.pid), 0.0) + counter.value
    return taken
