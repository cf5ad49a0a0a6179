"""What was gathered of one process, put together for the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from rankscope.observer.finish.last import LastReadings
from rankscope.observer.finish.wait_target import wait_target
from rankscope.observer.live.observation import Observation
from rankscope.observer.tables.raw import OpenAbsence, RawProcess
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.files import probe as files
from rankscope.probes.host import procfs
from rankscope.probes.host.block_devices import mount_words
from rankscope.probes.host.mounts import Mounts, read_mounts


def raw_process(running: Observation, pid: int, last: LastReadings) -> RawProcess:
    """Events, absences, calls and names of one process."""
    process = running.processes[pid]
    tids = frozenset(process.threads) | {pid}
    events = last.events[last.events["tgid"] == pid]
    return RawProcess(
        pid=pid,
        start_ns=last.start_ns,
        window_s=last.window_s,
        events=events,
        open_absences={tid: away for tid in tids if (away := _open_absence(pid, tid, last, running.root)) is not None},
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
        thread_names={tid: thread_name(pid, tid, running.root) for tid in tids},
        native=last.natives.names(pid, np.unique(events["arg"][events["type"] == ring.SAMPLE]).astype(np.uint64)),
    )


def thread_name(pid: int, tid: int, root: Path) -> str:
    """In words."""
    if tid == pid:
        return "the main thread"
    try:
        name = procfs.read_file(procfs.proc_path(root, pid, "task", tid, "comm"), 64)
    except OSError:
        return "a thread that ended"
    return "thread " + "".join(c if c.isprintable() else "?" for c in name.decode("utf-8", "replace").strip())


def _open_absence(pid: int, tid: int, last: LastReadings, root: Path) -> OpenAbsence | None:
    times = last.threads.get(tid)
    if times is None:
        away = last.still.get(tid)
    elif times.out_since_ns:
        away = OpenAbsence(
            tid, times.out_since_ns, times.wake_ns, times.state, times.syscall, times.argument, times.stack
        )  # fmt: skip
    else:
        return None
    return None if away is None else replace(away, target=wait_target(pid, away.syscall, away.argument, root))


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
