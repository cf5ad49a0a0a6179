"""What `rankscope watch` costs beside a job that is well: CPU, memory, time in its probes, false alarms.

One healthy job of the lab; the service beside it. Its CPU and memory are read from /proc while nothing happens, from when it knows the
steps; the kernel's account of its programs from its own metrics. What the traps of its probes cost the ranks is not in that account: it is
said beside it, two traps per call of the marker at `--trap` microseconds each (10 in a nested virtual machine, 1-2 on bare metal).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.hangs.service import Service
from labkit.launch import Job, Plan
from labkit.machine.shell import set_up

TARGET_SHARE = 0.0005  # of a core and rank, at 5 steps a second
TARGET_BYTES = 100e6
_METRICS_S = 15.0  # as often as the service writes them
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """The service at one moment."""

    at_s: float
    cpu_s: float
    probe_s: float
    steps: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Over the stretch that was measured; shares are of one core and rank."""

    ranks: int
    seconds: float
    steps_hz: float
    service_share: float
    probe_share: float
    trap_share: float
    resident_bytes: int
    peak_bytes: int
    alarms: int


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--trap", type=float, default=10.0, help="what a uprobe costs here, microseconds")
    parser.add_argument("--json", type=Path)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 where the targets are met at the steps a second that the job makes."""
    set_up(torch=True)
    with (
        tempfile.TemporaryDirectory(prefix="rankscope-bench-") as folder,
        Job(Plan(options.ranks, options.hosts, 0), 1) as job,
    ):
        job.wait_until_healthy()
        cost = _beside(job.name, Path(folder), options)
        job.check_alive()
    at_five = 5.0 / cost.steps_hz
    total = cost.service_share + (cost.probe_share + cost.trap_share) * at_five
    print(f"{cost.ranks} ranks, {cost.steps_hz:.2f} steps a second, {cost.seconds:.0f} s; % of a core per rank")
    print(f"{'service':34}{100 * cost.service_share:8.4f}")
    print(f"{'its programs in the kernel':34}{100 * cost.probe_share:8.4f}")
    print(f"{'traps of its probes (counted)':34}{100 * cost.trap_share:8.4f}")
    print(f"{'all, at 5 steps a second':34}{100 * total:8.4f}   target {100 * TARGET_SHARE:.2f}")
    print(
        f"{'memory, MB (peak)':34}{cost.resident_bytes / 1e6:8.1f} ({cost.peak_bytes / 1e6:.1f})   target {TARGET_BYTES / 1e6:.0f}"
    )
    print(f"{'alarms':34}{cost.alarms:8}")
    if options.json:
        options.json.write_text(json.dumps(asdict(cost), indent=1))
    return 0 if total <= TARGET_SHARE and cost.resident_bytes <= TARGET_BYTES and not cost.alarms else 1


def _beside(job: str, folder: Path, options: argparse.Namespace) -> Cost:
    metrics = folder / "watch.prom"
    with Service(folder / "service", job, "--metrics", str(metrics)) as service:
        service.wait_until_it_knows_the_step()
        time.sleep(_METRICS_S)
        before = _reading(service.pid, metrics)
        time.sleep(options.seconds)
        after = _reading(service.pid, metrics)
        status = Path(f"/proc/{service.pid}/status").read_text(encoding="ascii")
        resident, peak = (int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        alarms = sum(event["kind"] == "alarm" for event in service.events())
    seconds = after.at_s - before.at_s
    steps_hz = (after.steps - before.steps) / seconds
    share = 1 / seconds / options.ranks
    return Cost(
        options.ranks,
        seconds,
        steps_hz,
        (after.cpu_s - before.cpu_s) * share,
        (after.probe_s - before.probe_s) * share,
        2 * steps_hz * options.trap / 1e6,
        resident,
        peak,
        alarms,
    )


def _reading(pid: int, metrics: Path) -> Reading:
    """Just after the service wrote its metrics, so that both belong to one moment."""
    written = metrics.stat().st_mtime_ns
    while metrics.stat().st_mtime_ns == written:
        time.sleep(0.02)
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    text = metrics.read_text(encoding="utf-8")
    (probe_s,) = re.findall(r"^rankscope_watch_probe_seconds_total (\S+)$", text, re.MULTILINE)
    (steps,) = re.findall(r"^rankscope_job_steps_total\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return Reading(time.monotonic(), (int(fields[11]) + int(fields[12])) / _TICKS, float(probe_s), float(steps))
