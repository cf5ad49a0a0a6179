"""Sample block devices: bytes, operations and busy time of each.

In: /proc/diskstats (Documentation/admin-guide/iostats.rst). Out: DiskCounters since boot, and their
growth.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.base.growth import grown
from rankscope.probes.host.procfs import ROOT, number, proc_path, read_file, reason

_COUNTERS = ("reads", "read_bytes", "read_s", "writes", "write_bytes", "write_s", "busy_s", "weighted_s")
SECTOR_BYTES = 512  # of /proc/diskstats, whatever the device's own sector size


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """Counters of one device. `busy_s`: at least one request in flight; `read_s`/`write_s` add up
    over requests.
    """

    device: str
    major: int
    minor: int
    reads: int
    read_bytes: int
    read_s: float
    writes: int
    write_bytes: int
    write_s: float
    in_flight: int
    busy_s: float
    weighted_s: float


@dataclass(frozen=True, slots=True)
class DiskSample:
    """Counters of all devices at `time_s` (CLOCK_MONOTONIC)."""

    time_s: float
    disks: tuple[DiskCounters, ...]
    missing: tuple[str, ...]


def sample_disks(root: Path = ROOT) -> DiskSample:
    """Read the counters of all block devices. Never raises."""
    try:
        disks = parse_diskstats(read_file(proc_path(root, "diskstats"), 8 << 20))
        return DiskSample(time.monotonic(), disks, ())
    except OSError as error:
        return DiskSample(time.monotonic(), (), (f"block devices: {reason(error)}",))


def disk_deltas(before: DiskSample, after: DiskSample) -> tuple[DiskCounters, ...]:
    """Return the growth per device that both samples have; a counter that fell counts as 0.

    `in_flight` is the later level.
    """
    earlier = {(disk.major, disk.minor, disk.device): disk for disk in before.disks}
    deltas = []
    for now in after.disks:
        then = earlier.get((now.major, now.minor, now.device))
        if then is None:
            continue
        deltas.append(grown(then, now, *_COUNTERS))
    return tuple(deltas)


def parse_diskstats(data: bytes) -> tuple[DiskCounters, ...]:
    """Parse /proc/diskstats; devices that were never used (most loop and ram devices) are left out.

    Never raises.
    """
    disks = []
    for line in data.split(b"\n"):
        words = line.split()
        if len(words) < 14:
            continue
        try:
            numbers = [number(word) for word in words[3:14]]
            major, minor = number(words[0]), number(words[1])
        except ValueError:
            continue
        reads, _, read_sectors, read_ms, writes, _, write_sectors, write_ms, in_flight, busy_ms, weighted_ms = numbers
        if not any(numbers):
            continue
        disks.append(
            DiskCounters(
                device=words[2].decode("utf-8", "replace"),
                major=major,
                minor=minor,
                reads=reads,
                read_bytes=read_sectors * SECTOR_BYTES,
                read_s=read_ms / 1e3,
                writes=writes,
                write_bytes=write_sectors * SECTOR_BYTES,
                write_s=write_ms / 1e3,
                in_flight=in_flight,
                busy_s=busy_ms / 1e3,
                weighted_s=weighted_ms / 1e3,
            )
        )
    return tuple(disks)
