"""Collect the data of one process for building tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rankscope.observer.finish.last import LastReadings
from rankscope.observer.finish.mount_views import MountViews
from rankscope.observer.finish.wait_target import wait_target
from rankscope.observer.gpu.launched import LaunchSite, keys_of, launch_sites
from rankscope.observer.live.observation import Observation
from rankscope.observer.live.process_watch import ProcessWatch
from rankscope.observer.tables.raw import OpenAbsence, RawProcess
from rankscope.observer.thread.device_calls import MARKER_ROLES, of_roles
from rankscope.probes.base.text import printable
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.table import CALL_TABLE
from rankscope.probes.files import probe as files
from rankscope.probes.host import procfs
from rankscope.unwinder.gpu.files import Launched

_NEAR_THE_END = 0.1  # share of the window


def raw_process(running: Observation, pid: int, last: LastReadings) -> RawProcess:
    """Collect events, absences, calls and names of one process."""
    process = running.processes[pid]
    events = last.events.of(pid)
    tids = python_threads(process, events)
    still = {tid: away for tid in tids if (away := _open_absence(tid, last)) is not None}
    sampled = np.unique(events["arg"][events["type"] == ring.SAMPLE]).astype(np.uint64)
    native, libraries = last.natives.placed(pid, sampled)
    return RawProcess(
        pid=pid,
        start_ns=last.start_ns,
        window_s=last.window_s,
        events=events,
        open_absences=still,
        open_calls=last.open_calls.get(pid, ()),
        python_tids=tids,
        stacks=running.stacks,
        devices=_devices(pid, events, last.mounts),
        throttled_s=last.throttled_s.get(pid, 0.0),
        hz=last.hz,
        untimed=last.untimed.get(pid, ()),
        launches=_launches(pid, events, running),
        targets=targets_of(pid, tids, events, still, last),
        thread_states=process.states,
        thread_names={tid: thread_name(pid, tid, running.root) for tid in tids},
        native=native,
        libraries=libraries,
        alive_tids=frozenset(tid for tid in tids if tid in last.threads or tid in last.open_absences),
    )


def _launches(pid: int, events: Events, running: Observation) -> tuple[LaunchSite, ...]:
    """Count the GPU launches of a process whose place is known, by kernel and place; () if there are none."""
    located = events[events["type"] == ring.LAUNCH]
    if not len(located):
        return ()
    launched = [Launched(*key) for key in set(keys_of(located))]
    kernels, files = running.kernels.placed(pid, launched)
    without_stack = np.unique(located["tid"][located["ready_ns"] == 0]).tolist()
    return launch_sites(
        located,
        {(one.function, one.caller): kernel.name for one, kernel in kernels.items()},
        {(one.function, one.caller): file for one, file in files.items()},
        {tid: thread_name(pid, tid, running.root) for tid in without_stack},
    )


def python_threads(process: ProcessWatch, events: Events) -> frozenset[int]:
    """Return the process's threads with Python state, including ended ones that occur in its
    `events`.

    A loader without workers makes its samples in a thread that ends with each epoch.
    """
    ended = np.intersect1d(np.array(list(process.ended), dtype=np.uint32), events["tid"])
    return frozenset({process.pid, *process.threads, *ended.tolist()})


def thread_name(pid: int, tid: int, root: Path) -> str:
    """Name a thread for display: 'the main thread', 'thread NAME', or 'a thread that ended'."""
    if tid == pid:
        return "the main thread"
    try:
        name = procfs.read_file(procfs.proc_path(root, pid, "task", tid, "comm"), 64)
    except OSError:
        return "a thread that ended"
    return "thread " + printable(name.decode("utf-8", "replace").strip())


def _open_absence(tid: int, last: LastReadings) -> OpenAbsence | None:
    """Return the absence from the CPU in which a thread was when the window ended; None if it ran, or is unknown."""
    times = last.threads.get(tid)
    if times is None:
        away = last.open_absences.get(tid)
    elif times.out_since_ns:
        away = OpenAbsence(
            tid, times.out_since_ns, times.wake_ns, times.state, times.syscall, times.argument, times.stack
        )  # fmt: skip
    else:
        return None
    return away


def targets_of(
    pid: int, tids: frozenset[int], events: Events, still: Mapping[int, OpenAbsence], last: LastReadings
) -> dict[tuple[int, int, int], str]:
    """Find out what long blocking calls wait for: (tid, system call, argument) -> text.

    Calls in which a thread was blocked for half of the window, or half of the time since the
    process's last progress, most recently near the window's end. A descriptor is resolved after the
    window: an earlier call's may be reused by now; where the window ended `early`, those of all
    finished calls may.
    """
    end_ns = last.start_ns + int(last.window_s * 1e9)
    away = events[(events["type"] == ring.OFFCPU) & np.isin(events["tid"], list(tids))]
    columns = [away["tid"], away["what"], away["arg"], away["ts_ns"], away["ts_ns"] + away["dur_ns"]]
    rows = np.column_stack([column.astype(np.int64) for column in columns])
    open_rows = [(tid, one.syscall, one.argument, one.since_ns, end_ns) for tid, one in still.items()]
    rows = np.concatenate((rows, np.array(open_rows, dtype=np.int64).reshape(-1, 5)))
    calls, of_call = np.unique(rows[:, :3], axis=0, return_inverse=True)
    still_so = np.isin(np.arange(len(calls)), of_call.reshape(-1)[len(away) :])
    until_ns, near_ns = np.minimum(rows[:, 4], end_ns), end_ns - int(_NEAR_THE_END * 1e9 * last.window_s)
    latest_ns = np.zeros(len(calls), np.int64)
    np.maximum.at(latest_ns, of_call.reshape(-1), until_ns)
    long = np.zeros(len(calls), dtype=bool)
    for begin_ns in {last.start_ns, min(_progress_ns(events, last.start_ns), near_ns)}:
        total_ns = np.zeros(len(calls), np.int64)
        np.add.at(total_ns, of_call.reshape(-1), np.maximum(until_ns - np.maximum(rows[:, 3], begin_ns), 0))
        long |= total_ns >= 0.5 * (end_ns - begin_ns)
    long &= (latest_ns >= near_ns) & (still_so | (not last.early))
    return {
        (tid, call, argument): wait_target(pid, tid, call, argument, last.seen)
        for tid, call, argument in calls[long].tolist()
    }


def _progress_ns(events: Events, start_ns: int) -> int:
    """Return when the last call that repeats with the steps ended, CLOCK_MONOTONIC, ns; `start_ns` if none did."""
    calls = events[events["type"] == ring.CALL]
    calls = calls[of_roles(calls, CALL_TABLE, *MARKER_ROLES)]
    return max(int((calls["ts_ns"] + calls["dur_ns"]).max(initial=0)), start_ns)


def _devices(pid: int, events: Events, mounts: MountViews) -> dict[int, str]:
    """Name the devices of this process's file calls by number: mount point in its own view, type and number."""
    wanted = np.unique(events["aux"][events["type"] == ring.FILE]).tolist()
    return dict(zip(wanted, mounts.words(pid, map(files.device_numbers, wanted)), strict=True)) if wanted else {}
