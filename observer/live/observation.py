"""Gather data while a window runs: drain events, name stacks, update threads and processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from rankscope.observer.census.found import FoundRank, Worker, user_of
from rankscope.observer.census.workers import FEEDING, is_compiler
from rankscope.observer.live import kernel_probes, limits, process_watch
from rankscope.observer.live.fallback import Fallback
from rankscope.observer.live.gauges import Gauges
from rankscope.observer.live.held import Held
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.live.names import Names
from rankscope.observer.live.priority import going_first
from rankscope.observer.live.process_watch import LOADER, TRAINING, ProcessWatch
from rankscope.observer.live.samplers import Hardware
from rankscope.observer.live.shares import Room, choose_sampled, entries, room_left
from rankscope.observer.serving.watch import ServerWatch
from rankscope.observer.thread.functions import StackName
from rankscope.observer.window.manifest import Loss, ProbeCost
from rankscope.probes.base.patience import patiently
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.launches import LaunchCount
from rankscope.probes.host import procfs
from rankscope.probes.host.fair import Fair, group_by, interleave
from rankscope.probes.host.procfs import proc_path, read_file
from rankscope.probes.mapped.reader import READER
from rankscope.probes.network.flows import FlowTracker
from rankscope.probes.sched import probe as sched
from rankscope.unwinder.gpu.files import KernelNames

Progress = Callable[[str], None]
Whose = Callable[[ProcessWatch | None], str]

_DRAIN_EVERY_S = 0.25
# CPU seconds for each update of threads and of workers: for all processes together, and then per
# user. A process with ten threads takes 0.3 ms, one with 256 takes 10.
REFRESH_FREELY_S, REFRESH_EACH_S = 0.25, 0.05
# The same for naming stacks in one drain: a function takes 25 us to read, those of 64 ranks some
# tenths of a second. The ring has room for as long. What is left out is named when it is seen
# again.
NAME_FREELY_S, NAME_EACH_S = 2.0, 0.25
_REFRESH_EVERY_S = 1.0
# the kernel walks its table of connections, of hundreds of thousands of slots: 1 ms and more a
# namespace
_FLOWS_EVERY_S = 2.0
_SAY_EVERY_S = 5.0
_MAX_TASKS = 1024  # tasks of a rank whose children are listed: 10 us each
_MAX_WORKERS = 256  # per rank; a training script has no use for more


@dataclass(frozen=True, slots=True)
class Totals:
    """Growing sums as they were when the window began."""

    threads: dict[int, sched.ThreadTimes]
    takers: dict[tuple[int, int], sched.Taken]
    processes: dict[int, sched.ProcessTimes]
    costs: tuple[ProbeCost, ...]
    observer_cpu_s: float
    launches: LaunchCount | None = None
    children: dict[int, sched.EndedChild] = field(default_factory=dict)


def _feeding(rank: FoundRank) -> list[Worker]:
    """List the workers of a rank that prepare its data, at most 256."""
    return [worker for worker in rank.workers if worker.kind in FEEDING][:_MAX_WORKERS]


@dataclass(slots=True)
class Observation:
    """The ranks of this host under observation. Always close it."""

    ranks: Sequence[FoundRank]
    probes: KernelProbes
    processes: dict[int, ProcessWatch]
    gauges: Gauges
    flows: FlowTracker
    root: Path
    hardware: Hardware
    servers: ServerWatch = field(init=False)
    held: Held = field(init=False)
    # user -> sums as they were when his window ended before the others'.
    ended: dict[str, Totals] = field(default_factory=dict)
    names: Names = field(init=False)
    kernels: KernelNames = field(init=False)
    notes: list[str] = field(default_factory=list)
    lost_processes: dict[int, str] = field(default_factory=dict)  # pid -> user
    fallback: Fallback | None = None
    _due: dict[str, float] = field(default_factory=dict)
    _newest_pid: int = -1  # at the last search for workers
    _refreshes: int = 1
    _refreshed: dict[int, int] = field(default_factory=dict)  # pid -> number of its last refresh
    _sought: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        everybody = frozenset(user_of(rank) for rank in self.ranks)
        self.held, self.names = Held(everybody), Names(everybody)
        self.servers, self.kernels = ServerWatch(self.ranks, self.root), KernelNames(self.root)

    @property
    def batches(self) -> list[Events]:
        """The stored events."""
        return self.held.batches

    @property
    def stacks(self) -> dict[int, StackName]:
        """The stacks with words."""
        return self.names.words

    @property
    def lost_stacks(self) -> int:
        """The number of stacks without words."""
        return self.names.lost

    @property
    def lost_events(self) -> int:
        """The number of events for which there was no room."""
        return self.held.lost.total()

    def run_until(self, end: float, progress: Progress | None = None) -> None:
        """Observe until `end`, or until there is no room for more.

        Seconds of CLOCK_MONOTONIC: setting the clock changes no window's length.
        """
        with going_first():
            self._run_until(end, progress)

    def wait_until(self, end: float) -> None:
        """Observe until a window begins; earlier events take none of its room."""
        over = False
        while not over:
            self.run_until(end)
            over = time.monotonic() >= end
            self.held.begin()

    def _run_until(self, end: float, progress: Progress | None) -> None:
        """Drain events, and regularly update processes and sample connections, until `end` or until no room is left."""
        while True:
            now = time.monotonic()
            self.drain()
            if self._is_due("refresh", now, _REFRESH_EVERY_S):
                self.refresh()
            if self._is_due("flows", now, _FLOWS_EVERY_S):
                self.flows.sample()
            if progress is not None and self._is_due("say", now, _SAY_EVERY_S):
                progress(f"observing, {max(end - now, 0):.0f} s to go")
            if now >= end or self.held.full:
                return
            time.sleep(min(_DRAIN_EVERY_S, end - now))

    def _is_due(self, what: str, now: float, every_s: float) -> bool:
        """Tell whether `what` is due, `every_s` seconds after it last was; if so, it is due next after as many."""
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_s
        return True

    def drain(self) -> None:
        """Take events from the ring, and name new stacks while their code objects are alive."""
        events = self.probes.events.drain()
        if not len(events):
            return
        whose, ended = self.users(), len(self.held.ended_ns)
        events = self.held.take(events, lambda pid: whose(self.processes.get(pid)))
        # sums of these users count until now
        if len(self.held.ended_ns) > ended and not self.held.full:
            self.ended = {**dict.fromkeys(self.held.ended_ns, self.totals()), **self.ended}
        called = np.isin(events["type"], (ring.CALL, ring.LAUNCH))  # `stack` is a stream, say, or a kernel
        identities = np.where(called, events["ready_ns"], events["stack"])
        fresh, first = np.unique(identities, return_index=True)
        owners = events["tgid"][first].tolist()
        fair = Fair(NAME_FREELY_S, NAME_EACH_S)

        def name_all() -> None:
            for identity, tgid in zip(fresh.tolist(), owners, strict=True):
                self.name_stack(identity, tgid, fair, whose)

        patiently(name_all)

    def losses(self, users: Collection[str] | None = None) -> tuple[Loss, ...]:
        """Return what this process dropped of these users (None: all) and of unknown owners; stacks: always of all."""
        told, whose = None if users is None else {"", *users}, self.users()
        counted = {
            "stacks_not_named": self.lost_stacks,
            "events_over_budget": sum(count for user, count in self.held.lost.items() if told is None or user in told),
            "processes_over_budget": sum(told is None or user in told for user in self.lost_processes.values()),
            "threads_over_budget": sum(
                one.lost_threads for one in self.processes.values() if told is None or whose(one) in told
            ),
        }
        return tuple(Loss("observer", name, count) for name, count in counted.items() if count)

    def name_stack(self, identity: int, tgid: int, fair: Fair, whose: Whose) -> None:
        """Name one stack, once, if its user has time and room left.

        A user whose stacks are many, or slow to name, uses up his own share.
        """
        if not identity or self.names.knows(identity, tgid):
            return
        process = self.processes.get(tgid)
        user = partial(whose, process)
        raw = None
        if process is not None and self.names.left(user()) > 0 and fair.left(user) > 0:
            began_s, raw = time.thread_time(), self.probes.stack(identity)
        if process is None or raw is None:
            self.names.lost += 1
            return
        self.names.keep(identity, process.name_stack(raw), tgid, user())
        fair.spend(time.thread_time() - began_s, user)

    def users(self) -> Whose:
        """Return a function that gives the user of a process; '' if it belongs to no rank."""
        if len(self.held.users) < 2:
            only = next(iter(self.held.users), "")
            return lambda _: only
        owners = {rank.pid: rank for rank in self.ranks}
        return lambda process: user_of(owners[process.owner]) if process and process.owner in owners else ""

    def refresh(self) -> None:
        """Update threads and loader workers, and detach probes that fire too often."""
        patiently(self._refresh_processes)
        newest = procfs.newest_pid(self.root)
        if newest < 0 or newest != self._newest_pid:  # else nothing was started
            self._newest_pid = newest
            patiently(self._seek_workers)
        self.probes.calls.enforce_budget(len(self.ranks))

    def _refresh_processes(self) -> None:
        """Update the processes' threads within a time budget, the least recently updated first.

        The ring is not drained meanwhile.
        """
        fair, whose = Fair(REFRESH_FREELY_S, REFRESH_EACH_S), self.users()
        room = self._room()
        for process in sorted(self.processes.values(), key=lambda one: self._refreshed.get(one.pid, 0)):
            if process.gone:
                process.forget()  # what it left in the ring has been named since
            user, began_s = partial(whose, process), time.thread_time()
            if fair.left(user) > 0:
                had = entries(process)
                process.refresh(self.probes, had + max(room.threads.left(user()), 0))
                room.threads.take(user(), entries(process) - had)
                fair.spend(time.thread_time() - began_s, user)
                self._refreshed[process.pid] = self._refreshes
        self._refreshes += 1

    def _seek_workers(self) -> None:
        """Watch new loader workers of the ranks, within each user's share of time and room."""
        fair, room = Fair(REFRESH_FREELY_S, REFRESH_EACH_S), self._room()
        for rank in sorted(self.ranks, key=lambda one: self._sought.get(one.pid, 0)):
            user, began_s = partial(user_of, rank), time.thread_time()
            if fair.left(user) <= 0:
                self._newest_pid = -1  # the others' turn is next
                continue
            for child in children(rank.pid, self.root):
                known = self.processes.get(child)
                if (known is None or known.gone) and feeds(child, self.root):
                    self._watch(child, rank.pid, LOADER, user(), room)
            fair.spend(time.thread_time() - began_s, user)
            self._sought[rank.pid] = self._refreshes

    def watch_all(self) -> None:
        """Watch all ranks and the workers that prepare their data, each user's in turn, so that no user comes first."""
        room = self._room()
        workers = [(rank, worker.pid, LOADER) for rank in self.ranks for worker in _feeding(rank)]
        for kind in ([(rank, rank.pid, TRAINING) for rank in self.ranks], workers):
            for rank, pid, label in interleave(group_by(kind, lambda one: user_of(one[0]))):
                patiently(partial(self._watch, pid, rank.pid, label, user_of(rank), room))
        order = [pid for rank in self.ranks for pid in (rank.pid, *(worker.pid for worker in _feeding(rank)))]
        self.processes = {pid: self.processes[pid] for pid in order if pid in self.processes}

    def _watch(self, pid: int, owner: int, label: str, user: str, room: Room) -> None:
        """Watch a process of the rank `owner` if there is room for `user`; there always is for ranks.

        `label`: TRAINING or LOADER.
        """
        again = pid in self.processes
        if label == LOADER and not room.for_one(user, again):
            self.lost_processes[pid] = user
            return
        threads = max(room.threads.left(user), 0)
        process = process_watch.watch(pid, owner, label, self.probes, self.root, threads)
        self.processes[pid] = process
        room.enter(process, user, again)

    def _room(self) -> Room:
        """Return the room that the watched processes leave to each user."""
        places = (self.probes.room("rs_targets"), self.probes.room("rs_pythreads"))
        return room_left(self.processes.values(), self.held.users, self.users(), *places)

    def totals(self) -> Totals:
        """Return the growing sums as they are now."""
        return Totals(
            {times.tid: times for times in sched.thread_times(self.probes.module)},
            sched.takers(self.probes.module),
            sched.process_times(self.probes.module),
            self.probes.costs(),
            time.process_time(),
            self.launches(),
            sched.ended_children(self.probes.module),
        )

    def launches(self) -> LaunchCount | None:
        """Return the kernel launches counted so far; None where none are counted."""
        meter = self.probes.calls.launches
        return meter.counted() if meter is not None else None

    def begin_window(self, seconds: float, hz: int) -> Totals:
        """Begin a window of so many `seconds`; return the sums from which it counts.

        `hz`: rate of py-spy, where it has to run.
        """
        self.hardware.start()
        with going_first():
            before = self.totals()
            self.gauges.begin()
            self.flows.begin(self.gauges.interfaces)
        self.servers.start()
        self.start_fallback(seconds, hz)
        self.held.begin()
        self.ended.clear()
        return before

    def renew(self) -> None:
        """Prepare for another window with the loaded probes: drop what belonged to the last one."""
        self.probes.renew()
        whose = self.users()
        self.names.renew(lambda pid: whose(self.processes.get(pid)))
        for process in [*self.processes.values()]:
            process.lost_threads = 0
            if process.gone and process.label == LOADER:
                process.forget()
                del self.processes[process.pid]
                self._refreshed.pop(process.pid, None)
        self.held = Held(self.held.users)
        self.ended.clear()
        self.lost_processes.clear()
        self.hardware.close()
        self.hardware = Hardware(self.ranks, self.root, self.hardware.library)
        self.hardware.listen()
        self.gauges = Gauges(self.gauges.pids, self.root)
        self.servers.find()

    def rest(self) -> None:
        """Detach between windows that are far apart, with the probes loaded, until `wake`: no
        process pays for them.
        """
        self.hardware.close()
        self.servers.close()
        self.probes.rest()
        self.drain()
        limits.give_back(garbage=True)

    def wake(self) -> None:
        """Attach everything again after `rest`, for another window."""
        self.renew()
        with going_first():
            self.probes.wake()
            self.refresh()

    def start_fallback(self, seconds: float, hz: int) -> None:
        """Start py-spy on processes that the kernel cannot walk."""
        watched = [(rank, self.processes[rank.pid]) for rank in self.ranks if rank.pid in self.processes]
        pids, left_out = choose_sampled([rank for rank, process in watched if process.interpreter is None])
        self.fallback = Fallback(pids, hz, list(filter(None, [left_out])))
        self.fallback.start(seconds)

    def close(self) -> None:
        """Close the probes, the devices, the sockets and the processes."""
        self.hardware.close()
        self.servers.close()
        self.flows.close()
        self.probes.close()
        self.close_processes()
        self.kernels.close()
        READER.close()

    def close_processes(self) -> None:
        """Close the processes."""
        for process in self.processes.values():
            process.close()


def begin(ranks: Sequence[FoundRank], *, hz: int, root: Path = Path("/"), verbose: bool = False) -> Observation:
    """Load the probes and start to watch `ranks` with their workers."""
    pids = [rank.pid for rank in ranks]
    with contextlib.ExitStack() as undo:
        hardware = Hardware(ranks, root)
        undo.callback(hardware.close)
        hardware.listen()
        everybody = [*pids, *(worker.pid for rank in ranks for worker in rank.workers)]
        threads = sum(_threads(pid, root) for pid in everybody)
        probes = kernel_probes.load(
            hz=hz, ranks=len(ranks), processes=len(everybody), threads=threads, root=root, verbose=verbose
        )
        undo.callback(probes.close)
        probes.calls.watch(pids, root)
        flows = FlowTracker(pids, root)
        undo.callback(flows.close)
        observation = Observation(ranks, probes, {}, Gauges(pids, root), flows, root, hardware)
        undo.callback(observation.close_processes)
        observation.watch_all()
        observation.servers.find()
        undo.pop_all()  # the observation closes all of it from now on
    return observation


def _threads(pid: int, root: Path) -> int:
    """Count the threads of a process; 0 where it has ended."""
    try:
        return len(procfs.threads(pid, root))
    except OSError:
        return 0


def feeds(pid: int, root: Path) -> bool:
    """Tell whether a child of a rank may prepare its data: compilers do not."""
    try:
        return not is_compiler(procfs.read_comm(pid, root), procfs.read_cmdline(pid, root))
    except OSError:
        return False


def children(pid: int, root: Path = Path("/")) -> tuple[int, ...]:
    """List the direct children of all threads of a process; none where it has ended."""
    found: list[int] = []
    try:
        tasks = procfs.threads(pid, root)
    except OSError:
        return ()
    for task in tasks[:_MAX_TASKS]:
        try:
            words = read_file(proc_path(root, pid, "task", task, "children")).split()
        except OSError:
            continue
        found += [int(word) for word in words if word.isdigit()]
    return tuple(found[:_MAX_WORKERS])
