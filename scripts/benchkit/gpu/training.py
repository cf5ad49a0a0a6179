"""A real PyTorch training on the GPU, with and without the observer: what it costs the job, and what the window says of it.

job.py runs throughout, as processes of its own; phases alternate: nobody observes, `rankscope record` observes. The job's
own step times give the slow-down, as the median over pairs of phases of the ratio of their median steps. The last window is
then compared with the job's own account (CUDA events) and with nvidia-smi.

Two ranks on one GPU run over gloo: no collective kernel runs then, the GPU idles while gradients are exchanged, and what is
seen of the GPU counts for both ranks. With `--backend nccl` each tells NCCL that it is a host of its own (launch.py).
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
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
from typing import Any

import pyarrow.parquet as pq

from benchkit.cpu_time import children_cpu_s
from benchkit.gpu import report as gpu_report
from benchkit.gpu.launch import START_S, devices_of_torch, ranks_of, wait_for_lines
from benchkit.gpu.smi import Smi
from labkit.machine.shell import LabError, rankscope

_JOB = Path(__file__).with_name("job.py")


@dataclass(frozen=True, slots=True)
class Phase:
    """One stretch of the job. `since`, `until` by CLOCK_MONOTONIC; `tables` and `manifest` where it was observed."""

    step_s: float
    since: float
    until: float
    cpu_s: float = 0.0  # of the observer's processes, start-up included
    manifest: dict[str, Any] | None = None
    tables: dict[str, list[dict[str, Any]]] | None = None


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--training", action="store_true", help="only the real training, with and without the observer")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: try the mechanics without a GPU"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--backend", choices=("auto", "gloo", "nccl"), default="auto", help="auto: nccl where each rank has a GPU"
    )
    parser.add_argument("--pairs", type=int, default=3, help="of phases, without and with the observer")
    parser.add_argument("--window", type=float, default=10.0, help="length of a phase, seconds")
    parser.add_argument("--step-ms", type=float, default=80.0, help="computing per step, all ranks at it")  # fmt: skip


def cannot(options: argparse.Namespace) -> str:
    """Why there is no training to be had here; '' where there is."""
    try:
        version, devices, torch = devices_of_torch()
    except LabError as error:
        return str(error)
    if options.device == "cuda" and (version == "-" or not devices):
        return f"PyTorch {torch} here has no CUDA" if version == "-" else f"PyTorch {torch} finds no GPU"
    options.gpus = devices
    if options.backend == "auto":
        options.backend = "nccl" if options.device == "cuda" and devices >= options.ranks else "gloo"
    return ""


def run(options: argparse.Namespace) -> int:
    """Print the table; 0 when every rank was found and, on a GPU, has one; 1 otherwise; 69 or 77 where it cannot run."""
    if why := cannot(options):
        print(f"bench: no training on a GPU: {why}", file=sys.stderr)
        return 69
    if os.geteuid() != 0:
        print("bench: the training is observed as root only", file=sys.stderr)
        return 77
    try:
        return _run(options)
    except LabError as error:
        print(f"bench: {error}\n       {error.help}", file=sys.stderr)
        return error.exit_code


def _run(options: argparse.Namespace) -> int:
    phases: list[tuple[Phase, Phase]] = []
    smi = Smi(options.index if _on_one_gpu(options) else 0)
    with tempfile.TemporaryDirectory() as folder, _job(options, Path(folder)) as processes:
        steps = [Path(folder) / f"steps.rank{rank}" for rank in range(options.ranks)]
        wait_for_lines(steps, processes, Path(folder) / "log")
        if options.device == "cuda":
            smi.start()
        try:
            for number in range(options.pairs):
                print(f"pair {number + 1}/{options.pairs} …", file=sys.stderr)
                quiet, observed = _quiet(steps, options.window), _observed(steps, options.window, processes)
                phases.append((quiet, observed))
        finally:
            smi.stop()
        exported = gpu_report.exported_rows(processes[0].pid)
        accounts = [_lines(path) for path in steps]
        pids = [process.pid for process in processes]
    costs = _costs(phases, options)
    last = phases[-1][1]
    assert last.manifest is not None and last.tables is not None
    began = last.manifest["start"]
    report = gpu_report.Report(
        options.device == "cuda",
        options.backend,
        pids,
        last.manifest,
        last.tables,
        gpu_report.account(accounts, last.since, last.until, _device_of(options)),
        smi.means(began, began + last.manifest["seconds"]),
        exported,
    )
    print("\n".join([*costs, *report.lines()]))
    for line in (wrong := report.wrong()):
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def _on_one_gpu(options: argparse.Namespace) -> bool:
    return bool(options.backend == "gloo" or options.ranks == 1 or options.gpus < options.ranks)


def _device_of(options: argparse.Namespace) -> list[int]:
    """The device of each rank, as job.py chooses it."""
    return [0 if _on_one_gpu(options) else rank for rank in range(options.ranks)]


def _job(options: argparse.Namespace, folder: Path) -> contextlib.AbstractContextManager[list[subprocess.Popen[bytes]]]:
    seconds = START_S + options.pairs * (2 * options.window + 60)
    words = ["--file", folder / "steps", "--seconds", f"{seconds:g}", "--step-ms", f"{options.step_ms:g}",
             "--backend", options.backend, "--device", options.device]  # fmt: skip
    shared = options.backend == "nccl" and options.ranks > 1 and _on_one_gpu(options)
    gpu = options.index if options.device == "cuda" and _on_one_gpu(options) else None
    return ranks_of(_JOB, words, options.ranks, folder / "log", gpu, shared)


def _lines(path: Path) -> list[tuple[float, ...]]:
    """Whole lines of a rank's account."""
    text = path.read_text()
    return [tuple(float(word) for word in line.split()) for line in text[: text.rfind("\n") + 1].splitlines()]


def _step_s(paths: Sequence[Path], since: float, until: float) -> float:
    """Median over all ranks of the time from one step's beginning to the next one's, of steps wholly in the interval."""
    spans = []
    for path in paths:
        begun = [line[0] for line in _lines(path) if since <= line[0] < until]
        spans += [later - earlier for earlier, later in itertools.pairwise(begun)]
    if len(spans) < 5:
        raise LabError(f"the job made {len(spans)} steps in a phase", "Longer phases: --window.")
    return statistics.median(spans)


def _quiet(paths: Sequence[Path], window_s: float) -> Phase:
    since = time.monotonic()
    time.sleep(window_s)
    until = time.monotonic()
    return Phase(_step_s(paths, since, until), since, until)


def _observed(paths: Sequence[Path], window_s: float, processes: Sequence[subprocess.Popen[bytes]]) -> Phase:
    before = children_cpu_s()
    with tempfile.TemporaryDirectory() as folder:
        command = [rankscope(), "record", "--out", folder, "--window", f"{window_s:g}"]
        for process in processes:
            command += ["--pid", str(process.pid)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"rankscope record ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        cpu_s = children_cpu_s() - before
        (window,) = (path for path in Path(folder).iterdir() if (path / "window.json").exists())
        manifest = json.loads((window / "window.json").read_text())
        names = ("ranks", "steps", "patterns", "collectives", "counters")
        tables = {name: pq.read_table(window / f"{name}.parquet").to_pylist() for name in names}
    since = manifest["start"] - (time.time() - time.monotonic())
    until = since + manifest["seconds"]
    return Phase(_step_s(paths, since, until), since, until, cpu_s, manifest, tables)


def _costs(phases: Sequence[tuple[Phase, Phase]], options: argparse.Namespace) -> list[str]:
    ratios = sorted(observed.step_s / quiet.step_s for quiet, observed in phases)
    shares, whole, kernel = [], [], []
    for _, observed in phases:
        assert observed.manifest is not None and observed.tables is not None
        seconds = observed.manifest["seconds"] * options.ranks
        own = sum(row["value"] for row in observed.tables["counters"] if row["name"] == "observer.cpu_s")
        shares.append(own / seconds)
        whole.append(observed.cpu_s / seconds)
        kernel.append(sum(cost["run_time_ns"] for cost in observed.manifest["costs"]) / 1e9 / seconds)
    quiet_ms = 1e3 * statistics.median(quiet.step_s for quiet, _ in phases)
    return [
        f"training: {options.ranks} ranks over {options.backend} on {options.device}, step {quiet_ms:.1f} ms, "
        f"{len(phases)} pairs of phases of {options.window:g} s, {time.strftime('%Y-%m-%d')}",
        f"slow-down of the job              {100 * (statistics.median(ratios) - 1):+.2f} %  "
        f"(pairs: {', '.join(f'{100 * (ratio - 1):+.2f}' for ratio in ratios)})",
        f"the observer, window              {100 * statistics.median(shares):.2f} % of a core per rank "
        f"(start-up included {100 * statistics.median(whole):.2f} %)",
        f"in the kernel                     {100 * statistics.median(kernel):.2f} % of a core per rank",
    ]
