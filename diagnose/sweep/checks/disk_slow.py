"""Disks answer in time.

Reads /proc/diskstats: the mean time per request since the last sweep, for disks with at least `requests` of them. Above `warning_ms`
(ten times that for rotating disks) a disk keeps data loaders and checkpoints waiting. It says nothing of idle disks. Never
critical: any user's program can load a disk; a disk that fails is disk.errors'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.host.disks import sample_disks

ID = "disk.slow"
SETTINGS = {"warning_ms": 100.0, "requests": 100.0}
_VIRTUAL = re.compile(r"(?:loop|ram|zram|dm-|md|sr|fd|nbd|rbd|ublkb)\d*")


def run(context: Context) -> Iterator[Finding]:
    """Yield each disk's mean time per request since the last sweep: a warning above its limit, else ok.

    Raises NotApplicable without disks.
    """
    sample = sample_disks(context.root)
    disks = [
        disk
        for disk in sample.disks
        if not _VIRTUAL.match(disk.device) and not context.path("sys/class/block", disk.device, "partition").exists()
    ]
    if not disks:
        raise NotApplicable("; ".join(sample.missing) or "no disk")
    for disk in disks:
        requests = context.grown(f"{disk.device}.requests", disk.reads + disk.writes).amount
        seconds = context.grown(f"{disk.device}.seconds", disk.read_s + disk.write_s).amount
        rotating = context.text("sys/block", disk.device, "queue/rotational") == "1"
        factor = 10.0 if rotating else 1.0
        mean_ms = round(1e3 * seconds / requests, 2) if requests >= context.number("requests") else 0.0
        yield context.judged(
            mean_ms, context.number("warning_ms") * factor, float("inf"), "/proc/diskstats",
            unit="ms", instance=disk.device, what="mean time per request", why=f"{requests:.0f} requests took this long",
            action="See who loads it (iotop); check the device (smartctl, nvme smart-log).",
        )  # fmt: skip
