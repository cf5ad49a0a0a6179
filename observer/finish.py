"""The end of a window: the last readings, then rows for every table."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.observer.census.owners import uses_accelerator
from rankscope.observer.census.ranks import FoundRank
from rankscope.observer.live import ras, samplers
from rankscope.observer.live.gauges import Member
from rankscope.observer.live.observation import Observation, Totals
from rankscope.observer.live.process_watch import LOADER, TRAINING, ProcessWatch
from rankscope.observer.tables import cpu_rows, pattern_rows, reading
from rankscope.observer.tables import job as gpu_window
from rankscope.observer.tables import rank as assemble
from rankscope.observer.tables.rank import OpenAbsence, RankRows, RawProcess
from rankscope.observer.thread import helper_threads
from rankscope.observer.thread.steps import common_period
from rankscope.observer.window.folder import Loss, Manifest, ProbeCost, Window, table_from_rows
from rankscope.observer.window.schema import WINDOW_SCHEMA
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.launches import LaunchCount
from rankscope.probes.calls.probe import OpenCall
from rankscope.probes.calls.table import CALL_TABLE
from rankscope.probes.files import probe as files
from rankscope.probes.host import procfs
from rankscope.probes.host.block_devices import mount_words
from rankscope.probes.host.mounts import Mounts, read_mounts
from rankscope.probes.host.namespaces import host_name
from rankscope.probes.network.flows import FlowSummary
from rankscope.probes.sched import probe as sched
from rankscope.unwinder.names.native import NativeNames

_NO_SYSCALL = 0xFFFF
_STATES = {"R": 0, "S": 1, "D": 2, "T": 4, "t": 8}  # of /proc/PID/stat, as sched_switch numbers them
_MAX_NOTES = 64


@dataclass(frozen=True, slots=True)
class _Last:
    """Everything read when the window ended."""

    events: Events
    threads: Mapping[int, sched.ThreadTimes]
    takers: Sequence[sched.Taken]
    open_calls: Sequence[OpenCall]
    flows: Sequence[FlowSummary]
    states: Mapping[int, str]
    throttled_s: Mapping[int, float]
    costs: tuple[ProbeCost, ...]
    still: Mapping[int, OpenAbsence]
    untimed: Mapping[int, Sequence[tuple[int, int]]]
    start_ns: int
    window_s: float
    hz: int
    natives: NativeNames
    hardware: reading.Reading
    launches: LaunchCount | None


def close_windows(running: Observation, before: Totals, start: float, start_ns: int, hz: int) -> list[Window]:
    """One Window for each job, begun at `start` (Unix s; `start_ns` by CLOCK_MONOTONIC) and ending now."""
    root, probes = running.root, running.probes
    window_s = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - start_ns) / 1e9
    threads = {times.tid: times for times in sched.thread_times(probes.module)}
    takers, open_calls = sched.takers(probes.module), probes.calls.open_calls()
    running.drain()
    for times in threads.values():
        running.name_stack(times.stack, times.tgid)
    still = _still_threads(running, threads, start_ns)
    untimed = running.fallback.finish(running.stacks) if running.fallback else {}
    running.flows.sample()
    last = _Last(
        _events(running, start_ns, window_s),
        threads,
        takers,
        open_calls,
        running.flows.summaries(),
        {rank.pid: _state(rank, root) for rank in running.ranks},
        running.gauges.throttled_s(),
        _growth(before.costs, probes.costs()),
        still,
        untimed,
        start_ns,
        window_s,
        hz,
        NativeNames(root),
        running.hardware.stop(),
        running.launches(),
    )
    counters = [*running.gauges.host_rows(), *cpu_rows.observer_rows(before.observer_cpu_s)]
    jobs = sorted({rank.identity.job for rank in running.ranks})
    try:
        return [_job_window(running, job, last, before, start, counters) for job in jobs]
    finally:
        last.natives.close()


def _job_window(
    running: Observation, job: str, last: _Last, before: Totals, start: float, host_counters: list[dict[str, Any]]
) -> Window:
    ranks = [rank for rank in running.ranks if rank.identity.job == job]
    members = [Member(rank.identity.rank, rank.pid, rank.identity.netns) for rank in ranks]
    tables: dict[str, list[dict[str, Any]]] = {
        "ranks": [], "steps": [], "patterns": [], "collectives": [], "flows": [],
        "counters": [*host_counters, *running.gauges.member_rows(members)],
    }  # fmt: skip
    numbers = {rank.pid: rank.identity.rank for rank in ranks}
    devices = samplers.of_job(last.hardware, ranks)
    raws, gpus = gpu_window.with_gpus(
        {rank.pid: _raw(running, rank.pid, last) for rank in ranks},
        numbers,
        max(rank.identity.world_size for rank in ranks),
        devices,
        CALL_TABLE,
    )
    notes = [*devices.notes, *gpus.notes]
    period = common_period([assemble.step_period(raw, CALL_TABLE) for raw in raws.values()])
    found = {rank.pid: assemble.assemble(raws[rank.pid], CALL_TABLE, period) for rank in ranks}
    for rank in ranks:
        _add_rank(tables, running, rank, found[rank.pid], last, before, notes)
    tables["counters"] += gpu_window.counter_rows(
        gpus, last.hardware, found, raws, CALL_TABLE, before.launches, last.launches
    )
    on_gpus = any(uses_accelerator(rank) for rank in ranks)
    if on_gpus and ras.stands_still({pid: rows.in_collective_s for pid, rows in found.items()}, last.window_s):
        behind, said = ras.missing(ranks)
        tables["counters"] += behind
        notes += said
    tables["flows"] = [_flow_row(numbers[flow.pid], flow) for flow in last.flows if flow.pid in numbers]
    losses = list(running.probes.losses())
    if running.lost_stacks:
        losses.append(Loss("observer", "stacks_not_named", running.lost_stacks))
    manifest = Manifest(
        schema=WINDOW_SCHEMA,
        host=host_name(running.root),
        start=start,
        seconds=last.window_s,
        jobs=(job,),
        version=importlib.metadata.version("rankscope"),
        notes=_notes(running, notes, set(numbers)),
        losses=tuple(losses),
        costs=last.costs,
    )
    return Window(manifest, **{name: table_from_rows(name, rows) for name, rows in tables.items()})


def _events(running: Observation, start_ns: int, window_s: float) -> Events:
    """Events that touch the window; of the warm-up only the processes that ended: a rank that is gone stays gone."""
    if not running.batches:
        return np.empty(0, ring.EVENT)
    events = np.concatenate(running.batches)
    running.batches.clear()
    ends = events["ts_ns"] + events["dur_ns"]
    began = (ends > start_ns) | (events["type"] == ring.EXIT)
    kept: Events = events[began & (events["ts_ns"] < start_ns + int(window_s * 1e9))]
    return kept


def _add_rank(
    tables: dict[str, list[dict[str, Any]]],
    running: Observation,
    rank: FoundRank,
    rows: RankRows,
    last: _Last,
    before: Totals,
    notes: list[str],
) -> None:
    number = rank.identity.rank
    if rows.steps.reason:
        notes.append(f"rank {number}: {rows.steps.reason}")
    tables["ranks"].append(_rank_row(running, rank, rows, last))
    tables["steps"] += pattern_rows.step_rows(number, rows.step_times)
    tables["patterns"] += [pattern_rows.pattern_row(number, TRAINING, pattern) for pattern in rows.training]
    tables["patterns"] += [pattern_rows.pattern_row(number, "other", pattern) for pattern in rows.others]
    tables["collectives"] += [{"rank": number, **row} for row in rows.collectives]
    for process in running.processes.values():
        if process.owner == rank.pid and process.label == LOADER:
            raw = _raw(running, process.pid, last)
            found = assemble.side_patterns(raw, CALL_TABLE, rows.steps, raw.python_tids)
            tables["patterns"] += [pattern_rows.pattern_row(number, LOADER, pattern) for pattern in found]
    tables["counters"] += cpu_rows.cpu_rows(
        number, rank.pid, rows.training_thread, last.threads, last.takers, before.threads, before.takers
    )
    tables["counters"] += _helper_rows(running, rank, last, before)


def _raw(running: Observation, pid: int, last: _Last) -> RawProcess:
    process = running.processes[pid]
    tids = frozenset(process.threads) | {pid}
    events = last.events[last.events["tgid"] == pid]
    return RawProcess(
        pid=pid,
        start_ns=last.start_ns,
        window_s=last.window_s,
        events=events,
        open_absences={tid: away for tid in tids if (away := _open_absence(tid, last)) is not None},
        open_calls=[
            (call.tid, call.row, call.since_ns)
            for call in last.open_calls
            if (t := last.threads.get(call.tid)) is not None and t.tgid == pid
        ],
        python_tids=tids,
        stacks=running.stacks,
        devices=_devices(pid, last.events, running.root),
        throttled_s=last.throttled_s.get(pid, 0.0),
        hz=last.hz,
        untimed=last.untimed.get(pid, ()),
        thread_states=process.states,
        thread_names={tid: _thread_name(pid, tid, running.root) for tid in tids},
        native=last.natives.names(pid, np.unique(events["arg"][events["type"] == ring.SAMPLE]).astype(np.uint64)),
    )


def _thread_name(pid: int, tid: int, root: Path) -> str:
    if tid == pid:
        return "the main thread"
    try:
        name = procfs.read_file(procfs.proc_path(root, pid, "task", tid, "comm"), 64)
    except OSError:
        return "a thread that ended"
    return "thread " + "".join(c if c.isprintable() else "?" for c in name.decode("utf-8", "replace").strip())


def _open_absence(tid: int, last: _Last) -> OpenAbsence | None:
    times = last.threads.get(tid)
    if times is None:
        return last.still.get(tid)
    if not times.out_since_ns:
        return None
    return OpenAbsence(
        tid, times.out_since_ns, times.wake_ns, times.state, times.syscall, times.argument, times.stack
    )  # fmt: skip


def _still_threads(
    running: Observation, threads: Mapping[int, sched.ThreadTimes], start_ns: int
) -> dict[int, OpenAbsence]:
    """Threads that have been off the CPU since before anybody looked: what /proc says of them, with their stacks."""
    found = {}
    for process in running.processes.values():
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
            number, argument = (int(words[0]), int(words[1], 16)) if in_call else (_NO_SYSCALL, 0)
            stack = process.still_stack(tid)
            identity = -tid & 0xFFFF_FFFF_FFFF_FFFF
            running.stacks[identity] = stack
            state = _STATES.get(stat.state, 1)
            if state:
                found[tid] = OpenAbsence(tid, start_ns - 1, 0, state, number, argument, identity)
    return found


def _devices(pid: int, events: Events, root: Path) -> dict[int, str]:
    """Words for the devices of this process's file calls: the mount point in its own view, type and device number."""
    mine = events[(events["type"] == ring.FILE) & (events["tgid"] == pid)]
    wanted = np.unique(mine["aux"]).tolist()
    try:
        mounts = read_mounts(pid, root) if wanted else Mounts(())
    except OSError:
        mounts = Mounts(())
    found = {}
    for device in wanted:
        major, minor = files.device_numbers(device)
        mount = mounts.by_device(major, minor)
        found[device] = mount_words(mount, major, minor)
    return found


def _state(rank: FoundRank, root: Path) -> str:
    try:
        stat = procfs.read_stat(rank.pid, root)
    except (OSError, ValueError):
        return "exited"
    if stat.start_ticks != rank.start_ticks or stat.state in "ZXx":
        return "exited"
    return "stopped" if stat.state in "Tt" else "running"


def _rank_row(running: Observation, rank: FoundRank, rows: RankRows, last: _Last) -> dict[str, Any]:
    identity, process = rank.identity, running.processes[rank.pid]
    mine = [flow for flow in last.flows if flow.pid == rank.pid]
    sampled = last.events[(last.events["tgid"] == rank.pid) & (last.events["type"] == ring.SAMPLE)]
    walked = int((sampled["stack"] != 0).sum())
    counted = running.probes.counted()
    ended_s, exit_status = _end_of(rank.pid, last)
    gpus, ports = gpu_window.devices(last.hardware, rank.pid)
    try:
        cpus = procfs.cpus_allowed(rank.pid, running.root, rows.training_thread)
    except (OSError, ValueError):
        cpus = ""
    return {
        "job": identity.job, "rank": identity.rank, "local_rank": identity.local_rank, "world_size": identity.world_size,
        "role": identity.role, "host": identity.host, "node": identity.node, "container": identity.container,
        "pid": rank.pid, "inner_pid": identity.inner_pid, "netns": identity.netns,
        "addresses": sorted({_address(flow.local) for flow in mine}),
        "gpus": gpus, "nics": sorted({flow.interface for flow in mine if flow.interface} | set(ports)),
        "cpus": cpus, "python": identity.python, "command": identity.command,
        "state": last.states[rank.pid], "stopped_s": _stopped_s(rank.pid, rows, last),
        "ended_s": ended_s, "exit_status": exit_status,
        "last_progress_s": rows.last_progress_s, "in_collective_s": rows.in_collective_s,
        "training_thread": rows.training_thread, "stack_source": _stack_source(process, last),
        "samples": len(sampled), "failed_samples": len(sampled) - walked,
        "truncated_samples": counted["walk_truncated"], "lost_events": counted["ring_full"],
    }  # fmt: skip


def _stack_source(process: ProcessWatch, last: _Last) -> str:
    if process.interpreter is not None:
        return "bpf"
    return "py-spy" if last.untimed.get(process.pid) else "none"


def _end_of(pid: int, last: _Last) -> tuple[float | None, int | None]:
    """When the process ended (before the window: below 0), and its wait status; None where it did not, or nobody saw it."""
    ends = last.events[(last.events["tgid"] == pid) & (last.events["type"] == ring.EXIT)]
    if not len(ends):
        return None, None
    status = int(ends["arg"][0])
    return (float(ends["ts_ns"][0]) - last.start_ns) / 1e9, status if status >= 0 else None


def _address(endpoint: str) -> str:
    return endpoint.rpartition(":")[0].strip("[]")


def _stopped_s(pid: int, rows: RankRows, last: _Last) -> float:
    """Time in job-control stop. A process that was stopped all along never switched: its state alone tells."""
    if rows.stopped_s > 0 or last.states[pid] != "stopped":
        return rows.stopped_s
    return last.window_s


def _helper_rows(running: Observation, rank: FoundRank, last: _Last, before: Totals) -> list[dict[str, Any]]:
    """What the rank's threads without Python state did."""
    python = frozenset(running.processes[rank.pid].threads) | {rank.pid}
    events = last.events[(last.events["tgid"] == rank.pid) & (last.events["type"] == ring.NATIVE)]
    others = [times for times in last.threads.values() if times.tgid == rank.pid and times.tid not in python]
    native = last.natives.names(rank.pid, np.unique(events["arg"]).astype(np.uint64))
    found = helper_threads.helper_threads(
        others,
        before.threads,
        events,
        native,
        lambda tid: _thread_name(rank.pid, tid, running.root).removeprefix("thread "),
    )
    return helper_threads.rows(rank.identity.rank, found)


def _flow_row(number: int, flow: FlowSummary) -> dict[str, Any]:
    return {
        "rank": number, "local": flow.local, "peer": flow.peer, "interface": flow.interface,
        "sent_bytes": flow.sent_bytes, "received_bytes": flow.received_bytes,
        "retransmitted_bytes": flow.retransmitted_bytes, "busy_s": flow.busy_s,
        "rwnd_limited_s": flow.rwnd_limited_s, "sndbuf_limited_s": flow.sndbuf_limited_s,
        "rtt_s": flow.rtt_s, "min_rtt_s": flow.min_rtt_s, "delivery_rate_hz": flow.delivery_rate_hz,
    }  # fmt: skip


def _growth(before: Sequence[ProbeCost], now: Sequence[ProbeCost]) -> tuple[ProbeCost, ...]:
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


def _notes(running: Observation, notes: Sequence[str], pids: set[int]) -> tuple[str, ...]:
    """What could not be seen of the ranks with these pids, each once."""
    fallback = running.fallback.notes if running.fallback else []
    said = [
        *notes,
        *fallback,
        *running.probes.notes,
        *running.probes.calls.notes,
        *running.gauges.notes,
        *running.flows.notes,
    ]
    for process in running.processes.values():
        if process.reason and process.owner in pids:
            said.append(f"no Python stacks of pid {process.pid}: {process.reason}")
    return tuple(dict.fromkeys(said))[:_MAX_NOTES]
