"""Watch the servers of a run during a window: requests of the ranks, and the servers' own CPU time.

In: the ranks. Out: `Asked`, one per server: its exchanges with each rank, and for how long its
threads ran and queued for a CPU. Costs nothing where ranks ask no server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.observer.census.found import FoundRank
from rankscope.observer.serving.exchanges import Exchange, exchanges_of
from rankscope.observer.serving.found import Server, find_servers
from rankscope.probes.host import procfs
from rankscope.probes.host.namespaces import namespace_inode
from rankscope.probes.host.procfs import ROOT, read_file, reason
from rankscope.probes.network.talks import Talk, TalkSampler

_THREADS_MOST = 512  # of a server that are read


@dataclass(frozen=True, slots=True)
class Asked:
    """A server with the exchanges of each rank (its pid), in order.

    `address`: where ranks reach it; `run_s`, `queue_s`: CPU time and run-queue delay of its threads
    in the window, NaN where unknown.
    """

    server: Server
    address: str
    exchanges: Mapping[int, Sequence[Exchange]]
    run_s: float = float("nan")
    queue_s: float = float("nan")


@dataclass(slots=True)
class ServerWatch:
    """The servers of all jobs: `start()` when a window begins, `stop()` when it ends."""

    ranks: Sequence[FoundRank]
    root: Path = ROOT
    servers: tuple[Server, ...] = ()
    notes: list[str] = field(default_factory=list)
    _samplers: list[TalkSampler] = field(default_factory=list)
    _before: dict[int, tuple[float, float]] = field(default_factory=dict)

    def find(self) -> None:
        """Find the servers that ranks ask at present."""
        self.servers = find_servers(self.ranks, self.root)

    def start(self) -> None:
        """Start sampling. Returns at once."""
        self.close()
        asked = {server.port for server in self.servers}
        jobs = {server.job for server in self.servers}
        spaces: dict[int, list[int]] = {}
        for rank in self.ranks:
            if rank.identity.job in jobs:
                try:
                    spaces.setdefault(namespace_inode(rank.pid, "net", self.root), []).append(rank.pid)
                except (OSError, ValueError):
                    continue
        for pids in spaces.values():
            try:
                sampler = TalkSampler(pids, asked, self.root)
            except OSError as error:
                self.notes.append(f"requests to servers: {reason(error)}")
                continue
            sampler.start()
            self._samplers.append(sampler)
        self._before = {server.pid: _cpu_times(server.pid, self.root) for server in self.servers}

    def stop(self) -> tuple[Asked, ...]:
        """Stop sampling; return the servers that ranks of their job talked with."""
        talks = [talk for sampler in self._samplers for talk in sampler.stop()]
        self.notes += [note for sampler in self._samplers for note in sampler.notes]
        jobs = {rank.pid: rank.identity.job for rank in self.ranks}
        found = []
        for server in self.servers:
            mine = [talk for talk in talks if talk.port == server.port and jobs.get(talk.pid) == server.job]
            if mine:
                then, now = self._before.get(server.pid, _UNKNOWN), _cpu_times(server.pid, self.root)
                found.append(Asked(server, mine[0].peer, _by_rank(mine), now[0] - then[0], now[1] - then[1]))
        self._samplers = []
        return tuple(found)

    def close(self) -> None:
        """End the samplers if they still run."""
        for sampler in self._samplers:
            sampler.stop()
        self._samplers = []


_UNKNOWN = float("nan"), float("nan")


def _by_rank(talks: Sequence[Talk]) -> dict[int, list[Exchange]]:
    """Return the exchanges of each rank's pid, over all its connections, by their begin."""
    found: dict[int, list[Exchange]] = {}
    for talk in talks:
        found.setdefault(talk.pid, []).extend(exchanges_of(talk.samples))
    return {pid: sorted(each, key=lambda one: one.begin_s) for pid, each in found.items()}


def _cpu_times(pid: int, root: Path) -> tuple[float, float]:
    """Return seconds that the living threads of a process ran and queued for a CPU; NaN if unknown."""
    run_ns = queue_ns = 0
    try:
        for tid in procfs.threads(pid, root)[:_THREADS_MOST]:
            words = read_file(procfs.proc_path(root, pid, "task", tid, "schedstat"), 256).split()
            run_ns, queue_ns = run_ns + int(words[0]), queue_ns + int(words[1])
    except (OSError, ValueError, IndexError):
        return _UNKNOWN
    return run_ns / 1e9, queue_ns / 1e9
