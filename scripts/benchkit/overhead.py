"""What observing costs: in the kernel, in the observer, and to the job; with py-spy at the same rate beside it.

One healthy job of the lab runs throughout. Rounds alternate: nobody observes, Rankscope observes, py-spy observes. The
job's own step times (written by the job, not by us) give the slow-down, as the median over rounds of the ratio between
a round with an observer and the round without one before it. In-kernel time is the kernel's own account per BPF program.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from benchkit.cpu_time import children_cpu_s
from labkit.launch import Job, Plan
from labkit.machine.shell import LabError, rankscope, set_up
from rankscope.diagnose.cli.output import progress

TARGETS = {
    "kernel": ("in the kernel, % of a core per rank", 0.5),
    "observer": ("the observer while observing, % of a core per rank", 2.0),
    "peak": ("the observer's peak memory, MB", 300.0),
    "slowdown": ("slow-down of the job, %", 1.0),
}


@dataclass(frozen=True, slots=True)
class Round:
    """One stretch of the job under one observer."""

    observer: str
    step_s: float
    own_cpu_s: float  # CPU seconds of the observer's process and its children, start-up included
    window_cpu_s: float  # of these, while the window ran; nan where not told apart
    kernel_s: float
    peak_bytes: float
    window_s: float
    samples: int
    failed: int


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window", type=float, default=10.0)
    parser.add_argument("--json", type=Path)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 when every target is met."""
    set_up(torch=True)
    rounds: list[Round] = []
    with Job(Plan(options.ranks, options.hosts, 0), 1) as job:
        job.wait_until_healthy()
        time.sleep(2)
        with progress() as say:
            for number in range(options.rounds):
                for observer in ("nobody", "rankscope", "py-spy"):
                    say(f"round {number + 1}/{options.rounds}: {observer} …")
                    rounds.append(_round(job, observer, options.window))
    table = _summary(rounds, options.ranks)
    print("\n".join(_lines(table, rounds, options)))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))
    return 0 if all(table[name] <= limit for name, (_, limit) in TARGETS.items()) else 1


def _round(job: Job, observer: str, window_s: float) -> Round:
    job.check_alive()
    if observer == "nobody":
        since = time.monotonic()
        time.sleep(window_s)
        return Round(observer, _pace(job, since, time.monotonic()), 0.0, 0.0, 0.0, 0.0, window_s, 0, 0)
    if observer == "rankscope":
        return _rankscope(job, window_s)
    return _pyspy(job, window_s)


def _pace(job: Job, since: float, until: float) -> float:
    pace = job.pace(since, until)
    if pace is None:
        raise LabError("the job made no step in a round")
    return pace.step_s


def _rankscope(job: Job, window_s: float) -> Round:
    with tempfile.TemporaryDirectory() as folder:
        before = children_cpu_s()
        command = [rankscope(), "record", "--out", folder, "--window", f"{window_s:g}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"rankscope record ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        own = children_cpu_s() - before
        (window,) = (path for path in Path(folder).iterdir() if (path / "window.json").exists())
        manifest = json.loads((window / "window.json").read_text())
        counters = {row["name"]: row["value"] for row in pq.read_table(window / "counters.parquet").to_pylist()}
        ranks = pq.read_table(window / "ranks.parquet").to_pylist()
    # The window's wall time, on the clock that the job stamps its steps with.
    offset = time.time() - time.monotonic()
    since = manifest["start"] - offset
    return Round(
        "rankscope",
        _pace(job, since, since + manifest["seconds"]),
        own,
        counters["observer.cpu_s"],
        sum(cost["run_time_ns"] for cost in manifest["costs"]) / 1e9,
        counters["observer.peak_bytes"],
        manifest["seconds"],
        sum(rank["samples"] for rank in ranks),
        sum(rank["failed_samples"] for rank in ranks),
    )


def _pyspy(job: Job, window_s: float) -> Round:
    before, since = children_cpu_s(), time.monotonic()
    pyspy = Path(sys.executable).with_name("py-spy")
    with tempfile.TemporaryDirectory() as folder:
        running = [
            subprocess.Popen(
                [
                    pyspy, "record", "--nonblocking", "--threads", "-r", "99", "-d", f"{window_s:g}", "-f", "raw",
                    "-o", f"{folder}/{process.pid}", "-p", str(process.pid),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for process in job.processes
        ]  # fmt: skip
        for process in running:
            process.wait()
        samples = 0
        for path in Path(folder).iterdir():
            samples += sum(int(line.rpartition(" ")[2]) for line in path.read_text().splitlines())
    own = children_cpu_s() - before
    return Round("py-spy", _pace(job, since + 0.5, since + window_s), own, own, 0.0, 0.0, window_s, samples, 0)


def _summary(rounds: Sequence[Round], ranks: int) -> dict[str, float]:
    def median(observer: str, value: str) -> float:
        return float(statistics.median(getattr(r, value) for r in rounds if r.observer == observer))

    def share(observer: str, value: str) -> float:
        chosen = [r for r in rounds if r.observer == observer]
        return float(100 * statistics.median(getattr(r, value) / r.window_s / ranks for r in chosen))

    def slowdown(observer: str) -> float:
        ratios = []
        quiet = None
        for r in rounds:
            if r.observer == "nobody":
                quiet = r.step_s
            elif r.observer == observer and quiet:
                ratios.append(r.step_s / quiet)
        return 100 * (statistics.median(ratios) - 1)

    return {
        "kernel": share("rankscope", "kernel_s"),
        "observer": share("rankscope", "window_cpu_s"),
        "observer_whole": share("rankscope", "own_cpu_s"),
        "peak": median("rankscope", "peak_bytes") / 1e6,
        "slowdown": slowdown("rankscope"),
        "pyspy_observer": share("py-spy", "own_cpu_s"),
        "pyspy_slowdown": slowdown("py-spy"),
        "samples": median("rankscope", "samples"),
        "failed": median("rankscope", "failed"),
        "pyspy_samples": median("py-spy", "samples"),
        "step_ms": 1e3 * median("nobody", "step_s"),
    }


def _lines(table: dict[str, float], rounds: Sequence[Round], options: argparse.Namespace) -> list[str]:
    lines = [
        f"{options.ranks} ranks on {os.cpu_count()} cores, step {table['step_ms']:.0f} ms, {options.rounds} rounds "
        f"of {options.window:g} s, 99 Hz",
        "",
        f"{'':<52}{'measured':>10}{'target':>8}  py-spy",
    ]
    beside = {"observer": f"{table['pyspy_observer']:.2f}", "slowdown": f"{table['pyspy_slowdown']:.2f}"}
    for name, (words, limit) in TARGETS.items():
        met = "" if table[name] <= limit else "  MISSED"
        lines.append(f"{words:<52}{table[name]:>10.2f}{limit:>8g}  {beside.get(name, '')}{met}")
    lines += [
        f"{'the observer, start-up included, % of a core per rank':<52}{table['observer_whole']:>9.2f}",
        f"{'stacks of running threads taken / not walked':<52}{table['samples']:>10.0f} / {table['failed']:.0f}",
    ]
    return lines
