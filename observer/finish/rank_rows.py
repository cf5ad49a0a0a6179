"""Build the rows of one rank: identity and end, and its helper threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.observer.census.found import FoundRank
from rankscope.observer.finish.last import LastReadings
from rankscope.observer.finish.raw import thread_name
from rankscope.observer.live.observation import Observation
from rankscope.observer.live.process_watch import ProcessWatch
from rankscope.observer.tables import job as gpu_window
from rankscope.observer.tables.rank import RankWindow
from rankscope.observer.thread import helper_threads
from rankscope.observer.window.rows import CounterRow, RankRow
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.host import procfs
from rankscope.probes.host.machine import machine_id
from rankscope.probes.network.flows import FlowSummary


def rank_row(
    running: Observation, rank: FoundRank, found: RankWindow, last: LastReadings, flows: Sequence[FlowSummary]
) -> RankRow:
    """Build a rank's row of the table `ranks`. `flows`: those of this process."""
    identity, process = rank.identity, running.processes[rank.pid]
    events = last.events.of(rank.pid)
    sampled = events[events["type"] == ring.SAMPLE]
    ended_s, exit_status = _end_of(events, last)
    gpus, ports = gpu_window.devices(last.hardware, rank.pid)
    try:
        cpus = procfs.cpus_allowed(rank.pid, running.root, found.training_thread)
    except (OSError, ValueError):
        cpus = ""
    return RankRow(
        job=identity.job,
        rank=identity.rank,
        local_rank=identity.local_rank,
        world_size=identity.world_size,
        local_world_size=identity.local_world_size,
        guessed=rank.guessed,
        role=identity.role,
        host=identity.host,
        node=identity.node,
        container=identity.container,
        pid=rank.pid,
        inner_pid=identity.inner_pid,
        netns=identity.netns,
        addresses=tuple(sorted({address_of(flow.local) for flow in flows})),
        gpus=gpus,
        nics=tuple(sorted({flow.interface for flow in flows if flow.interface} | set(ports))),
        cpus=cpus,
        python=identity.python,
        command=identity.command,
        title=identity.title,
        age_s=max(last.start_ns / 1e9 - rank.start_s, 0.0),
        state=last.states[rank.pid],
        stopped_s=_stopped_s(rank.pid, found, last),
        last_progress_s=found.last_progress_s,
        in_collective_s=found.in_collective_s,
        ended_s=ended_s,
        exit_status=exit_status,
        training_thread=found.training_thread,
        stack_source=_stack_source(process, last),
        samples=len(sampled),
        failed_samples=int((sampled["stack"] == 0).sum()),
        owner=rank.owner,
        gpu_ids=gpu_window.device_ids(last.hardware, rank.pid),
        machine=machine_id(running.root),
        run=identity.run,
        tracer=last.tracers.get(rank.pid, ""),
    )


def _stack_source(process: ProcessWatch, last: LastReadings) -> str:
    """Name where the Python stacks of a process come from: 'bpf', 'py-spy' or 'none'."""
    if process.interpreter is not None:
        return "bpf"
    return "py-spy" if last.untimed.get(process.pid) else "none"


def _end_of(events: Events, last: LastReadings) -> tuple[float | None, int | None]:
    """Return when the process ended (s; before the window: below 0), and its wait status; None
    where unknown.
    """
    ends = events[events["type"] == ring.EXIT]
    if not len(ends):
        return None, None
    status = int(ends["arg"][0])
    return (float(ends["ts_ns"][0]) - last.start_ns) / 1e9, status if status >= 0 else None


def address_of(endpoint: str) -> str:
    """Return the address of `198.18.0.10:29500` or `[fd00::1]:29500` without the port."""
    return endpoint.rpartition(":")[0].strip("[]")


def _stopped_s(pid: int, found: RankWindow, last: LastReadings) -> float:
    """Return the seconds of the window that a rank spent in job-control stop.

    A process that was stopped throughout never switched: then its state decides.
    """
    if found.stopped_s > 0 or last.states[pid] != "stopped":
        return found.stopped_s
    return last.window_s


def helper_rows(running: Observation, rank: FoundRank, last: LastReadings) -> list[CounterRow]:
    """Build the rows of the table `counters` for the rank's threads without Python state."""
    python = frozenset(running.processes[rank.pid].threads) | {rank.pid}
    events = last.events.of(rank.pid)
    events = events[events["type"] == ring.NATIVE]
    others = [times for times in last.cpu.threads_of(rank.pid) if times.tid not in python]
    native = last.natives.names(rank.pid, np.unique(events["arg"]).astype(np.uint64))
    found = helper_threads.helper_threads(
        others,
        last.cpu.before.threads,
        events,
        native,
        lambda tid: thread_name(rank.pid, tid, running.root).removeprefix("thread "),
    )
    return helper_threads.rows(rank.identity.rank, found)
