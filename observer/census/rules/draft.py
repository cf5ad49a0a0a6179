"""The state of a census, which its rules read and change, and facts that they share.

In: the processes with a training library (candidates.py). The rules in their order: ranks.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rankscope.observer.census.candidates import Candidate, Scan, command_line
from rankscope.observer.census.describe import read_facts
from rankscope.observer.census.identity import Claim, parse_later_claim
from rankscope.observer.census.kinship import Connections
from rankscope.observer.census.launchers import SERVER, purpose
from rankscope.observer.census.live_environ import read_live_environ
from rankscope.observer.census.numbering import Member, number_group
from rankscope.observer.census.rules.taken import Chosen, ChosenRanks, Evidence
from rankscope.observer.census.workers import is_compiler
from rankscope.probes.host.namespaces import host_name

_MAX_DEPTH = 64


class Draft:
    """The processes of a host while the rules of the census decide which of them are ranks.

    `loaded`: processes with a training library or asked for, by pid; `chosen`: those considered
    ranks; `rejected`: reasons for others.

    `asked`: pids that are ranks even if nothing names them. `seeks_alone`: look for ranks that work
    alone as well, which takes a moment.
    """

    def __init__(
        self, found: Scan, root: Path, asked: frozenset[int] = frozenset(), *, seeks_alone: bool = True
    ) -> None:
        self.scan = found
        self.root = root
        self.asked, self.seeks_alone = asked, seeks_alone
        self.host = host_name(root)
        self.parents = {pid: stat.ppid for pid, stat in found.processes.items()}
        self.loaded = {pid: one for pid, one in found.candidates.items() if one.libraries.framework or pid in asked}
        self.chosen = ChosenRanks()
        self.rejected: dict[int, str] = {pid: reason for pid, _, reason in found.unreadable}
        self.notes: list[str] = list(found.notes)
        self.connections = Connections(root, self.notes)
        self._evidence = Evidence(
            self.chosen, lambda pid: self.connections.ends(pid, self.parents.get(pid, 0)), self.cgroup
        )
        self._cgroups: dict[int, str] = {}
        self._later: dict[int, Claim | None] = {}
        self._compile: dict[int, bool] = {}
        self._serve: dict[int, bool] = {}

    def in_order(self, pids: Iterable[int]) -> Iterable[int]:
        """Sort processes with a training library by their start, the oldest first."""
        return sorted(pids, key=lambda pid: (self.loaded[pid].start_ticks, pid))

    def above(self, pid: int) -> Iterable[int]:
        """Yield the ancestors of a process, nearest first."""
        above = pid
        for _ in range(_MAX_DEPTH):
            above = self.parents.get(above, 0)
            if above <= 1 or above == pid:  # the table may be read while it changes
                return
            yield above

    def ancestor(self, pid: int, launchers: bool = False) -> Candidate | None:
        """Return the nearest ancestor with a training library; none above a launcher unless
        `launchers`.
        """
        for above in self.above(pid):
            if above in self.loaded:
                return None if above in self.rejected and not launchers else self.loaded[above]
        return None

    def later_claim(self, one: Candidate) -> Claim | None:
        """Return the claim that a process wrote into its own environment after its start."""
        if one.pid not in self._later:  # cached, as each of its children needs it
            now = {} if one.own_words else read_live_environ(one.pid, self.root)
            claim = parse_later_claim(now, one.node) if now else None
            self._later[one.pid] = None if claim is None else claim.by(one.owner)
        return self._later[one.pid]

    def cmdline(self, pid: int) -> tuple[str, ...]:
        """Return the command line of any process; () where unreadable."""
        return self.loaded[pid].cmdline if pid in self.loaded else command_line(pid, self.root)

    def compiles(self, pid: int) -> bool:
        """Tell whether a process is a compiler, by its name and command line; cached."""
        if pid not in self._compile:
            self._compile[pid] = is_compiler(self.scan.processes[pid].comm, self.cmdline(pid))
        return self._compile[pid]

    def serves(self, pid: int) -> bool:
        """Tell whether a process is an inference engine."""
        if pid not in self._serve:
            self._serve[pid] = purpose(self.cmdline(pid)) == SERVER
        return self._serve[pid]

    def is_connected(self, pid: int) -> bool:
        """Tell whether a process has established TCP connections that its parent has not."""
        return bool(self.connections.own(pid, self.parents.get(pid, 0)))

    def together(self, pids: list[int]) -> int:
        """Count the processes that are connected with another one of `pids`."""
        if len(pids) < 2:
            return 0
        return sum(map(len, self.connections.groups(pids, {pid: self.parents.get(pid, 0) for pid in pids})))

    def cgroup(self, pid: int) -> str:
        """Return the path of a process's control group, cached; '' where unreadable."""
        if pid not in self._cgroups:
            self._cgroups[pid] = read_facts(pid, self.root).cgroup
        return self._cgroups[pid]

    def evidence(self, pid: int) -> tuple[bool, bool]:
        """Tell whether a process is connected with another rank of its job, and whether it shares a
        control group with one.
        """
        return self._evidence.of(pid)

    def is_orphan_worker(self, pid: int) -> bool:
        """Tell whether a chosen process is only a worker whose rank is gone.

        It bears the name of PyTorch's loader workers, whatever connections it has, which its rank left to it; or it
        was forked by multiprocessing, has no connections, and its number is no guess.
        """
        one = self.loaded[pid]
        forked = "--multiprocessing-fork" in one.cmdline and not self.chosen[pid].guessed
        return one.comm == "pt_data_worker" or (forked and not self.is_connected(pid))

    def number(self, group: list[int], job: str, base: Claim | None, parents: dict[int, int]) -> None:
        """Choose a group of processes that work together as ranks, and number them.

        `job`: its name where no claim names one; `base`: the claim of the process that started them, None
        without one; `parents`: parent by pid. Numbers that are guesses are noted.
        """
        ordered = list(self.in_order(group))
        hub = self.connections.hub(ordered, parents)
        numbered = number_group(
            [Member(pid, self.loaded[pid].cmdline, self.loaded[pid].local_rank) for pid in ordered],
            hub.pid if hub is not None else None,
            hub is not None and hub.whole,
        )
        name = job if base is None else f"{base.job}-spawn-{self.host}"
        local_world = numbered[0].world_size if hub is not None and hub.whole else len(numbered)
        hosts = base is not None and not base.this_host_only and base.world_size not in (0, 1, len(numbered))
        if base is not None and hosts and not (hub is not None and hub.whole) and not numbered[0].told:
            # The launcher numbered hosts, and each of them started as many ranks.
            name, first = f"{base.job}-spawn", base.rank * len(numbered)
            world = base.world_size * len(numbered)
            numbered = tuple(replace(one, rank=first + one.rank, world_size=world, certain=False) for one in numbered)
        for one in numbered:
            claim = Claim(
                "command line" if one.told else "multiprocessing",
                name, one.rank, one.local_rank, one.world_size, local_world, "", True,
            )  # fmt: skip
            self.chosen[one.pid] = Chosen(self.loaded[one.pid], claim, guessed=not one.certain)
        doubtful = [one for one in numbered if not one.certain]
        if doubtful:
            how = "their command lines" if doubtful[0].told else "the order in which they started"
            pids = ", ".join(str(one.pid) for one in doubtful[:16]) + (", …" if len(doubtful) > 16 else "")
            self.notes.append(
                f"{name}: no environment names the ranks of pids {pids}; "
                f"their numbers are a guess from {how}, and hold for this host only"
            )
