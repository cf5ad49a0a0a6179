"""A control group per process of the lab, under cgroup v1 or v2, whichever carries the controller on this host.

Each is a group `rslab-<name>` directly under the root of its hierarchy: as children of one group they would share the CPU
weight of one, and a heavy one among them would starve the others against the rest of the host.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from labkit.machine.shell import Impossible, LabError

PREFIX = "rslab-"
PERIOD_US = 100_000
# What the lab uses, by their names in v1 and v2.
CONTROLLERS = {"cpu": "cpu", "blkio": "io", "memory": "memory"}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy: `controller` is the v1 name (a key of CONTROLLERS), whatever the version."""

    controller: str
    version: int
    mount: Path

    def group(self, name: str) -> Path:
        return self.mount / (PREFIX + name)


def hierarchies(root: Path = Path("/")) -> list[Hierarchy]:
    """Where each controller of CONTROLLERS can be used here; v1 wins where a host has both."""
    found: dict[str, Hierarchy] = {}
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        mount = root / left.split()[4].lstrip("/")
        for v1_name, v2_name in CONTROLLERS.items():
            if kind == "cgroup" and v1_name in options.split(","):
                found[v1_name] = Hierarchy(v1_name, 1, mount)
            elif kind == "cgroup2" and v1_name not in found and v2_name in _controllers(mount):
                found[v1_name] = Hierarchy(v1_name, 2, mount)
    return list(found.values())


def _controllers(mount: Path) -> list[str]:
    return (mount / "cgroup.controllers").read_text().split()


class Group:
    """The control groups of one process, one per hierarchy (one in all under v2)."""

    def __init__(self, name: str, where: list[Hierarchy]) -> None:
        self.name = name
        self._where = {hierarchy.controller: hierarchy for hierarchy in where}
        for hierarchy in where:
            try:
                if hierarchy.version == 2:
                    wanted = f"+{CONTROLLERS[hierarchy.controller]}"
                    (hierarchy.mount / "cgroup.subtree_control").write_text(wanted)
                hierarchy.group(name).mkdir(exist_ok=True)
            except OSError as error:
                raise LabError(
                    f"no control group under {hierarchy.mount}: {error.strerror}", "The lab needs root."
                ) from None

    @property
    def paths(self) -> list[Path]:
        return sorted({hierarchy.group(self.name) for hierarchy in self._where.values()})

    def enter(self) -> None:
        """Move the calling process in (between fork and exec)."""
        for path in self.paths:
            (path / "cgroup.procs").write_text("0")

    def limit_cpu(self, cpus: float | None) -> None:
        """Allow so many CPUs (1 ms per period at least, the kernel's least); None: no limit."""
        path, version = self._place("cpu")
        quota = "max" if cpus is None else str(max(1000, int(cpus * PERIOD_US)))
        if version == 2:
            (path / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (path / "cpu.cfs_quota_us").write_text("-1" if cpus is None else quota)

    def weigh_cpu(self, times: float) -> None:
        """Give the group so many times the CPU weight of an ordinary one, where they compete."""
        path, version = self._place("cpu")
        if version == 2:
            (path / "cpu.weight").write_text(str(min(10_000, max(1, round(100 * times)))))
        else:
            (path / "cpu.shares").write_text(str(min(262_144, max(2, round(1024 * times)))))

    def limit_reads(self, device: str, bytes_per_s: int | None) -> None:
        """Allow so many bytes per second to be read from block device MAJOR:MINOR; None: no limit."""
        self._throttle("read", device, bytes_per_s)

    def limit_writes(self, device: str, bytes_per_s: int | None) -> None:
        """Allow so many bytes per second to be written to it past the page cache; None: no limit."""
        self._throttle("write", device, bytes_per_s)

    def _throttle(self, way: str, device: str, bytes_per_s: int | None) -> None:
        path, version = self._place("blkio")
        try:
            if version == 2:
                (path / "io.max").write_text(f"{device} {way[0]}bps={bytes_per_s or 'max'}")
            else:
                (path / f"blkio.throttle.{way}_bps_device").write_text(f"{device} {bytes_per_s or 0}")
        except OSError as error:
            raise Impossible(f"{way}s of device {device} cannot be throttled: {error.strerror}") from None

    def memory_bytes(self) -> tuple[int, int]:
        """(all that is charged to the group, its page cache), bytes."""
        path, version = self._place("memory")
        used = int((path / ("memory.current" if version == 2 else "memory.usage_in_bytes")).read_text())
        lines = (line.split() for line in (path / "memory.stat").read_text().splitlines())
        figures = {name: int(value) for name, value in lines}
        return used, figures["file" if version == 2 else "cache"]

    def limit_memory(self, bytes_most: int | None) -> None:
        """Allow so many bytes (the kernel reclaims page cache to get there); None: no limit."""
        path, version = self._place("memory")
        file = path / ("memory.high" if version == 2 else "memory.limit_in_bytes")
        try:
            file.write_text(str(bytes_most or ("max" if version == 2 else -1)))
        except OSError as error:
            raise Impossible(f"memory cannot be limited to {bytes_most} bytes: {error.strerror}") from None

    def limit_memory_for_good(self, bytes_most: int) -> None:
        """Allow so many bytes; who asks for more is ended by the kernel."""
        path, version = self._place("memory")
        names = ("memory.max", "memory.swap.max") if version == 2 else ("memory.limit_in_bytes",)
        for name, limit in zip(names, (bytes_most, 0), strict=False):
            with contextlib.suppress(FileNotFoundError):
                (path / name).write_text(str(limit))

    def _place(self, controller: str) -> tuple[Path, int]:
        hierarchy = self._where.get(controller)
        if hierarchy is None:
            raise Impossible(f"no cgroup hierarchy with the {controller} controller on this host")
        return hierarchy.group(self.name), hierarchy.version


def remove_group(path: Path) -> None:
    """Kill whatever is in a group and remove it; a group that is gone is fine."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            for pid in (path / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    os.kill(int(pid), signal.SIGKILL)
                    os.kill(int(pid), signal.SIGCONT)
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise LabError(f"control group {path} cannot be removed: processes in it do not end")


def remove_all() -> int:
    """Remove every group of the lab, with the processes in it; how many there were."""
    groups = {path for hierarchy in hierarchies() for path in hierarchy.mount.glob(f"{PREFIX}*")}
    for group in groups:
        remove_group(group)
    return len(groups)
