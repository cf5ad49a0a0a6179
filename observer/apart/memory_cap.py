"""A memory limit enforced by the kernel: a control group for the observing process alone.

Where the command is below an equally low limit already (a service with MemoryMax, a pod), that
suffices. Where no group can be made (in a container, as a rule), the process limits itself by
RLIMIT_DATA. Leftovers of killed runs are removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host import cgroup, procfs

_PREFIX = "rankscope-"
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class MemoryCap:
    """A control group with a memory limit. Close it when the process in it has ended."""

    folder: Path
    version: int

    def add(self, pid: int) -> None:
        """Move a process into the group. Raises OSError."""
        (self.folder / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def killed(self) -> bool:
        """Tell whether the kernel killed a process of the group for lack of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        try:
            lines = (self.folder / name).read_text(encoding="ascii").splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)

    def close(self) -> None:
        """Remove the group. Never raises."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def make(limit_bytes: int) -> MemoryCap | None:
    """Create a group with that limit for memory and swap.

    None where a limit as low exists already, or none can be created.
    """
    try:
        version, folders = cgroup.memory_folders(os.getpid())
        tightest = cgroup.sample_cgroup(os.getpid()).tightest_memory
        if not folders or (tightest is not None and (tightest.limit_bytes or 0) <= limit_bytes):
            return None
        name = f"{_PREFIX}{os.getpid()}-{procfs.start_ticks(os.getpid())}"
    except (OSError, ValueError):
        return None
    for place in places(version, folders, limited=tightest is not None):
        try:
            _remove_abandoned(place)
            made = MemoryCap(place / name, version)
            made.folder.mkdir(mode=0o755)
        except OSError:
            continue
        try:
            _limit(made, limit_bytes)
        except OSError:
            made.close()
            continue
        return made
    return None


def places(version: int, folders: Sequence[str], *, limited: bool) -> list[Path]:
    """List where a group may be created, best first.

    `folders`: the control group of this process, then its ancestors; `limited`: some memory limit
    applies to it already. At the top, where every run removes leftovers of killed ones, unless that
    would escape a limit; else below our own group, or next to it: in version 2 a group that holds
    processes gives its controllers to none below it.
    """
    near = folders[0] if version == 1 or len(folders) == 1 else folders[1]
    return [Path(one) for one in dict.fromkeys((near,) if limited else (folders[-1], near))]


def limit_data(limit_bytes: int) -> None:
    """Limit this process by RLIMIT_DATA to `limit_bytes` more than it has. Never raises."""
    with contextlib.suppress(OSError, ValueError):
        line = next(line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("VmData:"))
        most = int(line.split()[1]) * 1024 + limit_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _limit(made: MemoryCap, limit_bytes: int) -> None:
    """Write the group's memory limit, and forbid swap beyond it. Raises OSError where memory cannot be limited."""
    if made.version == 1:
        (made.folder / "memory.limit_in_bytes").write_text(str(limit_bytes), encoding="ascii")
        swap, most = "memory.memsw.limit_in_bytes", str(limit_bytes)
    else:
        (made.folder / "memory.max").write_text(str(limit_bytes), encoding="ascii")
        swap, most = "memory.swap.max", "0"
    with contextlib.suppress(OSError):  # where swap is not counted, it cannot be limited
        (made.folder / swap).write_text(most, encoding="ascii")


def _remove_abandoned(place: Path) -> None:
    """Remove the groups in this folder whose process has ended, by the pid and start time in their names."""
    for folder in place.glob(f"{_PREFIX}*-*"):
        pid, _, ticks = folder.name.removeprefix(_PREFIX).partition("-")
        with contextlib.suppress(OSError, ValueError):
            try:
                alive = procfs.start_ticks(int(pid)) == int(ticks)
            except FileNotFoundError:
                alive = False
            if not alive:
                folder.rmdir()
