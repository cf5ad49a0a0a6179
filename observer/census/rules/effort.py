"""How many CPUs processes want now and used so far, and whether they hold a GPU.

A process wants a CPU while one of its threads runs or is in the run queue: on a crowded host a
training loop runs little.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from rankscope.probes.host import procfs
from rankscope.probes.host.procfs import proc_path, read_file

LOOK_S = 0.3  # seconds between two readings
_THREADS_MOST = 256  # of a process that are read
_OPENED_MOST = 2048  # files searched for a GPU: it is opened early
_GPU = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")


def cpu_shares(pids: Iterable[int], root: Path) -> dict[int, float]:
    """Measure, for 0.3 s, the CPUs that each process wants at present; 0 for one that cannot be read."""
    wanted = tuple(pids)
    before, began_s = {pid: _wanted_s(pid, root) for pid in wanted}, time.monotonic()
    time.sleep(LOOK_S)
    after, took_s = {pid: _wanted_s(pid, root) for pid in wanted}, time.monotonic() - began_s
    return {
        pid: sum(max(until_s - before[pid].get(tid, until_s), 0.0) for tid, until_s in after[pid].items()) / took_s
        for pid in wanted
    }


def used_so_far(pid: int, root: Path) -> tuple[float, float]:
    """Return the CPU seconds that a process used since its start, and the CPUs it used on average; zeros if unknown."""
    try:
        stat = procfs.read_stat(pid, root)
        up_s = float(read_file(str(root / "proc/uptime"), 64).split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0, 0.0
    used_s, age_s = stat.user_s + stat.system_s, up_s - stat.start_s
    return used_s, used_s / age_s if age_s > 0 else 0.0


def holds_gpu(pid: int, root: Path) -> bool:
    """Tell whether a process has a GPU open."""
    try:
        files = procfs.open_files(pid, root, _OPENED_MOST).values()
    except OSError:
        return False
    return any((target.startswith(_GPU) and target[-1:].isdigit()) or target == "/dev/kfd" for target in files)


def _wanted_s(pid: int, root: Path) -> dict[int, float]:
    """Return the seconds that each thread ran or was ready to run, by thread id."""
    found: dict[int, float] = {}
    try:
        for tid in procfs.threads(pid, root)[:_THREADS_MOST]:
            words = read_file(proc_path(root, pid, "task", tid, "schedstat"), 256).split()
            found[tid] = (int(words[0]) + int(words[1])) / 1e9
    except (OSError, ValueError, IndexError):
        pass  # a thread ended meanwhile: those before it count
    return found
