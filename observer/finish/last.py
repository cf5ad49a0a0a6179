"""Take all readings that are due when a window ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rankscope.observer.census.found import FoundRank
from rankscope.observer.finish.by_process import EventsByProcess, calls_by_process, events_by_process
from rankscope.observer.finish.mount_views import MountViews
from rankscope.observer.finish.started_by import started_by
from rankscope.observer.finish.wait_target import WaitReadings
from rankscope.observer.live.observation import Observation, Totals
from rankscope.observer.serving.watch import Asked
from rankscope.observer.tables import reading
from rankscope.observer.tables.cpu_rows import CpuTotals, CpuUse
from rankscope.observer.tables.raw import OpenAbsence
from rankscope.observer.thread.functions import NO_STACK
from rankscope.observer.window.manifest import Loss, ProbeCost
from rankscope.probes.base.patience import Silent, patiently
from rankscope.probes.base.system_calls import known
from rankscope.probes.base.text import printable
from rankscope.probes.calls.launches import LaunchCount
from rankscope.probes.host import procfs
from rankscope.probes.host.fair import Fair
from rankscope.probes.network.flows import FlowSummary
from rankscope.probes.sched import probe as sched
from rankscope.unwinder.names.native import NativeNames

_NO_SYSCALL = 0xFFFF
# CPU seconds for naming stacks that are still unnamed at the end: for all users together, and then
# per user. This only costs time; most are named by then.
_NAME_FREELY_S, _NAME_EACH_S = 10.0, 1.0
# state letters of /proc/PID/stat -> state numbers of sched_switch
_STATES = {"R": 0, "S": 1, "D": 2, "T": 4, "t": 8}


@dataclass(frozen=True, slots=True)
class LastReadings:
    """All readings taken when the window ended."""

    events: EventsByProcess
    threads: Mapping[int, sched.ThreadTimes]
    cpu: CpuUse
    open_calls: Mapping[int, Sequence[tuple[int, int, int]]]  # by pid: tid, row, since ns
    flows: Sequence[FlowSummary]
    states: Mapping[int, str]
    throttled_s: Mapping[int, float]
    costs: tuple[ProbeCost, ...]
    losses: tuple[Loss, ...]  # in the kernel
    open_absences: Mapping[int, OpenAbsence]
    untimed: Mapping[int, Sequence[tuple[int, int]]]
    start_ns: int
    window_s: float
    hz: int
    natives: NativeNames
    hardware: reading.HardwareReading
    launches: LaunchCount | None
    seen: WaitReadings
    mounts: MountViews
    servers: Sequence[Asked] = ()
    tracers: Mapping[int, str] = field(default_factory=dict)  # of stopped ranks, by pid: 'py-spy (4242)' or ''
    early: bool = False  # the window ended before, for lack of room: descriptors were resolved later


def read_last(running: Observation, before: Totals, start_ns: int, hz: int) -> LastReadings:
    """Take the last readings of a window that began at `start_ns` (CLOCK_MONOTONIC) and ends now.

    The caller closes their `natives`.
    """
    root, probes = running.root, running.probes
    window_s = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - start_ns) / 1e9
    threads = {times.tid: times for times in sched.thread_times(probes.module)}
    processes = sched.process_times(probes.module)
    takers, open_calls = sched.takers(probes.module), probes.calls.open_calls()
    children = sched.ended_children(probes.module)
    owners = with_ended({process.pid: process.owner for process in running.processes.values()}, children)
    owners = started_by(running.ranks, root) | owners
    cpu = CpuUse(
        CpuTotals(threads, processes, takers, children),
        CpuTotals(before.threads, before.processes, before.takers, before.children),
        owners,
    )
    running.drain()
    # the ring fills up while rows are made: losses from now on belong to no window
    losses = probes.losses()

    fair, whose = Fair(_NAME_FREELY_S, _NAME_EACH_S), running.users()

    def name_all() -> None:
        for times in threads.values():
            running.name_stack(times.stack, times.tgid, fair, whose)

    patiently(name_all)
    still = patiently(lambda: _open_absences(running, threads, start_ns, fair))
    untimed = {}
    if running.fallback:
        untimed = running.fallback.finish(
            running.stacks,
            lambda identity, words, pid: running.names.keep(identity, words, pid, whose(running.processes[pid])),
        )
    running.flows.sample()
    states = {rank.pid: _state(rank, root) for rank in running.ranks}
    return LastReadings(
        events_by_process(running.batches, start_ns, start_ns + int(window_s * 1e9)),
        threads,
        cpu,
        calls_by_process(open_calls, threads),
        running.flows.summaries(),
        states,
        running.gauges.throttled_s(),
        _growth(before.costs, probes.costs()),
        losses,
        still,
        untimed,
        start_ns,
        window_s,
        hz,
        NativeNames(root),
        running.hardware.stop().within(start_ns, start_ns + int(window_s * 1e9)),
        running.launches(),
        WaitReadings(root),
        MountViews(root),
        running.servers.stop(),
        {pid: tracer_of(pid, root) for pid, state in states.items() if state == "stopped"},
    )


def with_ended(owners: Mapping[int, int], ended: Mapping[int, sched.EndedChild]) -> dict[int, int]:
    """Assign children that lived too shortly to be found to the ranks of their parents as well.

    Returns pid -> pid of its rank, as `owners`; `ended`: such children, by pid. A process that was found
    since under the same number keeps its rank.
    """
    return {pid: owners[child.parent] for pid, child in ended.items() if child.parent in owners} | dict(owners)


def ended_early(last: LastReadings, end_ns: int, then: Totals) -> LastReadings:
    """Restrict the readings to a user's window that ended early, at `end_ns`, for lack of room.

    `then`: the sums at that time. What was in progress was so then; what began later is dropped.
    Growth of host counters is scaled.
    """
    window_s = max(end_ns - last.start_ns, 1) / 1e9
    gone_on = {
        tid: replace(times, out_since_ns=0) if times.out_since_ns >= end_ns else times
        for tid, times in last.threads.items()
    }
    return replace(
        last,
        events=last.events.until(end_ns),
        threads=gone_on,
        cpu=CpuUse(
            CpuTotals(then.threads, then.processes, then.takers, then.children), last.cpu.before, last.cpu.owners
        ),
        open_calls={pid: [one for one in calls if one[2] < end_ns] for pid, calls in last.open_calls.items()},
        throttled_s={pid: seconds * window_s / last.window_s for pid, seconds in last.throttled_s.items()},
        window_s=window_s,
        hardware=last.hardware.within(last.start_ns, end_ns),
        early=True,
    )


def _open_absences(
    running: Observation, threads: Mapping[int, sched.ThreadTimes], start_ns: int, fair: Fair
) -> dict[int, OpenAbsence]:
    """Build, by tid, the absences of Python threads that were off the CPU throughout the window, with their stacks.

    Read from /proc. For users whose time for that is used up, without stacks.
    """
    found, whose = {}, running.users()
    for process in running.processes.values():
        user = partial(whose, process)
        for tid in process.threads:
            if tid in threads:
                continue
            try:
                stat = procfs.read_stat(process.pid, running.root, tid)
                call = procfs.read_file(procfs.proc_path(running.root, process.pid, "task", tid, "syscall"), 256)
            except (OSError, ValueError):
                continue
            words = call.split()
            in_call = len(words) > 1 and words[0].isdigit()
            number, argument = (known(int(words[0])), _signed(int(words[1], 16))) if in_call else (_NO_SYSCALL, 0)
            stack, began_s = NO_STACK, time.thread_time()
            if fair.left(user) > 0:
                stack = process.blocked_stack(tid)
                fair.spend(time.thread_time() - began_s, user)
            else:
                running.names.lost += 1
            identity = -tid & 0xFFFF_FFFF_FFFF_FFFF
            running.names.keep(identity, stack, process.pid, user())
            state = _STATES.get(stat.state, 1)
            if state:
                found[tid] = OpenAbsence(tid, start_ns - 1, 0, state, number, argument, identity)
    return found


def _signed(word: int) -> int:
    """Convert a system call argument to a signed 64-bit number, as the kernel's probes report it:
    wait4(-1).
    """
    word &= 0xFFFF_FFFF_FFFF_FFFF
    return word - (word >> 63 << 64)


def _state(rank: FoundRank, root: Path) -> str:
    """Return the state of a rank's process: 'running', 'stopped' (by a signal or a tracer) or 'exited'.

    A process that blocks its readers counts as running; another one under the same pid, as exited.
    """
    try:
        stat = procfs.read_stat(rank.pid, root)
    except Silent:
        return "running"
    except (OSError, ValueError):
        return "exited"
    if stat.start_ticks != rank.start_ticks or stat.state in "ZXx":
        return "exited"
    return "stopped" if stat.state in "Tt" else "running"


def tracer_of(pid: int, root: Path) -> str:
    """Name the program that traces a stopped process, with its pid: 'gdb (1234)'; '' if none."""
    try:
        status = procfs.read_status(pid, root)
        if status.state not in "Tt" or not status.tracer:
            return ""
        return f"{printable(procfs.read_stat(status.tracer, root).comm, 32)} ({status.tracer})"
    except (OSError, ValueError):
        return ""


def _growth(before: Sequence[ProbeCost], now: Sequence[ProbeCost]) -> tuple[ProbeCost, ...]:
    """Subtract run counts and times of programs in `before` from those in `now`; 0 for programs not in `before`."""
    then = {cost.program: cost for cost in before}
    zero = ProbeCost("", 0, 0)
    return tuple(
        ProbeCost(
            cost.program,
            cost.run_count - then.get(cost.program, zero).run_count,
            cost.run_time_ns - then.get(cost.program, zero).run_time_ns,
        )
        for cost in now
    )
