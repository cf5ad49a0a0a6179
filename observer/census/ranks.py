"""Which processes of this host are ranks, which processes belong to them, and which only look like ranks.

In: /proc. Out: RankCensus. A rank is a process that has a training library mapped and an identity:
  1. its environment claims one (torchrun, Slurm, Open MPI, …; identity.py), as it was at the start or, where that says nothing,
     as it is now, and no ancestor that also has a training library claims the same one: then it is that ancestor's worker;
  2. or its children claim all ranks but the lowest, and it is connected with them: a script that starts the others itself;
  3. or nobody claims one, but it holds TCP connections to siblings that did the same: torch.multiprocessing.spawn, JAX, actors
     of Ray. numbering.py finds their numbers, and says which of them are guesses.
A process whose children claim all ranks is a launcher. Of several processes that claim the same rank one counts; what another user
claims of a job is a job of its own.
Measured: 32 µs per process (0.16 s for 5,000), and 1-2 ms more for each one with torch.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rankscope.observer.census.candidates import EACH_S, FREELY_S, MPI, Candidate, Scan, command_line, scan
from rankscope.observer.census.describe import identity_of, local_rank, read_facts
from rankscope.observer.census.found import FoundRank, RankCensus, Rejected, Worker
from rankscope.observer.census.identity import Claim, parse_arguments, parse_later_claim, same_rank
from rankscope.observer.census.kinship import Connections
from rankscope.observer.census.launchers import SERVER, is_ray_controller, is_tool, launcher_name, purpose, ray_actor
from rankscope.observer.census.live_environ import read_live_environ
from rankscope.observer.census.numbering import Member, number_by_node, number_group
from rankscope.observer.census.reasons import ALONE, STARTING, why_no_candidate, why_no_rank
from rankscope.observer.census.titles import is_python, runs_anothers, title
from rankscope.observer.census.workers import is_compiler, worker_kind
from rankscope.observer.window.jobs import of_user
from rankscope.observer.window.missing import missing_ranks
from rankscope.probes.fair import Fair, whose
from rankscope.probes.host.namespaces import host_name, owner_uid
from rankscope.probes.host.procfs import ROOT
from rankscope.probes.patience import patiently
from rankscope.probes.text import printable

MAX_DEPTH = 64
MAX_WORKERS = 4096  # of one rank
_ALIKE_MOST = 64  # processes of which each says that it is the same rank: each is compared with all ranks of the job
_LAUNCHERS_DEEP = 4  # mpiexec, its proxy, a shell that wraps the rank


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A process taken for a rank so far."""

    process: Candidate
    claim: Claim
    guessed: bool = False


def find_ranks(root: Path = ROOT) -> RankCensus:
    """The ranks among the processes of this host. Never raises: what cannot be read is in `rejected` or `notes`."""
    found = scan(root)
    return patiently(lambda: _Census(found, root).result())


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
        self._owners: dict[int, int] = {}
        self._cgroups: dict[int, str] = {}
        self._later: dict[int, Claim | None] = {}
        self._compile: dict[int, bool] = {}
        self._serve: dict[int, bool] = {}

    def result(self) -> RankCensus:
        self._reject_launchers()
        self._choose_claimants()
        self._choose_parents_of_ranks()
        for pid, (claim, certain) in number_by_node({pid: one.claim for pid, one in self._chosen.items()}).items():
            self._chosen[pid] = _Chosen(self._chosen[pid].process, claim, guessed=not certain)
        self._choose_spawned()
        self._choose_unnamed()
        self._separate_users()
        self._separate_launchers()
        self._resolve_duplicates()
        workers = self._find_workers()
        members = {worker.pid for group in workers.values() for worker in group}
        self._reject_rest(members)
        ranks = [self._describe(chosen, tuple(workers.get(pid, ()))) for pid, chosen in self._chosen.items()]
        ranks.sort(key=lambda rank: (rank.identity.job, rank.identity.rank, rank.pid))
        for job, gone in missing_ranks(local_rank(rank.identity) for rank in ranks).items():
            numbers = ", ".join(map(str, gone.numbers[:16])) + (", …" if len(gone.numbers) > 16 else "")
            which = f": {numbers}" if numbers else ""
            self._notes.append(f"{job}: {gone.count} of its ranks that should run on this host were not found{which}")
        rejected = [
            Rejected(pid, printable(self._scan.processes[pid].comm, 32), reason)
            for pid, reason in sorted(self._rejected.items(), key=lambda item: (item[0] in self._scan.others, item[0]))
            if pid not in members and pid in self._scan.processes
        ]
        alone = tuple(
            self._loaded[one.pid] for one in rejected if one.reason.endswith(ALONE) and one.pid in self._loaded
        )
        starting = tuple(self._scan.candidates[one.pid] for one in rejected if one.reason.endswith(STARTING))
        return RankCensus(tuple(ranks), tuple(rejected), tuple(dict.fromkeys(self._notes)), alone, starting)

    # --- rules ---

    def _reject_launchers(self) -> None:
        for pid, one in self._loaded.items():
            name = launcher_name(one.cmdline)
            if name and one.comm != "pt_data_worker" and "--multiprocessing-fork" not in one.cmdline:
                self._rejected[pid] = f"launcher ({name}): it starts ranks, it is none"
            elif is_tool(one.cmdline):
                self._rejected[pid] = "a tool that uses a training library, not a training process"
            elif is_ray_controller(one.cmdline):
                self._rejected[pid] = "Ray's train controller: it starts the workers, which are the ranks"

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
            if same_rank(above.claim, one.claim):
                if above.libraries.framework == MPI != one.libraries.framework:
                    self._chosen[pid] = _Chosen(one, one.claim)
                    self._chosen.pop(above.pid, None)
                    self._rejected[above.pid] = (
                        "a wrapper around the rank: it has MPI, the process that it started trains"
                    )
                continue  # else a worker of the rank above, or a rank that mp.spawn made: decided later
            sibling = self._as_sibling(above, one.claim)
            if sibling is not None:
                # It is a rank itself and started the others: Lightning, or any script that does the same.
                self._chosen[pid] = _Chosen(one, one.claim)
                if above.pid in self._chosen:
                    self._chosen[above.pid] = _Chosen(above, sibling)
            elif one.claim.world_size > 1 or above.claim.job == one.claim.job:
                # A node's rank in the pod's environment, the real ranks below: torchrun under another name.
                self._chosen[pid] = _Chosen(one, one.claim)
                if self._chosen.pop(above.pid, None) is not None:
                    self._rejected[above.pid] = "launcher: its children have ranks of their own"

    def _as_sibling(self, above: Candidate, claim: Claim) -> Claim | None:
        """What a process claims that stands above a rank and is another one of the same job; None where it is none."""
        for said in (above.claim, self._later_claim(above)):
            if said is not None and (said.job, said.world_size, said.node_rank) == (
                claim.job, claim.world_size, claim.node_rank
            ) and said.rank != claim.rank and said.world_size > 1:  # fmt: skip
                return said
        return None

    def _later_claim(self, one: Candidate) -> Claim | None:
        """What it wrote into its own environment after its start."""
        if one.pid not in self._later:  # asked for by each of its children
            now = {} if one.own_words else read_live_environ(one.pid, self._root)
            self._later[one.pid] = parse_later_claim(now, one.node) if now else None
        return self._later[one.pid]

    def _choose_parents_of_ranks(self) -> None:
        """Rule 2. The children of a launcher have all ranks; those of a rank that started the others lack its own."""
        children: dict[int, list[_Chosen]] = {}
        for child, one in self._chosen.items():
            children.setdefault(getattr(self._ancestor(child), "pid", 0), []).append(one)
        for pid in self._in_order(self._loaded):
            if pid in self._chosen or pid in self._rejected or self._loaded[pid].claim is not None:
                continue
            below = children.get(pid, [])
            claims = [one.claim for one in below]
            if len({(one.job, one.world_size, one.node_rank) for one in claims}) != 1:
                continue
            first = min(claims, key=lambda claim: claim.rank)
            least = first.rank - first.local_rank
            if first.local_rank < 1 or least < 0 or len(claims) >= first.world_size:
                continue
            group = [pid, *(one.process.pid for one in below)]
            connected = self._connections.groups(group, {each: self._parents.get(each, 0) for each in group})
            if any(pid in linked for linked in connected):
                claim = replace(first, launcher="its children", rank=least, local_rank=0)
                self._chosen[pid] = _Chosen(self._loaded[pid], claim)
                children.setdefault(getattr(self._ancestor(pid), "pid", 0), []).append(self._chosen[pid])

    def _choose_spawned(self) -> None:
        """Rule 3 for children of one process: those that are connected with each other by TCP are ranks."""
        families: dict[tuple[int, str], list[int]] = {}
        for pid, one in self._loaded.items():
            above = self._ancestor(pid, launchers=True)
            if pid in self._chosen or pid in self._rejected or above is None or one.comm == "pt_data_worker":
                continue
            if any(map(self._serves, self._above(pid))):
                continue  # on several devices
            if one.claim is None or (above.claim is not None and same_rank(above.claim, one.claim)):
                families.setdefault((above.pid, ray_actor(one.cmdline)), []).append(pid)
        for (parent, actor), children in families.items():
            chosen = self._chosen.get(parent)
            base = chosen.claim if chosen is not None else None
            parents = {**dict.fromkeys(children, parent), parent: self._parents.get(parent, 0)}
            together = self._with_parent(parent, children, parents)
            if chosen is not None and not together and self._evidence(parent)[0]:
                continue  # it works with other ranks: what it started, and what talks among itself, works for it
            for group in [together] if together else self._connections.groups(children, parents):
                self._number(group, f"spawn-{self._host}-{parent}", base, parents)
                if parent not in group:
                    self._chosen.pop(parent, None)
                    self._rejected[parent] = (
                        "the driver of a Ray job: its actors train"
                        if actor
                        else "it started ranks by multiprocessing and waits for them"
                    )

    def _with_parent(self, parent: int, children: list[int], parents: dict[int, int]) -> list[int]:
        """The children with the process that started them, where that is rank 0 itself (JAX); [] where it only serves them."""
        if parent in self._rejected:
            return []
        for group in self._connections.groups([parent, *children], parents):
            hub = self._connections.hub(group, parents) if parent in group else None
            if hub is None or hub.pid != parent:
                continue
            told = [parse_arguments(self._loaded[pid].cmdline)[0] for pid in group if pid != parent]
            if all(told) or self._connections.linked_beside(hub, group, parents):
                return group
        return []

    def _choose_unnamed(self) -> None:
        """Rule 3 for processes on their own: connected with others of their kind, or with `--rank N` and connections."""
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
        alike: dict[str, list[int]] = {}
        for pid in lonely:
            alike.setdefault(ray_actor(self._loaded[pid].cmdline), []).append(pid)
        for _, members in sorted(alike.items()):
            for group in self._connections.groups(members, parents):
                self._number(group, f"local-{self._host}-{min(group)}", None, parents)
                grouped |= set(group)
        for pid in lonely:
            rank, local, world = parse_arguments(self._loaded[pid].cmdline)
            if pid in grouped or rank is None or not self._connections.reaches_out(pid, parents[pid]):
                continue
            claim = Claim("command line", f"local-{self._host}-{pid}", rank, local, world, 0, "", True)
            self._chosen[pid] = _Chosen(self._loaded[pid], claim, guessed=True)
            self._notes.append(f"pid {pid}: rank {rank} is what its command line says; nothing names its job")

    def _number(self, group: list[int], job: str, base: Claim | None, parents: dict[int, int]) -> None:
        """Take a group of processes that work together for ranks."""
        ordered = list(self._in_order(group))
        hub = self._connections.hub(ordered, parents)
        numbered = number_group(
            [Member(pid, self._loaded[pid].cmdline, self._loaded[pid].local_rank) for pid in ordered],
            hub.pid if hub is not None else None,
            hub is not None and hub.whole,
        )
        name = job if base is None else f"{base.job}-spawn-{self._host}"
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
            self._chosen[one.pid] = _Chosen(self._loaded[one.pid], claim, guessed=not one.certain)
        doubtful = [one for one in numbered if not one.certain]
        if doubtful:
            how = "their command lines" if doubtful[0].told else "the order in which they started"
            pids = ", ".join(str(one.pid) for one in doubtful[:16]) + (", …" if len(doubtful) > 16 else "")
            self._notes.append(
                f"{name}: no environment names the ranks of pids {pids}; "
                f"their numbers are a guess from {how}, and hold for this host only"
            )

    def _separate_users(self) -> None:
        """A job is one user's. What others claim of it makes them a job of their own: nobody puts another's ranks out of sight."""
        claims: dict[str, dict[int, list[int]]] = {}
        for pid in self._in_order(self._chosen):
            self._owners[pid] = owner_uid(pid, self._root)
            of_job = claims.setdefault(self._chosen[pid].claim.job, {})
            of_job.setdefault(self._owners[pid], []).append(pid)
        for job, owners in claims.items():
            # Of a process that has just ended nobody knows.
            known = {uid: pids for uid, pids in owners.items() if uid >= 0}
            if len(known) < 2:
                continue
            working = [uid for uid, pids in known.items() if self._together(pids)]
            if len(working) > 1:
                # By numbers anybody could take the name from whose it is: nobody has it, and both are shown.
                main = -1
                users = ", ".join(map(str, sorted(working)))
                self._notes.append(
                    f"{job}: users {users} each have ranks of it that work together: it is a job of each"
                )
            else:
                # Whose processes work together; then whose are more; then who was first.
                main = working[0] if working else max(known, key=lambda uid: len(known[uid]))
            for uid, pids in known.items():
                if uid == main:
                    continue
                for pid in pids:
                    one = self._chosen[pid]
                    self._chosen[pid] = replace(one, claim=replace(one.claim, job=of_user(job, uid)))
                who = ", ".join(map(str, pids[:8])) + (", …" if len(pids) > 8 else "")
                if main >= 0:
                    self._notes.append(
                        f"{job}: its ranks are of user {main}; pids {who} of user {uid} claim ranks of it too"
                    )

    def _separate_launchers(self) -> None:
        """Launchers that give no name to what they start (two mpiexec of one batch script) started a job each: whole sets of one size."""
        claims: dict[str, list[int]] = {}
        for pid in self._in_order(self._chosen):
            claims.setdefault(self._chosen[pid].claim.job, []).append(pid)
        for job, pids in claims.items():
            if len({self._chosen[pid].claim.rank for pid in pids}) == len(pids):
                continue
            for depth in range(_LAUNCHERS_DEEP):
                below: dict[int, list[int]] = {}
                for pid in pids:
                    above = list(self._above(pid))
                    below.setdefault(above[depth] if depth < len(above) else 0, []).append(pid)
                sets = [sorted(self._chosen[pid].claim.rank for pid in group) for group in below.values()]
                whole = len(sets[0]) > 1 and all(each == sets[0] == sorted(set(each)) for each in sets)
                if whole and len(sets) > 1 and 0 not in below:
                    self._name_apart(job, below)
                    break

    def _name_apart(self, job: str, below: dict[int, list[int]]) -> None:
        for launcher, pids in below.items():
            for pid in pids:
                one = self._chosen[pid]
                self._chosen[pid] = replace(one, claim=replace(one.claim, job=f"{job}-{launcher}", this_host_only=True))
        launchers = ", ".join(map(str, sorted(below)[:8]))
        self._notes.append(f"{job}: started {len(below)} times side by side (pids {launchers}): a job each")

    def _together(self, pids: list[int]) -> int:
        """How many of these processes are connected with another of them."""
        if len(pids) < 2:
            return 0
        return sum(map(len, self._connections.groups(pids, {pid: self._parents.get(pid, 0) for pid in pids})))

    def _resolve_duplicates(self) -> None:
        """Of several processes that claim one rank: the one with connections of its own, else the oldest."""
        claims: dict[tuple[str, int], list[int]] = {}
        for pid in self._in_order(self._chosen):
            claim = self._chosen[pid].claim
            claims.setdefault((claim.job, claim.rank), []).append(pid)
        for same in claims.values():
            pids = same[:_ALIKE_MOST]
            for pid in same[_ALIKE_MOST:]:
                claim = self._chosen.pop(pid).claim
                self._rejected[pid] = f"claims rank {claim.rank} of {claim.job}, as {len(same) - 1} others do"
            if len(pids) == 1:
                continue
            for group in self._connections.groups(pids, {pid: self._parents.get(pid, 0) for pid in pids}):
                if len({self._cgroup(pid) for pid in group}) > 1:
                    continue  # whoever else calls himself so and connects to the rank
                # All were given one identity by whatever started them, but they work together: ranks of one task.
                base = self._chosen[group[0]].claim
                self._number(group, base.job, base, {pid: self._parents.get(pid, 0) for pid in group})
                pids = [pid for pid in pids if pid not in group]
            if len(pids) < 2:
                continue
            scores = {
                pid: (not self._is_orphan_worker(pid), *self._evidence(pid), self._is_connected(pid)) for pid in pids
            }
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
        fair = Fair(FREELY_S, EACH_S)
        for pid in self._scan.processes:
            if pid in self._chosen:
                continue
            rank = next((above for above in self._above(pid) if above in self._chosen), None)
            if rank is not None and len(workers.setdefault(rank, [])) < MAX_WORKERS:
                user, began_s = partial(whose, rank, self._root), time.thread_time()
                comm = printable(self._scan.processes[pid].comm, 32)
                workers[rank].append(Worker(pid, self._worker_kind(pid, rank, read=fair.left(user) > 0), comm))
                fair.took(time.thread_time() - began_s, user)
        return workers

    def _reject_rest(self, members: set[int]) -> None:
        above_ranks: dict[int, bool] = {}  # and whether one of these is an actor of Ray
        for rank in self._chosen:
            actor = rank in self._loaded and bool(ray_actor(self._loaded[rank].cmdline))
            for above in self._above(rank):
                above_ranks[above] = above_ranks.get(above, False) or actor
        for pid, one in self._scan.candidates.items():
            if pid not in self._chosen and pid not in self._rejected and pid not in members:
                self._rejected[pid] = why_no_rank(one, pid in above_ranks, above_ranks.get(pid, False))
        for pid, other in self._scan.others.items():
            reason = why_no_candidate(other)
            if reason and pid != os.getpid():  # the census itself is Python with numpy
                self._rejected.setdefault(pid, reason)

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

    def _cgroup(self, pid: int) -> str:
        if pid not in self._cgroups:
            self._cgroups[pid] = read_facts(pid, self._root).cgroup
        return self._cgroups[pid]

    def _evidence(self, pid: int) -> tuple[bool, bool]:
        """Whether it is connected with a process taken for another rank of its job; whether it is in one's control group."""
        claim = self._chosen[pid].claim
        others = [
            other for other, one in self._chosen.items() if one.claim.job == claim.job and one.claim.rank != claim.rank
        ]
        group = [pid, *others]
        linked = self._connections.groups(group, {each: self._parents.get(each, 0) for each in group})
        return any(pid in each for each in linked), self._cgroup(pid) in map(self._cgroup, others)

    def _is_orphan_worker(self, pid: int) -> bool:
        one = self._loaded[pid]
        forked = one.comm == "pt_data_worker" or "--multiprocessing-fork" in one.cmdline
        return forked and not self._chosen[pid].guessed and not self._is_connected(pid)

    def _worker_kind(self, pid: int, rank: int, *, read: bool) -> str:
        """`read`: with its command line; else by its name alone."""
        between = list(itertools.takewhile(lambda above: above != rank, self._above(pid)))
        compiles = any(map(self._compiles, between)) if read else False
        comm = self._scan.processes[pid].comm
        cmdline = self._cmdline(pid) if read else ()
        return worker_kind(comm, cmdline, self._loaded[rank].cmdline, pid in self._loaded, bool(between), compiles)

    def _compiles(self, pid: int) -> bool:
        if pid not in self._compile:
            self._compile[pid] = is_compiler(self._scan.processes[pid].comm, self._cmdline(pid))
        return self._compile[pid]

    def _serves(self, pid: int) -> bool:
        """Whether it is an engine of inference."""
        if pid not in self._serve:
            self._serve[pid] = purpose(self._cmdline(pid)) == SERVER
        return self._serve[pid]

    def _cmdline(self, pid: int) -> tuple[str, ...]:
        return self._loaded[pid].cmdline if pid in self._loaded else command_line(pid, self._root)

    def _command(self, one: Candidate) -> tuple[str, ...]:
        """What the rank runs: where its command line says nothing of that, the one of the process which started it does.

        That one need not have loaded a training library: a script that leaves its imports to its workers has none.
        """
        command = one.cmdline
        for above in self._above(one.pid):
            if not runs_anothers(command):
                break
            started_by = self._cmdline(above)
            if not is_python(started_by):  # it has ended, and whoever adopts orphans here is no job
                return one.cmdline
            command = started_by
        return command

    def _describe(self, chosen: _Chosen, workers: tuple[Worker, ...]) -> FoundRank:
        one, claim = chosen.process, chosen.claim
        if claim.this_host_only and not chosen.guessed and claim.world_size > max(claim.local_world_size, 1):
            self._notes.append(
                f"{claim.job}: the master address names no host; ranks elsewhere may show as another job"
            )
        facts = read_facts(one.pid, self._root)
        self._notes += facts.notes
        command = self._command(one)
        stat = self._scan.processes[one.pid]
        return FoundRank(
            identity=identity_of(
                one, claim, facts, self._host, command, title(self._titled(one, command), one.scheduler)
            ),
            pid=one.pid,
            start_ticks=stat.start_ticks,
            start_s=stat.start_s,
            workers=tuple(sorted(workers, key=lambda worker: worker.pid)),
            libraries=one.libraries,
            container=facts.container,
            cgroup=facts.cgroup,
            launcher=claim.launcher,
            guessed=chosen.guessed,
            owner=self._owners.get(one.pid, -1),
        )

    def _titled(self, one: Candidate, command: tuple[str, ...]) -> tuple[str, ...]:
        """The command line that says what the job is: an actor of Ray is called by the script that started it, where that is here."""
        if not ray_actor(command):
            return command
        above = self._ancestor(one.pid, launchers=True)
        return above.cmdline if above is not None else command
