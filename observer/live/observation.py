"""What is gathered while a window runs: events drained, stacks put into words, threads and processes kept up to date."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from rankscope.observer.census.found import FoundRank, user_of
from rankscope.observer.census.workers import FEEDING, is_compiler
from rankscope.observer.live import kernel_probes, limits, process_watch
from rankscope.observer.live.fallback import Fallback
from rankscope.observer.live.gauges import Gauges
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.live.process_watch import LOADER, TRAINING, ProcessWatch
from rankscope.observer.live.samplers import Hardware
from rankscope.observer.live.shares import sampled_beside
from rankscope.observer.thread.functions import StackName
from rankscope.observer.window.manifest import Loss, ProbeCost
from rankscope.probes import rights
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.launches import LaunchCount
from rankscope.probes.fair import Fair
from rankscope.probes.host import procfs
from rankscope.probes.host.procfs import proc_path, read_file
from rankscope.probes.mapped.reader import READER
from rankscope.probes.network.flows import FlowTracker
from rankscope.probes.patience import patiently, workers
from rankscope.probes.sched import probe as sched

Progress = Callable[[str], None]

_NICE = -10  # before ordinary work, behind what is real-time
_DRAIN_EVERY_S = 0.25
# Of the processor, for each look at threads and at workers: of all processes together, and then of a user's. One with ten threads takes
# 0.3 ms, one with 256 takes 10.
REFRESH_FREELY_S, REFRESH_EACH_S = 0.25, 0.05
# The same for putting stacks into words, of one drain: a function takes 25 us to read, all that 64 ranks are in some tenths of a second.
# For so long the ring has room. What is left out is named when it is met again.
NAME_FREELY_S, NAME_EACH_S = 2.0, 0.25
_REFRESH_EVERY_S = 1.0
_FLOWS_EVERY_S = 2.0  # the kernel walks its table of connections for it, of hundreds of thousands of places: 1 ms and more a namespace
_SAY_EVERY_S = 5.0
_WEIGH_EVERY_S = 1.0
_WEIGH_EVENTS = 1024  # of one drain: with the words of their stacks they may take 4 MB
_MAX_TASKS = 1024  # of a rank, of which children are asked for: 10 us each
_MAX_WORKERS = 256  # per rank; more are processes that a training script has no use for


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums that only grow, as they stood when the window began."""

    threads: dict[int, sched.ThreadTimes]
    takers: dict[tuple[int, int], sched.Taken]
    processes: dict[int, sched.ProcessTimes]
    costs: tuple[ProbeCost, ...]
    observer_cpu_s: float
    launches: LaunchCount | None = None


@dataclass(slots=True)
class Observation:
    """The ranks of this host under observation. Close it whatever happens."""

    ranks: Sequence[FoundRank]
    probes: KernelProbes
    processes: dict[int, ProcessWatch]
    gauges: Gauges
    flows: FlowTracker
    root: Path
    hardware: Hardware
    batches: list[Events] = field(default_factory=list)
    stacks: dict[int, StackName] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    lost_stacks: int = 0
    lost_events: int = 0
    held_events: int = 0
    lost_processes: set[int] = field(default_factory=set)
    fallback: Fallback | None = None
    _due: dict[str, float] = field(default_factory=dict)
    _newest_pid: int = -1  # when workers were sought last
    _refreshes: int = 1
    _refreshed: dict[int, int] = field(default_factory=dict)  # by pid, in which of them last
    _sought: dict[int, int] = field(default_factory=dict)
    _heavy: bool = False  # it holds as much memory as it may

    def run_until(self, end: float, progress: Progress | None = None) -> None:
        """Observe until `end`, or until there is no room for more.

        Seconds of CLOCK_MONOTONIC: whoever sets the clock makes no window longer or shorter.
        """
        with _going_first():
            self._run_until(end, progress)

    def _run_until(self, end: float, progress: Progress | None) -> None:
        while True:
            now = time.monotonic()
            self.drain()
            if self._is_due("refresh", now, _REFRESH_EVERY_S):
                self.refresh()
            if self._is_due("flows", now, _FLOWS_EVERY_S):
                self.flows.sample()
            if progress is not None and self._is_due("say", now, _SAY_EVERY_S):
                progress(f"observing, {max(end - now, 0):.0f} s to go")
            if now >= end or self.lost_events:  # a window with a hole would tell of ranks that do nothing
                return
            time.sleep(min(_DRAIN_EVERY_S, end - now))

    def _is_due(self, what: str, now: float, every_s: float) -> bool:
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every_s
        return True

    def drain(self) -> None:
        """Take the events, and put new stacks into words while their code objects are alive."""
        events = self.probes.events.drain()
        if not len(events):
            return
        events = self._within_budget(events)
        self.batches.append(events)
        called = events["type"] == ring.CALL  # its `stack` is a communicator or a stream
        identities = np.where(called, events["ready_ns"], events["stack"])
        fresh, first = np.unique(identities, return_index=True)
        owners = events["tgid"][first].tolist()
        fair, whose = Fair(NAME_FREELY_S, NAME_EACH_S), self.users()

        def name_all() -> None:
            for identity, tgid in zip(fresh.tolist(), owners, strict=True):
                self.name_stack(identity, tgid, fair, whose)

        patiently(name_all)

    def _within_budget(self, events: Events) -> Events:
        """What there is room for; that a process ended is always kept. With the first that is not kept the window ends."""
        if len(events) > _WEIGH_EVENTS or self._is_due("weigh", time.monotonic(), _WEIGH_EVERY_S):
            self._heavy = limits.resident_bytes() >= limits.RESIDENT_BYTES
        fits = not self.lost_events and not self._heavy
        room = max(limits.EVENTS - self.held_events, 0) if fits else 0
        kept = events
        if len(events) > room:
            kept = events[(np.arange(len(events)) < room) | (events["type"] == ring.EXIT)]
            self.lost_events += len(events) - len(kept)
        self.held_events += len(kept)
        return kept

    def losses(self) -> tuple[Loss, ...]:
        """What this process has let go, those above zero."""
        counted = {
            "stacks_not_named": self.lost_stacks,
            "events_over_budget": self.lost_events,
            "processes_over_budget": len(self.lost_processes),
            "threads_over_budget": sum(process.lost_threads for process in self.processes.values()),
        }
        return tuple(Loss("observer", name, count) for name, count in counted.items() if count)

    def name_stack(self, identity: int, tgid: int, fair: Fair, whose: Callable[[ProcessWatch], str]) -> None:
        """Words for one stack, once, where its user has time left: who makes stacks that take long to name does so at his own cost."""
        if not identity or identity in self.stacks:
            return
        process = self.processes.get(tgid)
        if process is None or len(self.stacks) >= limits.STACKS or fair.left(user := partial(whose, process)) <= 0:
            self.lost_stacks += 1
            return
        began_s, raw = time.thread_time(), self.probes.stack(identity)
        if raw is None:
            self.lost_stacks += 1
            return
        self.stacks[identity] = process.name_stack(raw)
        fair.took(time.thread_time() - began_s, user)

    def users(self) -> Callable[[ProcessWatch], str]:
        """Tells whose a process is; '' of one that belongs to no rank."""
        owners = {rank.pid: rank for rank in self.ranks}
        return lambda process: user_of(owners[process.owner]) if process.owner in owners else ""

    def refresh(self) -> None:
        """Threads and loader workers come and go; a probe that fires too often is let go."""
        patiently(self._refresh_processes)
        newest = procfs.newest_pid(self.root)
        if newest < 0 or newest != self._newest_pid:  # else nobody has started anything
            self._newest_pid = newest
            patiently(self._seek_workers)
        self.probes.calls.enforce_budget(len(self.ranks))

    def _refresh_processes(self) -> None:
        """Of whom this takes long not all are looked at each time, those first that were not: nobody empties the ring meanwhile."""
        fair, whose = Fair(REFRESH_FREELY_S, REFRESH_EACH_S), self.users()
        for process in sorted(self.processes.values(), key=lambda one: self._refreshed.get(one.pid, 0)):
            if process.gone:
                process.forget()  # what it left in the ring has been put into words since
            user, began_s = partial(whose, process), time.thread_time()
            if fair.left(user) > 0:
                process.refresh(self.probes)
                fair.took(time.thread_time() - began_s, user)
                self._refreshed[process.pid] = self._refreshes
        self._refreshes += 1

    def _seek_workers(self) -> None:
        fair = Fair(REFRESH_FREELY_S, REFRESH_EACH_S)
        for rank in sorted(self.ranks, key=lambda one: self._sought.get(one.pid, 0)):
            user, began_s = partial(user_of, rank), time.thread_time()
            if fair.left(user) <= 0:
                self._newest_pid = -1  # the others' turn is next
                continue
            for child in children(rank.pid, self.root):
                known = self.processes.get(child)
                if (known is None or known.gone) and feeds(child, self.root):
                    self._watch_worker(child, rank.pid)
            fair.took(time.thread_time() - began_s, user)
            self._sought[rank.pid] = self._refreshes

    def _watch_worker(self, pid: int, owner: int) -> None:
        if pid not in self.processes and len(self.processes) >= limits.PROCESSES:
            self.lost_processes.add(pid)
            return
        self.processes[pid] = process_watch.watch(pid, owner, LOADER, self.probes, self.root)

    def totals(self) -> Totals:
        """The growing sums as they stand now."""
        return Totals(
            {times.tid: times for times in sched.thread_times(self.probes.module)},
            sched.takers(self.probes.module),
            sched.process_times(self.probes.module),
            self.probes.costs(),
            time.process_time(),
            self.launches(),
        )

    def launches(self) -> LaunchCount | None:
        """Kernel launches counted until now; None where none are."""
        meter = self.probes.calls.launches
        return meter.counted() if meter is not None else None

    def begin_window(self, seconds: float, hz: int) -> Totals:
        """What counts over a window counts from here."""
        self.hardware.start()
        with _going_first():
            before = self.totals()
            self.gauges.begin()
            self.flows.begin(self.gauges.interfaces)
        self.start_fallback(seconds, hz)
        return before

    def renew(self) -> None:
        """After a window: let go of what belonged to it, and be ready for another with the probes that are loaded."""
        self.batches.clear()
        self.held_events = self.lost_stacks = 0
        self.hardware.close()
        self.hardware = Hardware(self.ranks, self.root, self.hardware.library)
        self.hardware.listen()
        self.gauges = Gauges(self.gauges.pids, self.root)

    def rest(self) -> None:
        """Between windows that are far apart: keep the probes loaded and let nobody pay for them until `wake`."""
        self.hardware.close()
        self.probes.rest()
        self.drain()
        limits.give_back()

    def wake(self) -> None:
        """After `rest`: observe again."""
        self.renew()
        with _going_first():
            self.probes.wake()
            self.refresh()

    def start_fallback(self, seconds: float, hz: int) -> None:
        """Sample with py-spy what the kernel cannot walk."""
        watched = [(rank, self.processes[rank.pid]) for rank in self.ranks if rank.pid in self.processes]
        pids, left_out = sampled_beside([rank for rank, process in watched if process.interpreter is None])
        self.fallback = Fallback(pids, hz, list(filter(None, [left_out])))
        self.fallback.start(seconds)

    def close(self) -> None:
        """Let go of the kernel, the devices, the sockets and the processes."""
        self.hardware.close()
        self.flows.close()
        self.probes.close()
        for process in self.processes.values():
            process.close()
        READER.close()


@contextlib.contextmanager
def _going_first() -> Iterator[None]:
    """This thread stands before others in the queue for the CPU.

    It takes little, but that at once: behind ranks that keep every core busy it would drain the events too late, and lose some
    (64 ranks on 2 cores: 93,000 in 8 s). Start nothing in here: threads and processes inherit it.
    """
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    _stand(min(usual, _NICE))
    try:
        yield
    finally:
        _stand(usual)


def _stand(nice: int) -> None:
    """This thread, and those that read of processes for it."""
    asked = rights.elsewhere()
    for tid in (threading.get_native_id(), *workers()):
        with contextlib.suppress(OSError):
            if asked is None:
                os.setpriority(os.PRIO_PROCESS, tid, nice)
            else:
                asked.ask("stand", tid=tid, nice=nice)


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
        processes: dict[int, ProcessWatch] = {}
        for rank in ranks:
            feeding = [worker for worker in rank.workers if worker.kind in FEEDING]
            workers = [(worker.pid, LOADER) for worker in feeding[:_MAX_WORKERS]]
            for pid, label in [(rank.pid, TRAINING), *workers]:
                processes[pid] = patiently(partial(process_watch.watch, pid, rank.pid, label, probes, root))
                undo.callback(processes[pid].close)
        flows = FlowTracker(pids, root)
        undo.callback(flows.close)
        observation = Observation(ranks, probes, processes, Gauges(pids, root), flows, root, hardware)
        undo.pop_all()  # it closes all of it from now on
    return observation


def _threads(pid: int, root: Path) -> int:
    try:
        return len(procfs.threads(pid, root))
    except OSError:
        return 0


def feeds(pid: int, root: Path) -> bool:
    """Whether a child of a rank may prepare its data: a compiler does not."""
    try:
        return not is_compiler(procfs.read_comm(pid, root), procfs.read_cmdline(pid, root))
    except OSError:
        return False


def children(pid: int, root: Path = Path("/")) -> tuple[int, ...]:
    """Direct children of all threads of a process; none where it has ended."""
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
