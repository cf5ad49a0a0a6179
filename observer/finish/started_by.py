"""Find the processes that started ranks: torchrun, a notebook's kernel, a Ray worker.

What they compute is the job's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rankscope.observer.census.found import FoundRank
from rankscope.probes.host import procfs
from rankscope.probes.host.procfs import ROOT

_DEEP = 16  # ancestors of a rank that are looked at


def started_by(ranks: Iterable[FoundRank], root: Path = ROOT) -> dict[int, int]:
    """Map the pid of each process that started ranks to the pid of the first rank (by number) below it.

    An ancestor of ranks counts if it is of the rank's user, as are all between them, and ranks of one job alone are
    below it: a session of which two jobs were started is of neither. Processes that are gone are left out.
    """
    found = sorted(ranks, key=lambda rank: (rank.identity.rank, rank.pid))
    themselves = {rank.pid for rank in found}
    read: dict[int, tuple[int, int]] = {}
    first: dict[int, FoundRank] = {}
    shared: set[int] = set()
    for rank in found:
        for pid in _ancestors(rank, root, read):
            if first.setdefault(pid, rank).identity.job != rank.identity.job:
                shared.add(pid)
    return {pid: rank.pid for pid, rank in first.items() if pid not in shared | themselves}


def _ancestors(rank: FoundRank, root: Path, read: dict[int, tuple[int, int]]) -> list[int]:
    """List the pids of a rank's ancestors, nearest first, up to the first of another user.

    `read`: pid -> (parent, user), a cache that is filled here.
    """
    above: list[int] = []
    pid = rank.pid
    while len(above) <= _DEEP:
        if pid not in read:
            try:
                status = procfs.read_status(pid, root)
            except (OSError, ValueError):
                break
            read[pid] = status.ppid, status.uid
        parent, user = read[pid]
        if user != rank.owner:
            break
        if pid != rank.pid:
            above.append(pid)
        if parent <= 1:
            break
        pid = parent
    return above
