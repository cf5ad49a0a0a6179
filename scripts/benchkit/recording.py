"""One `rankscope record` as a bench sees it: when it loaded, observed and ended, and what each part took.

Loading is what the command does until it says "observing": Python and its libraries, the census, the probes, with the compiler where
it runs. Cold is a host on which nothing was compiled yet, neither there nor ahead.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from benchkit.cpu_time import children_cpu_s
from labkit.machine.shell import LabError, rankscope
from rankscope.probes.base import abilities
from rankscope.probes.bpf import cache

_SAID_WHEN_LOADED = "observing"
_ON_FUNCTIONS = ("rs_enter_", "rs_leave_")  # a trap each
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Recording:
    """Moments on CLOCK_MONOTONIC, seconds of CPU of the command and its children."""

    began: float
    window_began: float
    window_s: float
    ended: float
    loading_cpu_s: float
    window_cpu_s: float
    whole_cpu_s: float
    kernel_s: float
    peak_bytes: float
    samples: int
    failed: int
    function_hits: int


def forget_what_was_compiled() -> None:
    """The next start is the first one on this host."""
    shutil.rmtree(Path("/") / cache.FOLDER, ignore_errors=True)


def record(window_s: float, without: str = "") -> Recording:
    """Observe this host for one window, as on one that lacks the abilities that are named. LabError where the command fails."""
    with tempfile.TemporaryDirectory() as folder:
        # A bench is often started where Python writes no bytecode; hosts are not.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment[abilities.VARIABLE] = without
        command = [rankscope(), "record", "--out", folder, "--window", f"{window_s:g}"]
        before, began = children_cpu_s(), time.monotonic()
        running = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
        )
        loading, said = _loading_cpu_s(running)
        ended, whole = time.monotonic(), children_cpu_s() - before
        if running.returncode or loading is None:
            raise LabError(f"rankscope record ended with {running.returncode}: {said.strip()[-300:]}")
        (window,) = (path for path in Path(folder).iterdir() if (path / "window.json").exists())
        manifest = json.loads((window / "window.json").read_text())
        counters = {row["name"]: row["value"] for row in pq.read_table(window / "counters.parquet").to_pylist()}
        ranks = pq.read_table(window / "ranks.parquet").to_pylist()
    return Recording(
        began,
        manifest["start"] - (time.time() - time.monotonic()),
        manifest["seconds"],
        ended,
        loading,
        counters["observer.cpu_s"],
        whole,
        sum(cost["run_time_ns"] for cost in manifest["costs"]) / 1e9,
        counters["observer.peak_bytes"],
        sum(rank["samples"] for rank in ranks),
        sum(rank["failed_samples"] for rank in ranks),
        sum(cost["run_count"] for cost in manifest["costs"] if cost["program"].startswith(_ON_FUNCTIONS)),
    )


def _loading_cpu_s(running: subprocess.Popen[str]) -> tuple[float | None, str]:
    """CPU time when it said that it observes, and all that it said until its end."""
    assert running.stderr is not None
    loading, lines = None, []
    for line in running.stderr:
        lines.append(line)
        if loading is None and line.startswith(_SAID_WHEN_LOADED):
            loading = _cpu_s(running.pid)
    running.wait()
    return loading, "".join(lines)


def _cpu_s(pid: int) -> float:
    """Of the process and its children, of those that have ended too: fields 14 to 17 of /proc/PID/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return sum(int(field) for field in fields[11:15]) / _TICKS_PER_S + sum(_cpu_s(int(child)) for child in children)
