"""A real training on a real GPU with real faults: is the culprit named? One job, whose faults are switched on and off.

It runs as `--ranks` processes over NCCL, on one GPU where there are not as many (launch.py). For each case
`rankscope diagnose` looks at it once, as an operator would who types that, and its first suspect is held against the truth.
`--out DIR` keeps the windows and what was said.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchkit.gpu.launch import devices_of_torch, names_of_gpus, ranks_of, wait_for_lines
from benchkit.gpu.programs import PROGRAMS, Case, Program
from labkit.faults.base import Truth
from labkit.machine.shell import LabError, python, rankscope
from labkit.result_file import plain
from labkit.verdicts import FIRST, BadVerdict, parse, score

_STRANGER = """
import torch
values = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
while True:
    for _ in range(16):
        values @ values
    torch.cuda.synchronize()
"""
_SETTLE_S = 2.0
# After a change, steps that are over before others count: batches that were made before it are used up.
_SETTLE_STEPS, _STEPS, _PATIENCE_S = 4, 20, 20.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", action="store_true", help="only a real training with faults: is the culprit named?")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="KIND",
        help="; ".join(f"of {name}: {', '.join(_kinds(program))}" for name, program in PROGRAMS.items()),
    )
    parser.add_argument("--program", choices=PROGRAMS, default="frames", help="the training of --faults")
    parser.add_argument("--seed", type=int, default=1, help="of --faults: whom they hit, and how hard")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="keep the windows of --faults, and what was said of them"
    )


def _kinds(program: Program) -> list[str]:
    return [case.kind for case in program.cases(0, 1)]


def run(options: argparse.Namespace) -> int:
    """Print a line per case; 0 when each was named first, 1 otherwise; 69 or 77 where it cannot run."""
    try:
        cuda, gpus, _ = devices_of_torch()
        if options.device == "cuda" and (cuda == "-" or not gpus):
            raise LabError("no training on a GPU: PyTorch here has no CUDA, or finds no GPU")
        if os.geteuid() != 0:
            raise LabError("the training is observed as root only", exit_code=77)
        with tempfile.TemporaryDirectory() as folder:
            kept = options.out or Path(folder) / "kept"
            kept.mkdir(parents=True, exist_ok=True)
            return _run(options, gpus, Path(folder), kept)
    except LabError as error:
        print(f"bench: {error}\n       {error.help}", file=sys.stderr)
        return error.exit_code


def _run(options: argparse.Namespace, gpus: int, folder: Path, kept: Path) -> int:
    shared = gpus < options.ranks
    card = names_of_gpus()[options.index] if options.device == "cuda" else "none"
    backend = "gloo" if "gloo" in options.backend or options.device == "cpu" else "nccl"
    file = folder / "steps"
    accounts = [folder / f"steps.rank{rank}" for rank in range(options.ranks)]
    program = PROGRAMS[options.program]
    size = program.batch[options.device == "cpu"]
    words: list[str | Path] = ["--file", file, "--backend", backend, "--batch", size]
    script = Path(__file__).with_name(program.script)
    right = 0
    cases = program.cases(options.seed, options.ranks)
    wanted = [case for case in cases if not options.only or case.kind in options.only]
    gpu = options.index if shared else None
    with ranks_of(script, words, options.ranks, folder / "log", gpu, shared and backend == "nccl") as processes:
        wait_for_lines(accounts, processes, folder / "log")
        pids = [process.pid for process in processes]
        changed_s = 0.0
        for case in wanted:
            time.sleep(_SETTLE_S)
            healthy_s = _step_s(accounts, changed_s)
            changed_s = time.monotonic()
            with _done(case, file, healthy_s, pids, options):
                time.sleep(_SETTLE_S)
                place = kept / f"{case.kind}-{options.seed}"
                outcome, said = _diagnosed(place, options.window, case.truth, pids)
                during_s = None if case.truth.status == "hang" else _step_s(accounts, changed_s)
            changed_s = time.monotonic()
            step = f"{1e3 * healthy_s:.1f} → {'none' if during_s is None else f'{1e3 * during_s:.1f}'} ms"
            print(f"{case.kind:10}step {step:20}{outcome:9}{said}", flush=True)
            told = {"card": card, "job": f"{options.program} on {card}", "ranks": options.ranks, "seed": options.seed, "fault": case.kind,
                    "truth": plain(case.truth), "healthy_s": healthy_s, "during_s": during_s, "outcome": outcome}  # fmt: skip
            (place / "result.json").write_text(json.dumps({"case": told}))
            right += outcome == FIRST
    print(
        f"{right} of {len(wanted)} named first; {options.ranks} ranks over {backend} on {gpus} GPU{'s' if gpus > 1 else ''}"
    )
    return 0 if right == len(wanted) else 1


def _step_s(accounts: Sequence[Path], since_s: float) -> float:
    """Median of the last steps of all ranks, of those that began after an instant of CLOCK_MONOTONIC and some more steps."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        begun = [[at for at in _begun_s(path) if at > since_s][_SETTLE_STEPS:] for path in accounts]
        if all(len(each) > _SETTLE_STEPS for each in begun):
            return statistics.median(b - a for each in begun for a, b in itertools.pairwise(each[-_STEPS:]))
        if time.monotonic() > until:
            raise LabError("the training job stands still without a fault")
        time.sleep(0.2)


def _begun_s(account: Path) -> list[float]:
    text = account.read_text()
    return [float(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@contextmanager
def _done(case: Case, file: Path, step_s: float, pids: Sequence[int], options: argparse.Namespace) -> Iterator[None]:
    """The fault, for as long as it is looked at."""
    switch = Path(f"{file}.fault")
    undo: Callable[[], object] = lambda: switch.write_text("")  # noqa: E731
    if case.kind == "stopped":
        os.kill(pids[case.rank], signal.SIGSTOP)
        undo = lambda: os.kill(pids[case.rank], signal.SIGCONT)  # noqa: E731
    elif case.kind == "exited":
        os.kill(pids[case.rank], signal.SIGKILL)
    elif case.kind == "stranger":
        undo = _stranger(options.index)
    elif case.rank >= 0:
        switch.write_text(f"{case.rank} {case.kind} {case.share * step_s:.6f}")
    try:
        yield
    finally:
        undo()


def _stranger(gpu: int) -> Callable[[], object]:
    environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(gpu)}
    process = subprocess.Popen([python(), "-I", "-c", _STRANGER], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()

    def stop() -> None:
        process.kill()
        process.wait()

    return stop


def _diagnosed(kept: Path, window_s: float, truth: Truth, pids: Sequence[int]) -> tuple[str, str]:
    """How it ended, and what was said first; kept/window, verdict.json and said.txt."""
    kept.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [rankscope(), "diagnose", "--json", "--no-history", "--out", kept / "window"]
    command += ["--window", f"{window_s:g}", "--at-most", f"{2 * window_s:g}"]
    for pid in pids:
        command += ["--pid", str(pid)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    (kept / "verdict.json").write_text(done.stdout)
    (kept / "said.txt").write_text(f"exit {done.returncode}, {seconds:.1f} s\n{done.stderr}")
    try:
        verdict = parse(done.stdout)
    except BadVerdict as error:
        return "failed", f"exit {done.returncode}: {error}; {done.stderr.strip()[-200:]}"
    said = "; ".join(map(str, verdict.suspects)) or verdict.status
    return score(verdict, truth), f"{said} [{seconds:.0f} s]"
