"""Control groups of a process: its limits (CPU, memory, I/O, CPUs) and how often they throttled it.

In: /proc/PID/cgroup, the cgroup mounts in the observer's own mountinfo, and the files of the cgroup
and all its ancestors: a limit anywhere above binds as well. Version 1, version 2 and both at once
(each controller lives in one of them). Out: CgroupSample; two of them give the growth of the
throttling counters.

`nr_throttled` and the throttled time count only a cgroup's own quota, not its ancestors', so every
level with a quota is listed. The throttled time adds up over CPUs (kernel/sched/fair.c,
unthrottle_cfs_rq): two CPUs throttled for 1 s give 2 s.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.probes.base.growth import grown
from rankscope.probes.host.mounts import Mount, parse_mountinfo
from rankscope.probes.host.procfs import ROOT, proc_path, read_file, reason

MAX_LEVELS = 64
_MOST_DIGITS = 20  # of a 64-bit number
# memory.limit_in_bytes of version 1 means "none" by the largest multiple of the page size.
_NO_LIMIT_BYTES = 1 << 60
CPU, MEMORY, IO, CPUSET = "cpu", "memory", "io", "cpuset"
_V1_NAMES = {CPU: "cpu", MEMORY: "memory", IO: "blkio", CPUSET: "cpuset"}


@dataclass(frozen=True, slots=True)
class CpuLevel:
    """CPU accounting of one cgroup. `quota_cpus` is None without quota; `period_s` 0 where unknown.

    `throttled_s` is of the cgroup's own quota, summed over CPUs.
    """

    path: str
    quota_cpus: float | None
    period_s: float
    periods: int
    throttled_periods: int
    throttled_s: float


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """Memory accounting of one cgroup; None: no limit, or unknown. Events since it was made."""

    path: str
    limit_bytes: int | None
    high_bytes: int | None
    usage_bytes: int | None
    limit_hits: int
    high_hits: int
    oom_kills: int


@dataclass(frozen=True, slots=True)
class IoLimit:
    """An I/O throttle on one device ('major:minor'). Bytes or operations per second; None: not limited."""

    path: str
    device: str
    read_bytes_hz: float | None
    write_bytes_hz: float | None
    read_ops_hz: float | None
    write_ops_hz: float | None


@dataclass(frozen=True, slots=True)
class CgroupSample:
    """One reading for one process, the process's own cgroup first, then its ancestors.

    `path` is the most specific cgroup path (see `best_path`). `missing` says what could not be read
    and why.
    """

    pid: int
    time_s: float
    path: str
    cpu: tuple[CpuLevel, ...]
    memory: tuple[MemoryLevel, ...]
    io: tuple[IoLimit, ...]
    cpuset: str
    missing: tuple[str, ...]

    @property
    def tightest_cpu(self) -> CpuLevel | None:
        """The level with the least CPU quota; None where none has one."""
        limited = [level for level in self.cpu if level.quota_cpus is not None]
        return min(limited, key=lambda level: level.quota_cpus or 0.0, default=None)

    @property
    def tightest_memory(self) -> MemoryLevel | None:
        """The level with the least memory limit; None where none has one."""
        limited = [level for level in self.memory if level.limit_bytes is not None]
        return min(limited, key=lambda level: level.limit_bytes or 0, default=None)

    @property
    def throttled_s(self) -> float:
        """Seconds throttled by the quotas of all levels, summed over levels and CPUs."""
        return sum(level.throttled_s for level in self.cpu if level.quota_cpus is not None)

    @property
    def throttled_periods(self) -> int:
        """Number of periods with throttling, summed over the levels that have a quota."""
        return sum(level.throttled_periods for level in self.cpu if level.quota_cpus is not None)


@dataclass(frozen=True, slots=True)
class CgroupEntry:
    """One line of /proc/PID/cgroup. Version 2 has hierarchy 0 and no controllers."""

    hierarchy: int
    controllers: tuple[str, ...]
    path: str


@dataclass(frozen=True, slots=True)
class _ControllerPlace:
    """Version and folders of a controller for one process: its cgroup, then the ancestors."""

    version: int
    folders: tuple[tuple[str, str], ...]  # (folder, cgroup path)


def sample_cgroup(pid: int, root: Path = ROOT) -> CgroupSample:
    """Read limits and counters of the control groups of a process. Never raises."""
    missing: list[str] = []
    entries: tuple[CgroupEntry, ...] = ()
    mounts: tuple[Mount, ...] = ()
    try:
        entries = read_entries(pid, root)
        mounts = _cgroup_mounts(root)
    except OSError as error:
        missing.append(f"control groups of pid {pid}: {reason(error)}")
    places: dict[str, _ControllerPlace] = {}
    for controller in _V1_NAMES if entries else ():
        place = _find(controller, entries, mounts, root, missing)
        if place is not None:
            places[controller] = place
    cpu, memory, cpuset = places.get(CPU), places.get(MEMORY), places.get(CPUSET)
    return CgroupSample(
        pid=pid,
        time_s=time.monotonic(),
        path=best_path(entries),
        cpu=_cpu_levels(cpu) if cpu else (),
        memory=_memory_levels(memory) if memory else (),
        io=_io_limits(places[IO]) if IO in places else (),
        cpuset=_cpuset(cpuset) if cpuset else "",
        missing=tuple(missing),
    )


def cgroup_delta(before: CgroupSample, after: CgroupSample) -> CgroupSample:
    """Return `after` with its counters replaced by their growth.

    Levels that are new (the process moved to another cgroup) count from 0.
    """
    cpu = {level.path: level for level in before.cpu}
    memory = {level.path: level for level in before.memory}
    return replace(
        after,
        cpu=tuple(
            grown(cpu[now.path], now, "periods", "throttled_periods", "throttled_s") if now.path in cpu else now
            for now in after.cpu
        ),
        memory=tuple(
            grown(memory[now.path], now, "limit_hits", "high_hits", "oom_kills") if now.path in memory else now
            for now in after.memory
        ),
    )


def read_entries(pid: int, root: Path = ROOT) -> tuple[CgroupEntry, ...]:
    """Read /proc/PID/cgroup, as seen from the observer's cgroup namespace. Raises OSError."""
    return parse_entries(read_file(proc_path(root, pid, "cgroup"), 65536))


def parse_entries(data: bytes) -> tuple[CgroupEntry, ...]:
    """Parse /proc/PID/cgroup; unusable lines are left out. Never raises."""
    entries = []
    for line in data.split(b"\n"):
        number, colon, rest = line.partition(b":")
        names, second, path = rest.partition(b":")
        if not (colon and second and path.startswith(b"/") and number.isdigit() and len(number) <= _MOST_DIGITS):
            continue
        controllers = tuple(name for name in names.decode("utf-8", "replace").split(",") if name)
        entries.append(
            CgroupEntry(int(number), controllers, path.decode("utf-8", "replace").removesuffix(" (deleted)"))
        )
    return tuple(entries)


def best_path(entries: tuple[CgroupEntry, ...]) -> str:
    """Return the most specific path: the deepest, the CPU controller's among equals; '' if none."""
    ranked = sorted(entries, key=lambda entry: (-entry.path.rstrip("/").count("/"), "cpu" not in entry.controllers))
    return ranked[0].path if ranked else ""


def memory_folders(pid: int, root: Path = ROOT) -> tuple[int, tuple[str, ...]]:
    """Return (version, folders) of a process's memory cgroup: its own first, then ancestors.

    (0, ()) where it cannot be found. Raises OSError.
    """
    place = _find(MEMORY, read_entries(pid, root), _cgroup_mounts(root), root, [])
    return (place.version, tuple(folder for folder, _ in place.folders)) if place is not None else (0, ())


def sample_cgroups(pids: Iterable[int], root: Path = ROOT) -> dict[int, CgroupSample]:
    """Sample the cgroups of processes, by pid; shared ones are read once. Never raises.

    Every pid has an entry; its `missing` names what could not be read.
    """
    found: dict[int, CgroupSample] = {}
    by_place: dict[tuple[CgroupEntry, ...], CgroupSample] = {}
    for pid in pids:
        place: tuple[CgroupEntry, ...] = ()
        with contextlib.suppress(OSError):
            place = read_entries(pid, root)
        known = by_place.get(place) if place else None
        found[pid] = sample_cgroup(pid, root) if known is None else replace(known, pid=pid)
        by_place[place] = found[pid]
    return found


def _cgroup_mounts(root: Path) -> tuple[Mount, ...]:
    """Read the cgroup mounts (version 1 and 2) that the observer itself sees. Raises OSError."""
    return _cgroups_mounted(read_file(proc_path(root, "self", "mountinfo"), 8 << 20))


@functools.lru_cache(maxsize=1)
def _cgroups_mounted(mountinfo: bytes) -> tuple[Mount, ...]:
    """Select the cgroup mounts (version 1 and 2) in a mountinfo file.

    The last result is cached, as this is called for each process and hardly ever changes.
    """
    mounts = parse_mountinfo(mountinfo)
    return tuple(mount for mount in mounts if mount.fs_type in ("cgroup", "cgroup2"))


def _find(
    controller: str, entries: tuple[CgroupEntry, ...], mounts: tuple[Mount, ...], root: Path, missing: list[str]
) -> _ControllerPlace | None:
    """Find the cgroup that governs `controller`: in version 1 where it is mounted there, else in version 2.

    None, and a line added to `missing`, where it cannot be found.
    """
    name = _V1_NAMES[controller]
    old = next((entry for entry in entries if name in entry.controllers), None)
    version = 2 if old is None else 1
    entry = old or next((entry for entry in entries if entry.hierarchy == 0 and not entry.controllers), None)
    if entry is None:
        missing.append(f"{controller} cgroup: the process is in none")
        return None
    candidates = [
        mount for mount in mounts if (mount.fs_type == "cgroup2" if version == 2 else _has_controller(mount, name))
    ]
    if not candidates:
        missing.append(f"{controller} cgroup: its hierarchy is not mounted here")
        return None
    for mount in candidates:
        relative = _below(entry.path, mount.root)
        if relative is not None:
            return _ControllerPlace(
                version, _ancestors(f"{str(root).rstrip('/')}{mount.mount_point}", relative, mount.root)
            )
    # A path that begins with /.. lies outside the cgroup namespace of the observer.
    missing.append(
        f"{controller} cgroup: {entry.path[:200]} is outside of the hierarchy mounted here (run in the host's namespace)"
    )
    return None


def _has_controller(mount: Mount, name: str) -> bool:
    """Tell whether a mount is a version 1 hierarchy with the controller `name`."""
    return mount.fs_type == "cgroup" and name in mount.super_options.split(",")


def _below(path: str, mount_root: str) -> str | None:
    """Return the cgroup `path` relative to the mounted cgroup, without slashes at the ends.

    '' for the mounted cgroup itself; None where `path` is not below it, or contains '..'.
    """
    base = mount_root.rstrip("/")
    if path.rstrip("/") != base and not path.startswith(base + "/"):
        return None
    below = path[len(base) :].strip("/")
    return None if ".." in below.split("/") else below


def _ancestors(mount_point: str, relative: str, mount_root: str) -> tuple[tuple[str, str], ...]:
    """List (folder, cgroup path) of the cgroup at `relative` and of its ancestors up to the mount.

    The cgroup itself first; at most MAX_LEVELS.
    """
    parts = relative.split("/") if relative else []
    base = mount_root.rstrip("/")
    places = []
    for depth in range(len(parts), max(-1, len(parts) - MAX_LEVELS), -1):
        below = "/".join(parts[:depth])
        places.append((f"{mount_point}/{below}".rstrip("/"), f"{base}/{below}".rstrip("/") or "/"))
    return tuple(places)


def _cpu_levels(place: _ControllerPlace) -> tuple[CpuLevel, ...]:
    """Read the CPU quota and throttling of a cgroup and its ancestors, in the order of `place`."""
    return tuple(_cpu_level(folder, path, place.version) for folder, path in place.folders)


def _cpu_level(folder: str, path: str, version: int) -> CpuLevel:
    """Read the CPU quota and throttling of the cgroup in `folder`; files that are missing count as 0 or no quota.

    `path`: its cgroup path, for the result; `version`: 1 or 2.
    """
    quota: float | None = None
    period = 0.0
    if version == 1:
        quota_us, period_us = _number(f"{folder}/cpu.cfs_quota_us"), _number(f"{folder}/cpu.cfs_period_us")
        period = (period_us or 0) / 1e6
        if quota_us is not None and quota_us > 0 and period_us:
            quota = quota_us / period_us
    else:
        quota, period = parse_cpu_max(_text(f"{folder}/cpu.max"))
    stat = _pairs(f"{folder}/cpu.stat")
    throttled = stat["throttled_time"] / 1e9 if "throttled_time" in stat else stat.get("throttled_usec", 0) / 1e6
    return CpuLevel(path, quota, period, stat.get("nr_periods", 0), stat.get("nr_throttled", 0), throttled)


def parse_cpu_max(text: str) -> tuple[float | None, float]:
    """Parse a cpu.max file: (quota in CPUs or None, period in seconds); (None, 0.0) if unusable. Never raises."""
    words = text.split()
    try:
        period = int(words[1]) / 1e6 if len(words) > 1 else 0.1
        quota = None if words[0] == "max" else int(words[0]) / 1e6
    except (ValueError, IndexError, OverflowError):
        return None, 0.0
    if quota is None or period <= 0:
        return None, max(period, 0.0)
    return quota / period, period


def _memory_levels(place: _ControllerPlace) -> tuple[MemoryLevel, ...]:
    """Read the memory limits and events of a cgroup and its ancestors, in the order of `place`."""
    return tuple(_memory_level(folder, path, place.version) for folder, path in place.folders)


def _memory_level(folder: str, path: str, version: int) -> MemoryLevel:
    """Read the memory limits and events of the cgroup in `folder`.

    `path`: its cgroup path, for the result. In version 1 the soft limit counts as `high_bytes`.
    """
    if version == 1:
        limit = _number(f"{folder}/memory.limit_in_bytes")
        soft = _number(f"{folder}/memory.soft_limit_in_bytes")
        return MemoryLevel(
            path,
            limit if limit is not None and limit < _NO_LIMIT_BYTES else None,
            soft if soft is not None and soft < _NO_LIMIT_BYTES else None,
            _number(f"{folder}/memory.usage_in_bytes"),
            _number(f"{folder}/memory.failcnt") or 0,
            0,
            _pairs(f"{folder}/memory.oom_control").get("oom_kill", 0),
        )
    events = _pairs(f"{folder}/memory.events")
    return MemoryLevel(
        path,
        _number(f"{folder}/memory.max"),
        _number(f"{folder}/memory.high"),
        _number(f"{folder}/memory.current"),
        events.get("max", 0),
        events.get("high", 0),
        events.get("oom_kill", 0),
    )


def _io_limits(place: _ControllerPlace) -> tuple[IoLimit, ...]:
    """Read the I/O throttles of a cgroup and its ancestors, per device; levels without any are left out."""
    limits: list[IoLimit] = []
    for folder, path in place.folders:
        if place.version == 2:
            limits += parse_io_max(path, _text(f"{folder}/io.max"))
            continue
        tables = [
            _device_limits(f"{folder}/blkio.throttle.{name}_device")
            for name in ("read_bps", "write_bps", "read_iops", "write_iops")
        ]
        for device in sorted(set().union(*tables)):
            limits.append(IoLimit(path, device, *(table.get(device) for table in tables)))
    return tuple(limits)


def parse_io_max(path: str, text: str) -> list[IoLimit]:
    """Parse an io.max file ('8:16 rbps=2097152 wbps=max …') of the cgroup `path`. Never raises.

    'max' gives None; devices without any limit are left out.
    """
    limits = []
    for line in text.splitlines()[:1024]:
        device, *words = line.split() or [""]
        values: dict[str, float] = {}
        for word in words:
            key, _, value = word.partition("=")
            if _is_number(value):
                values[key] = float(value)
        if values and ":" in device:
            limits.append(
                IoLimit(path, device, values.get("rbps"), values.get("wbps"), values.get("riops"), values.get("wiops"))
            )
    return limits


def _device_limits(path: str) -> dict[str, float]:
    """Parse a file with lines such as '8:0 1048576' to limits by device; empty where there is no file."""
    found = {}
    for line in _text(path).splitlines()[:1024]:
        device, _, value = line.partition(" ")
        if ":" in device and _is_number(value.strip()):
            found[device] = float(value)
    return found


def _cpuset(place: _ControllerPlace) -> str:
    """Read the CPUs that a cgroup may use ('0-3,8'), from the nearest level that lists any; '' if none does."""
    names = ("cpuset.effective_cpus", "cpuset.cpus") if place.version == 1 else ("cpuset.cpus.effective", "cpuset.cpus")
    for folder, _ in place.folders:
        for name in names:
            text = _text(f"{folder}/{name}").strip()
            if text:
                return text[:1024]
    return ""


def _text(path: str) -> str:
    """Read a cgroup file, unstripped; '' on any OSError: absent in the root, or its controller is off."""
    try:
        return read_file(path, 65536).decode("ascii", "replace")
    except OSError:
        return ""


def _number(path: str) -> int | None:
    """Read a whole number from a cgroup file; None for anything else ('max', no such file)."""
    text = _text(path).strip()
    return int(text) if _is_number(text.removeprefix("-")) else None  # None for "max" too


def _is_number(text: str) -> bool:
    """Tell whether a text is 1 to 20 decimal digits and nothing else, as 64-bit numbers are."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


def _pairs(path: str) -> dict[str, int]:
    """Parse a cgroup file with lines 'name number'; other lines are left out. Never raises."""
    pairs = {}
    for line in _text(path).splitlines()[:256]:
        name, _, value = line.partition(" ")
        if _is_number(value):
            pairs[name] = int(value)
    return pairs
