"""How much CPU processes use now and used so far, and whether they hold a GPU or listen on a port."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from rankscope.probes.host import procfs
from rankscope.probes.host.procfs import proc_path, read_file

LOOK_S = 0.3  # seconds between two readings: 30 ticks of the kernel's clock
_OPENED_MOST = 2048  # files searched for a GPU: it is opened early
_NET_TCP_CAP = 16 << 20
_GPU = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
_LISTENS = b"0A"


def cpu_shares(pids: Iterable[int], root: Path) -> dict[int, float]:
    """Measure the CPUs that each process uses at present; 0 for one that cannot be read."""
    wanted = tuple(pids)
    before, began_s = _cpu_s(wanted, root), time.monotonic()
    time.sleep(LOOK_S)
    after, took_s = _cpu_s(wanted, root), time.monotonic() - began_s
    return {
        pid: max(after[pid] - before[pid], 0.0) / took_s if pid in before and pid in after else 0.0 for pid in wanted
    }


def cpu_share_so_far(pid: int, root: Path) -> float:
    """CPUs that a process used on average since its start; 0 if unknown."""
    try:
        stat = procfs.read_stat(pid, root)
        up_s = float(read_file(str(root / "proc/uptime"), 64).split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    age_s = up_s - stat.start_s
    return (stat.user_s + stat.system_s) / age_s if age_s > 0 else 0.0


def holds_gpu(pid: int, root: Path) -> bool:
    """Tell whether a process has a GPU open."""
    try:
        files = procfs.open_files(pid, root, _OPENED_MOST).values()
    except OSError:
        return False
    return any((target.startswith(_GPU) and target[-1:].isdigit()) or target == "/dev/kfd" for target in files)


def listens(inodes: frozenset[int], pid: int, root: Path) -> bool:
    """Tell whether one of these sockets of a process listens for TCP connections."""
    if not inodes:
        return False
    for name in ("net/tcp", "net/tcp6"):
        try:
            data = read_file(proc_path(root, pid, name), _NET_TCP_CAP)
        except OSError:
            continue
        for line in data.split(b"\n"):
            words = line.split()
            if len(words) >= 10 and words[3] == _LISTENS and words[9].isdigit() and int(words[9]) in inodes:
                return True
    return False


def _cpu_s(pids: Iterable[int], root: Path) -> Mapping[int, float]:
    found = {}
    for pid in pids:
        try:
            stat = procfs.read_stat(pid, root)
        except (OSError, ValueError):
            continue
        found[pid] = stat.user_s + stat.system_s
    return found
