"""Which processes of this host are ranks, which processes belong to them, and which only look like ranks.

In: /proc. Out: RankCensus. A rank is a process that has a training library mapped and an identity:
  1. its environment claims one (torchrun, Slurm, Open MPI, …; identity.py), and no ancestor that also has a training
     library claims the same one: then it is that ancestor's data-loader worker or other helper;
  2. or none does, but it holds TCP connections to siblings that did the same: torch.multiprocessing.spawn, or processes
     that set the environment after they began. Their numbers are guesses by order of start, or come from `--rank N`.
A process whose children claim ranks of their own is a launcher. Of several processes that claim the same rank one counts.
Measured: 32 µs per process (0.16 s for 5,000), and 1-2 ms more for each one with torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.observer.census.candidates import Candidate, Scan, scan
from rankscope.observer.census.containers import find_container
from rankscope.observer.census.found import FoundRank, RankCensus, Rejected, Worker
from rankscope.observer.census.identity import Claim, RankIdentity, parse_arguments, printable, shorten
from rankscope.observer.census.kinship import Connections
from rankscope.observer.census.launchers import is_tool, launcher_name
from rankscope.probes.host import procfs
from rankscope.probes.host.cgroup import best_path, read_entries
from rankscope.probes.host.namespaces import host_name, namespace_inode
from rankscope.probes.host.procfs import ROOT

MAX_DEPTH = 64
MAX_WORKERS = 4096  # of one rank


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A process taken for a rank so far."""

    process: Candidate
    claim: Claim
    guessed: bool = False


def find_ranks(root: Path = ROOT) -> RankCensus:
    """The ranks among the processes of this host. Never raises: what cannot be read is in `rejected` or `notes`."""
    return _Census(scan(root), root).result()


class _Census:
    """The rules, one method each, in the order in which they apply."""

    def __init__(self, found: Scan, root: Path) -> None:
        self._scan = found
        self._root = root
        self._host = host_name(root)
        self._connections = Connections(root)
        self._parents = {pid: stat.ppid for pid, stat in found.processes.items()}
        self._loaded = {pid: one for pid, one in found.candidates.items() if one.libraries.framework}
        self._chosen: dict[int, _Chosen] = {}
        self._rejected: dict[int, str] = {pid: reason for pid, _, reason in found.unreadable}
        self._notes: list[str] = list(found.notes)

    def result(self) -> RankCensus:
        self._reject_launchers()
        self._choose_claimants()
        self._choose_spawned()
        self._choose_unnamed()
        self._resolve_duplicates()
        workers = self._find_workers()
        members = {worker.pid for group in workers.values() for worker in group}
        self._reject_rest(members)
        ranks = [self._describe(chosen, tuple(workers.get(pid, ()))) for pid, chosen in self._chosen.items()]
        ranks.sort(key=lambda rank: (rank.identity.job, rank.identity.rank, rank.pid))
        rejected = [
            Rejected(pid, printable(self._scan.processes[pid].comm, 32), reason)
            for pid, reason in sorted(self._rejected.items())
            if pid not in members and pid in self._scan.processes
        ]
        return RankCensus(tuple(ranks), tuple(rejected), tuple(dict.fromkeys(self._notes)))

    # --- rules ---

    def _reject_launchers(self) -> None:
        for pid, one in self._loaded.items():
            name = launcher_name(one.cmdline)
            if name and one.comm != "pt_data_worker" and "--multiprocessing-fork" not in one.cmdline:
                self._rejected[pid] = f"launcher ({name}): it starts ranks, it is none"
            elif is_tool(one.cmdline):
                self._rejected[pid] = "a tool that uses a training library, not a training process"

    def _choose_claimants(self) -> None:
        """Rule 1. Parents come before children, so that a child can be compared with what its parent was taken for."""
        for pid in self._in_order(self._loaded):
            one = self._loaded[pid]
            if one.claim is None or pid in self._rejected:
                continue
            above = self._ancestor(pid)
            if above is None or above.claim is None:
                self._chosen[pid] = _Chosen(one, one.claim)
                continue
            if _same(above.claim, one.claim):
                continue  # a worker of the rank above, or a rank that mp.spawn made: decided later
            if one.claim.world_size > 1 or above.claim.job == one.claim.job:
                # A node's rank in the pod's environment, the real ranks below: torchrun under another name.
                self._chosen[pid] = _Chosen(one, one.claim)
                if self._chosen.pop(above.pid, None) is not None:
                    self._rejected[above.pid] = "launcher: its children have ranks of their own"

    def _choose_spawned(self) -> None:
        """Rule 2 for children of one process: those that are connected with each other by TCP are ranks."""
        families: dict[int, list[int]] = {}
        for pid, one in self._loaded.items():
            above = self._ancestor(pid, launchers=True)
            if pid in self._chosen or pid in self._rejected or above is None or one.comm == "pt_data_worker":
                continue
            if one.claim is None or (above.claim is not None and _same(above.claim, one.claim)):
                families.setdefault(above.pid, []).append(pid)
        for parent, children in families.items():
            if len(children) < 2:
                continue
            chosen = self._chosen.get(parent)
            for group in self._connections.groups(children, dict.fromkeys(children, parent)):
                base = chosen.claim if chosen is not None else None
                self._guess(group, f"spawn-{self._host}-{parent}", base)
                self._chosen.pop(parent, None)
                self._rejected[parent] = "it started ranks by multiprocessing and waits for them"

    def _choose_unnamed(self) -> None:
        """Rule 2 for processes on their own: connected with others of their kind, or with `--rank N` and connections."""
        lonely = [
            pid
            for pid in self._in_order(self._loaded)
            if self._loaded[pid].claim is None
            and pid not in self._chosen
            and pid not in self._rejected
            and self._ancestor(pid, launchers=True) is None
        ]
        parents = {pid: self._parents.get(pid, 0) for pid in lonely}
        grouped: set[int] = set()
        for group in self._connections.groups(lonely, parents):
            self._guess(group, f"local-{self._host}-{min(group)}", None)
            grouped |= set(group)
        for pid in lonely:
            rank, local, world = parse_arguments(self._loaded[pid].cmdline)
            if pid in grouped or rank is None or not self._connections.reaches_out(pid, parents[pid]):
                continue
            claim = Claim("command line", f"local-{self._host}-{pid}", rank, local, world, 0, "", True)
            self._chosen[pid] = _Chosen(self._loaded[pid], claim, guessed=True)
            self._notes.append(f"pid {pid}: rank {rank} is what its command line says; nothing names its job")

    def _guess(self, group: list[int], job: str, base: Claim | None) -> None:
        ordered = list(self._in_order(group))
        said = [parse_arguments(self._loaded[pid].cmdline) for pid in ordered]
        numbers = [rank for rank, _, _ in said if rank is not None]
        told = len(numbers) == len(ordered) == len(set(numbers))
        for position, pid in enumerate(ordered):
            rank, local, world = said[position]
            number = rank if told and rank is not None else position
            claim = Claim(
                "command line" if told else "multiprocessing",
                job if base is None else f"{base.job}-spawn-{self._host}",
                number,
                local if told and local >= 0 else position,
                world if told and world else len(ordered),
                len(ordered),
                "",
                True,
            )
            self._chosen[pid] = _Chosen(self._loaded[pid], claim, guessed=True)
        how = "their command lines" if told else "the order in which they started"
        self._notes.append(
            f"{claim.job}: no environment names the ranks of pids {', '.join(map(str, ordered[:16]))}"
            f"{', …' if len(ordered) > 16 else ''}; their numbers are a guess from {how}, and hold for this host only"
        )

    def _resolve_duplicates(self) -> None:
        """Of several processes that claim one rank: the one with connections of its own, else the oldest."""
        claims: dict[tuple[str, int], list[int]] = {}
        for pid in self._in_order(self._chosen):
            claim = self._chosen[pid].claim
            claims.setdefault((claim.job, claim.rank), []).append(pid)
        for same in claims.values():
            pids = same
            if len(pids) == 1:
                continue
            for group in self._connections.groups(pids, {pid: self._parents.get(pid, 0) for pid in pids}):
                # All were given one identity by whatever started them, but they work together: ranks of one task.
                base = self._chosen[group[0]].claim
                self._guess(group, base.job, base)
                pids = [pid for pid in pids if pid not in group]
            if len(pids) < 2:
                continue
            scores = {pid: (not self._is_orphan_worker(pid), self._is_connected(pid)) for pid in pids}
            best = max(pids, key=scores.__getitem__)  # the first of equals: the oldest
            for pid in pids:
                if pid != best:
                    claim = self._chosen.pop(pid).claim
                    self._rejected[pid] = f"claims rank {claim.rank} of {claim.job}, which is pid {best}"
        for pid in [pid for pid in self._chosen if self._is_orphan_worker(pid)]:
            self._chosen.pop(pid)
            self._rejected[pid] = "a data-loader worker whose rank is gone"

    def _find_workers(self) -> dict[int, list[Worker]]:
        """Every living descendant of a rank belongs to the nearest rank above it."""
        workers: dict[int, list[Worker]] = {}
        for pid in self._scan.processes:
            if pid in self._chosen:
                continue
            rank = next((above for above in self._above(pid) if above in self._chosen), None)
            if rank is not None and len(workers.setdefault(rank, [])) < MAX_WORKERS:
                comm = printable(self._scan.processes[pid].comm, 32)
                workers[rank].append(Worker(pid, self._worker_kind(pid, rank), comm))
        return workers

    def _reject_rest(self, members: set[int]) -> None:
        for pid, one in self._scan.candidates.items():
            if pid in self._chosen or pid in self._rejected or pid in members:
                continue
            if not one.libraries.framework:
                rank = f"rank {one.claim.rank}" if one.claim else "a rank"
                has_rank_below = any(pid in self._above(chosen) for chosen in self._chosen)
                what = (
                    "it is a wrapper around the rank"
                    if has_rank_below
                    else "it may be starting"
                    if one.python
                    else "not Python"
                )
                self._rejected[pid] = f"its environment names {rank}, but no training library is loaded: {what}"
            elif one.claim is not None:
                self._rejected[pid] = f"inherits rank {one.claim.rank} from a process that is no rank"
            else:
                self._rejected[pid] = (
                    f"{one.libraries.framework} is loaded, but neither environment nor connections to siblings name a rank"
                )

    # --- facts ---

    def _in_order(self, pids: Iterable[int]) -> Iterable[int]:
        return sorted(pids, key=lambda pid: (self._loaded[pid].start_ticks, pid))

    def _above(self, pid: int) -> Iterable[int]:
        """Ancestors, nearest first."""
        above = pid
        for _ in range(MAX_DEPTH):
            above = self._parents.get(above, 0)
            if above <= 1 or above == pid:  # the table may be read while it changes
                return
            yield above

    def _ancestor(self, pid: int, launchers: bool = False) -> Candidate | None:
        """The nearest ancestor with a training library; none above a launcher."""
        for above in self._above(pid):
            if above in self._loaded:
                return None if above in self._rejected and not launchers else self._loaded[above]
        return None

    def _is_connected(self, pid: int) -> bool:
        return bool(self._connections.own(pid, self._parents.get(pid, 0)))

    def _is_orphan_worker(self, pid: int) -> bool:
        one = self._loaded[pid]
        forked = one.comm == "pt_data_worker" or "--multiprocessing-fork" in one.cmdline
        return forked and not self._chosen[pid].guessed and not self._is_connected(pid)

    def _worker_kind(self, pid: int, rank: int) -> str:
        one = self._loaded.get(pid)
        if one is not None and one.comm == "pt_data_worker":
            return "loader"
        try:
            cmdline = one.cmdline if one is not None else procfs.read_cmdline(pid, self._root)
        except OSError:
            cmdline = ()
        text = " ".join(cmdline)[:4096]
        if "resource_tracker" in text:
            return "tracker"
        if "multiprocessing.forkserver" in text or "multiprocessing.fork" in text:
            above = self._parents.get(pid, 0)
            return "loader" if one is not None and above != rank and above not in self._chosen else "forkserver"
        if "compile_worker" in text:
            return "compiler"
        if one is not None and ("--multiprocessing-fork" in cmdline or cmdline == self._loaded[rank].cmdline):
            return "loader"
        return "helper"

    def _command(self, one: Candidate) -> tuple[str, ...]:
        """What the rank runs: multiprocessing's own command line says nothing, that of the process above it does."""
        for _ in range(MAX_DEPTH):
            above = self._loaded.get(self._parents.get(one.pid, 0))
            if "--multiprocessing-fork" not in one.cmdline or above is None or above is one:
                break
            one = above
        return one.cmdline

    def _describe(self, chosen: _Chosen, workers: tuple[Worker, ...]) -> FoundRank:
        one, claim = chosen.process, chosen.claim
        inner_pid, cpus = one.pid, ""
        try:
            status = procfs.read_status(one.pid, self._root)
            inner_pid, cpus = status.inner_pid, status.cpus_allowed[:1024]
        except (OSError, ValueError) as error:
            self._notes.append(f"pid {one.pid}: status: {procfs.reason(error)}")
        try:
            netns = namespace_inode(one.pid, "net", self._root)
        except (OSError, ValueError) as error:
            netns = 0
            self._notes.append(f"pid {one.pid}: network namespace: {procfs.reason(error)}")
        try:
            entries = read_entries(one.pid, self._root)
        except OSError as error:
            entries = ()
            self._notes.append(f"pid {one.pid}: control groups: {procfs.reason(error)}")
        if claim.this_host_only and not chosen.guessed and claim.world_size > max(claim.local_world_size, 1):
            self._notes.append(
                f"{claim.job}: the master address names no host; ranks elsewhere may show as another job"
            )
        container = find_container(entry.path for entry in entries)
        identity = RankIdentity(
            job=claim.job,
            rank=claim.rank,
            local_rank=claim.local_rank,
            world_size=claim.world_size,
            role=claim.role,
            host=self._host,
            node=printable(one.node, 64),
            container=container.container_id if container else "",
            pid=one.pid,
            inner_pid=inner_pid,
            netns=netns,
            addresses=(),
            gpus=(),
            nics=(),
            cpus=cpus,
            python=one.libraries.python_version,
            command=shorten(self._command(one)),
        )
        stat = self._scan.processes[one.pid]
        return FoundRank(
            identity,
            one.pid,
            stat.start_ticks,
            stat.start_s,
            tuple(sorted(workers, key=lambda worker: worker.pid)),
            one.libraries,
            container,
            best_path(entries),
            claim.launcher,
            chosen.guessed,
        )


def _same(one: Claim, other: Claim) -> bool:
    """Whether two environments make the same claim: one inherited it from the other."""
    return (one.job, one.rank, one.local_rank, one.world_size) == (
        other.job,
        other.rank,
        other.local_rank,
        other.world_size,
    )


def with_devices(
    rank: FoundRank, addresses: tuple[str, ...], gpus: tuple[str, ...], nics: tuple[str, ...]
) -> FoundRank:
    """The same rank with what connections and devices tell of it."""
    return replace(rank, identity=replace(rank.identity, addresses=addresses, gpus=gpus, nics=nics))
