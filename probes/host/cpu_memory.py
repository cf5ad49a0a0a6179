"""Sample the host: CPU time per CPU, pressure stalls, faults and kills, load, CPU clocks.

In: /proc/stat, /proc/pressure, /proc/vmstat, /proc/loadavg, cpufreq under /sys. Out: HostSample
(counters since boot) and, from two of them, HostDelta (growth between them). Costs about 0.2 ms per
sample on a host with 8 CPUs.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, fields
from pathlib import Path

from rankscope.probes.base.growth import grown
from rankscope.probes.host.procfs import ROOT, TICKS_PER_S, number, proc_path, read_file, reason

PRESSURE_RESOURCES = ("cpu", "memory", "io")
_VM_NAMES = ("pgmajfault", "oom_kill", "pswpin", "pswpout", "pgscan_direct")
_CPU_FIELDS = 8


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since boot (or between two samples) that one CPU, or all (`cpu` = -1), spent in each
    state.
    """

    cpu: int
    user_s: float
    nice_s: float
    system_s: float
    idle_s: float
    iowait_s: float
    irq_s: float
    softirq_s: float
    steal_s: float

    @property
    def busy_s(self) -> float:
        """Seconds that were neither idle nor stolen."""
        return self.user_s + self.nice_s + self.system_s + self.irq_s + self.softirq_s


@dataclass(frozen=True, slots=True)
class PressureStall:
    """Pressure stall totals of one resource, in seconds: `some` task stalled, or all (`full`)."""

    resource: str
    some_s: float
    full_s: float


@dataclass(frozen=True, slots=True)
class VmCounters:
    """Memory event counts of /proc/vmstat since boot; 0 for what the kernel does not count.

    `direct_reclaim_pages`: scanned by tasks that had to free memory themselves before they could go
    on.
    """

    major_faults: int
    oom_kills: int
    swapped_in_pages: int
    swapped_out_pages: int
    direct_reclaim_pages: int


_SPENT = tuple(field.name for field in fields(CpuTimes) if field.name != "cpu")
_EVENTS = tuple(field.name for field in fields(VmCounters))


@dataclass(frozen=True, slots=True)
class CpuClock:
    """Current and highest clock of one CPU."""

    cpu: int
    current_hz: float
    max_hz: float


@dataclass(frozen=True, slots=True)
class HostSample:
    """One reading of the host. `time_s` is CLOCK_MONOTONIC. `missing` says what could not be read,
    and why.
    """

    time_s: float
    total: CpuTimes | None
    cpus: tuple[CpuTimes, ...]
    pressures: tuple[PressureStall, ...]
    vm: VmCounters | None
    load_1m: float | None
    runnable: int | None
    clocks: tuple[CpuClock, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostDelta:
    """Growth between two samples; a counter that went backwards (a CPU replugged, a reset) counts
    as 0.
    """

    seconds: float
    total: CpuTimes | None
    cpus: tuple[CpuTimes, ...]
    pressures: tuple[PressureStall, ...]
    vm: VmCounters | None


def sample_host(root: Path = ROOT, clocks: bool = True) -> HostSample:
    """Read the host's counters. Never raises: what cannot be read is named in `missing`.

    `clocks`: read the clock of each CPU too, two files per CPU.
    """
    missing: list[str] = []
    total, cpus = _read_cpus(root, missing)
    load, runnable = _read_load(root, missing)
    return HostSample(
        time_s=time.monotonic(),
        total=total,
        cpus=cpus,
        pressures=_read_pressures(root, missing),
        vm=_read_vm(root, missing),
        load_1m=load,
        runnable=runnable,
        clocks=_read_clocks(root, missing) if clocks else (),
        missing=tuple(missing),
    )


def host_delta(before: HostSample, after: HostSample) -> HostDelta:
    """Return the growth of every counter that both samples have."""
    earlier = {times.cpu: times for times in before.cpus}
    pressures = {pressure.resource: pressure for pressure in before.pressures}
    return HostDelta(
        seconds=after.time_s - before.time_s,
        total=grown(before.total, after.total, *_SPENT) if before.total and after.total else None,
        cpus=tuple(grown(earlier[times.cpu], times, *_SPENT) for times in after.cpus if times.cpu in earlier),
        pressures=tuple(
            PressureStall(
                now.resource,
                max(0.0, now.some_s - pressures[now.resource].some_s),
                max(0.0, now.full_s - pressures[now.resource].full_s),
            )
            for now in after.pressures
            if now.resource in pressures
        ),
        vm=grown(before.vm, after.vm, *_EVENTS) if before.vm and after.vm else None,
    )


def parse_cpu_times(data: bytes) -> tuple[CpuTimes | None, tuple[CpuTimes, ...]]:
    """Parse /proc/stat to (times of all CPUs together or None, times per CPU). Never raises.

    Columns that the kernel lacks are 0.
    """
    total: CpuTimes | None = None
    cpus = []
    for line in data.split(b"\n"):
        if not line.startswith(b"cpu"):
            continue
        name, *columns = line.split()
        if name != b"cpu" and not name[3:].isdigit():
            continue
        try:
            cpu = number(name[3:]) if name[3:] else -1
            values = [number(column) / TICKS_PER_S for column in columns[:_CPU_FIELDS]]
        except ValueError:
            continue
        if not values:
            continue
        values += [0.0] * (_CPU_FIELDS - len(values))
        times = CpuTimes(cpu, *values)
        if cpu >= 0:
            cpus.append(times)
        else:
            total = times
    return total, tuple(cpus)


def parse_pressure(resource: str, data: bytes) -> PressureStall:
    """Parse one /proc/pressure file; `full` is 0 where the kernel has none. Raises ValueError."""
    totals: dict[bytes, float] = {}
    for line in data.split(b"\n"):
        words = line.split()
        for word in words[1:]:
            if word.startswith(b"total="):
                totals[words[0]] = number(word[6:]) / 1e6
    if b"some" not in totals:
        raise ValueError("no totals")
    return PressureStall(resource, totals[b"some"], totals.get(b"full", 0.0))


def parse_vmstat(data: bytes) -> VmCounters:
    """Parse /proc/vmstat; counters that are absent or unusable are 0. Never raises."""
    values = dict.fromkeys(_VM_NAMES, 0)
    for line in data.split(b"\n"):
        name, _, count = line.partition(b" ")
        key = name.decode("ascii", "replace")
        if key in values:
            with contextlib.suppress(ValueError):
                values[key] = number(count.strip())
    return VmCounters(
        major_faults=values["pgmajfault"],
        oom_kills=values["oom_kill"],
        swapped_in_pages=values["pswpin"],
        swapped_out_pages=values["pswpout"],
        direct_reclaim_pages=values["pgscan_direct"],
    )


def _read_cpus(root: Path, missing: list[str]) -> tuple[CpuTimes | None, tuple[CpuTimes, ...]]:
    """Read (times of all CPUs together, times per CPU); (None, ()) and a line in `missing` if unreadable."""
    try:
        return parse_cpu_times(read_file(proc_path(root, "stat"), 8 << 20))
    except OSError as error:
        missing.append(f"CPU times: {reason(error)}")
        return None, ()


def _read_pressures(root: Path, missing: list[str]) -> tuple[PressureStall, ...]:
    """Read the pressure stall totals of CPU, memory and I/O; a line in `missing` for each that is unreadable."""
    pressures = []
    for resource in PRESSURE_RESOURCES:
        try:
            pressures.append(parse_pressure(resource, read_file(proc_path(root, "pressure", resource), 4096)))
        except (OSError, ValueError) as error:
            # EOPNOTSUPP when built in but switched off (psi=0).
            missing.append(f"{resource} pressure: {reason(error)}")
    return tuple(pressures)


def _read_vm(root: Path, missing: list[str]) -> VmCounters | None:
    """Read the memory event counts; None, and a line in `missing`, where unreadable."""
    try:
        return parse_vmstat(read_file(proc_path(root, "vmstat")))
    except OSError as error:
        missing.append(f"memory events: {reason(error)}")
        return None


def _read_load(root: Path, missing: list[str]) -> tuple[float | None, int | None]:
    """Read (load average of 1 minute, runnable threads); (None, None) and a line in `missing` if unreadable."""
    try:
        words = read_file(proc_path(root, "loadavg"), 4096).split()
        return float(words[0]), int(words[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError) as error:
        missing.append(f"load: {reason(error)}")
        return None, None


def _read_clocks(root: Path, missing: list[str]) -> tuple[CpuClock, ...]:
    """Read the current and highest clock of each CPU that has cpufreq; a line in `missing` where none has."""
    clocks = []
    folder = Path(root) / "sys/devices/system/cpu"
    try:
        found = sorted(folder.glob("cpu[0-9]*/cpufreq"), key=lambda path: int(path.parent.name[3:]))
    except (OSError, ValueError) as error:
        missing.append(f"CPU clocks: {reason(error)}")
        return ()
    for path in found:
        try:
            current = int(read_file(f"{path}/scaling_cur_freq", 64)) * 1e3
            clocks.append(
                CpuClock(int(path.parent.name[3:]), current, int(read_file(f"{path}/cpuinfo_max_freq", 64)) * 1e3)
            )
        except (OSError, ValueError):
            continue
    if not clocks:
        missing.append("CPU clocks: no cpufreq (usual in a virtual machine)")
    return tuple(clocks)
