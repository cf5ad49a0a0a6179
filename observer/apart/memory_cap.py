"""A limit of memory that the kernel keeps: a control group for the observing process alone, as long as it lives.

Where the command already stands below a limit that is as low (a service with MemoryMax, a pod), that is the limit. Where no group
can be made (in a container, as a rule), RLIMIT_DATA is, which a process sets itself. What a run that was killed left, the next one removes.
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
    """A control group. Close it when the process in it has ended."""

    folder: Path
    version: int

    def add(self, pid: int) -> None:
        """Put a process under it. OSError."""
        (self.folder / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def killed(self) -> bool:
        """Whether the kernel ended a process for want of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        try:
            lines = (self.folder / name).read_text(encoding="ascii").splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)

    def close(self) -> None:
        """Remove it. Never raises."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def make(limit_bytes: int) -> MemoryCap | None:
    """A new group with that limit. None where there is a limit already, or none can be made."""
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
    """Where a group may be made, best first: at the top, where every run looks for what killed ones left, unless that would be outside
    of a limit; else below our own, or beside it: in version 2 a group that holds processes gives its controllers to none below it."""
    near = folders[0] if version == 1 or len(folders) == 1 else folders[1]
    return [Path(one) for one in dict.fromkeys((near,) if limited else (folders[-1], near))]


def limit_data(limit_bytes: int) -> None:
    """In place of a group: this process gets so much more than it has, by RLIMIT_DATA. Never raises."""
    with contextlib.suppress(OSError, ValueError):
        line = next(line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("VmData:"))
        most = int(line.split()[1]) * 1024 + limit_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _limit(made: MemoryCap, limit_bytes: int) -> None:
    if made.version == 1:
        (made.folder / "memory.limit_in_bytes").write_text(str(limit_bytes), encoding="ascii")
        swap, most = "memory.memsw.limit_in_bytes", str(limit_bytes)
    else:
        (made.folder / "memory.max").write_text(str(limit_bytes), encoding="ascii")
        swap, most = "memory.swap.max", "0"
    with contextlib.suppress(OSError):  # where swap is not counted, it is not limited
        (made.folder / swap).write_text(most, encoding="ascii")


def _remove_abandoned(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*-*"):
        pid, _, ticks = folder.name.removeprefix(_PREFIX).partition("-")
        with contextlib.suppress(OSError, ValueError):
            try:
                alive = procfs.start_ticks(int(pid)) == int(ticks)
            except FileNotFoundError:
                alive = False
            if not alive:
                folder.rmdir()
