"""What observing costs: in the kernel, in the observer, and to the job; with py-spy at the same rate beside it.

One healthy job of the lab runs throughout. Rounds alternate: nobody observes, Rankscope observes, py-spy observes, and Rankscope
again as on a host where it has to compile its programs, with the shortest window. The job's own step times (written by the job,
not by us) give the slow-down, as the median over rounds of the ratio between a round with an observer and the round without one before it;
over the whole command, from its start to its end, as the mean of these ratios with its 95 % interval. In-kernel time is the
kernel's own account per BPF program.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy import stats

from benchkit import recording
from benchkit.cpu_time import children_cpu_s
from labkit.launch import Job, Plan
from labkit.machine.shell import LabError, set_up
from rankscope.diagnose.face.cli.output import progress
from rankscope.probes.base import abilities

_SHORTEST_WINDOW_S = 1.0
OBSERVERS = ("nobody", "rankscope", "py-spy", "rankscope, cold")
TARGETS = {
    "together": ("in the kernel and the observer, % of a core per rank", 0.25),
    "peak": ("the observer's peak memory, MB", 300.0),
    "slowdown": ("slow-down of the job, %", 1.0),
    "loading": ("the command until it observes, s of CPU", 1.0),
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
    loading_cpu_s: float = 0.0  # CPU seconds until the window could begin
    whole_step_s: float = 0.0  # the job's steps from the observer's start to its end

    @property
    def together_s(self) -> float:
        """CPU seconds of the kernel's programs and of the observer while the window ran."""
        return self.kernel_s + self.window_cpu_s


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
                for observer in OBSERVERS:
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
    if observer == "py-spy":
        return _pyspy(job, window_s)
    if observer == "rankscope":
        return _rankscope(job, observer, window_s)
    recording.forget_what_was_compiled()
    return _rankscope(job, observer, _SHORTEST_WINDOW_S, abilities.COMPILED_AHEAD)


def _pace(job: Job, since: float, until: float) -> float:
    pace = job.pace(since, until)
    if pace is None:
        raise LabError("the job made no step in a round")
    return pace.step_s


def _rankscope(job: Job, observer: str, window_s: float, without: str = "") -> Round:
    done = recording.record(window_s, without)
    return Round(
        observer,
        _pace(job, done.window_began, done.window_began + done.window_s),
        done.whole_cpu_s,
        done.window_cpu_s,
        done.kernel_s,
        done.peak_bytes,
        done.window_s,
        done.samples,
        done.failed,
        done.loading_cpu_s,
        _pace(job, done.began, done.ended),
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

    return {
        "kernel": share("rankscope", "kernel_s"),
        "observer": share("rankscope", "window_cpu_s"),
        "together": share("rankscope", "together_s"),
        "observer_whole": share("rankscope", "own_cpu_s"),
        "peak": median("rankscope", "peak_bytes") / 1e6,
        "slowdown": _slowdown(rounds, "rankscope"),
        "loading": median("rankscope", "loading_cpu_s"),
        "loading_worst": max(r.loading_cpu_s for r in rounds if r.observer == "rankscope"),
        "loading_cold": median("rankscope, cold", "loading_cpu_s"),
        **_whole(rounds, "rankscope", "whole"),
        **_whole(rounds, "rankscope, cold", "whole_cold"),
        "pyspy_observer": share("py-spy", "own_cpu_s"),
        "pyspy_slowdown": _slowdown(rounds, "py-spy"),
        "samples": median("rankscope", "samples"),
        "failed": median("rankscope", "failed"),
        "pyspy_samples": median("py-spy", "samples"),
        "step_ms": 1e3 * median("nobody", "step_s"),
    }


def _ratios(rounds: Sequence[Round], observer: str, value: str) -> list[float]:
    """Step time of each round with this observer over that of the round with nobody before it."""
    ratios, quiet_s = [], None
    for r in rounds:
        if r.observer == "nobody":
            quiet_s = r.step_s
        elif r.observer == observer and quiet_s:
            ratios.append(getattr(r, value) / quiet_s)
    return ratios


def _slowdown(rounds: Sequence[Round], observer: str) -> float:
    return 100 * (statistics.median(_ratios(rounds, observer, "step_s")) - 1)


def _whole(rounds: Sequence[Round], observer: str, name: str) -> dict[str, float]:
    """Slow-down over the whole command, %: mean over rounds, with the 95 % interval of Student's t."""
    percent = [100 * (ratio - 1) for ratio in _ratios(rounds, observer, "whole_step_s")]
    mean, half = statistics.fmean(percent), math.nan
    if len(percent) > 1:
        half = float(stats.t.ppf(0.975, len(percent) - 1)) * statistics.stdev(percent) / math.sqrt(len(percent))
    return {name: mean, f"{name}_low": mean - half, f"{name}_high": mean + half}


def _lines(table: dict[str, float], rounds: Sequence[Round], options: argparse.Namespace) -> list[str]:
    lines = [
        f"{options.ranks} ranks on {os.cpu_count()} cores, step {table['step_ms']:.0f} ms, {options.rounds} rounds "
        f"of {options.window:g} s, 99 Hz",
        "",
        f"{'':<52}{'measured':>10}{'target':>8}  py-spy",
    ]
    beside = {"together": f"{table['pyspy_observer']:.2f}", "slowdown": f"{table['pyspy_slowdown']:.2f}"}
    for name, (words, limit) in TARGETS.items():
        met = "" if table[name] <= limit else "  MISSED"
        lines.append(f"{words:<52}{table[name]:>10.2f}{limit:>8g}  {beside.get(name, '')}{met}")
    parts = f"{table['kernel']:>10.2f} / {table['observer']:.2f}"
    lines.insert(4, f"{'  of these in the kernel / the observer':<52}{parts}")
    for words, name in (
        ("slow-down over the whole command, %", "whole"),
        (f"the same when it compiles, window of {_SHORTEST_WINDOW_S:g} s, %", "whole_cold"),
    ):
        lines.append(
            f"{words:<52}{table[name]:>10.2f}{'':>8}  95 %: {table[name + '_low']:.2f} to {table[name + '_high']:.2f}"
        )
    lines += [
        f"{'  of these the worst round / where it compiles':<52}{table['loading_worst']:>10.2f} / {table['loading_cold']:.2f}",
        f"{'the observer, start-up included, % of a core per rank':<52}{table['observer_whole']:>9.2f}",
        f"{'stacks of running threads taken / not walked':<52}{table['samples']:>10.0f} / {table['failed']:.0f}",
    ]
    return lines
