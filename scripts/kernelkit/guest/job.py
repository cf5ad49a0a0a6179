"""A live job of two ranks, healthy and then with one slow function on rank 1: what `record` and `diagnose` say of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelkit.guest.verdicts import healthy, slow_function
from kernelkit.lines import Check, encode
from labkit.machine.shell import REPOSITORY

_TRAIN = Path(__file__).resolve().parents[1] / "programs" / "train.py"
_WINDOW_S = 40  # steps take more than a second in emulation
_STARTED_S, _WARM_STEPS = 600.0, 3  # PyTorch alone takes minutes to import where other work has the CPUs
_COMMAND_S = 240.0  # for one command with its window

Judge = Callable[[Mapping[str, Any]], tuple[bool, str]]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kernels-job-") as name:
        folder = Path(name)
        with _job(folder):
            if wrong := _wait_for_steps(folder):
                for check in ("healthy job", "slow function"):
                    print(encode(Check(check, False, wrong)), flush=True)
                return
            _say("healthy job", healthy, folder / "healthy")
            (folder / "slow").touch()
            _wait_for_steps(folder)
            _say("slow function", slow_function, folder / "window")


@contextmanager
def _job(folder: Path) -> Iterator[None]:
    about = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29555",
        "OMP_NUM_THREADS": "1",
    }
    ranks = []
    try:
        with (folder / "log").open("w") as log:
            for rank in ("0", "1"):
                environment = os.environ | about | {"RANK": rank, "LOCAL_RANK": rank}
                words = [sys.executable, str(_TRAIN), str(folder)]
                ranks.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))
        yield
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _wait_for_steps(folder: Path) -> str:
    """Wait for a few more steps. Why not, where there are none."""
    first, until = _steps(folder), time.monotonic() + _STARTED_S
    while _steps(folder) < first + _WARM_STEPS:
        if time.monotonic() > until:
            said = (folder / "log").read_text("utf-8", "replace").strip().splitlines()
            return f"the job made no step in {_STARTED_S:.0f} s: {(said or ['no message'])[-1]}"
        time.sleep(0.5)
    return ""


def _steps(folder: Path) -> int:
    try:
        return int((folder / "steps").read_text() or 0)
    except FileNotFoundError:
        return 0


def _say(name: str, judge: Judge, out: Path) -> None:
    began = time.monotonic()
    command = str(REPOSITORY / ".venv/bin/rankscope")
    try:
        recorded = _run([command, "record", "--out", str(out), "--window", str(_WINDOW_S)])
        said = _run([command, "diagnose", str(out), "--json"])
    except subprocess.TimeoutExpired as late:
        print(encode(Check(name, False, f"`rankscope {late.cmd[1]}` did not end in {_COMMAND_S:.0f} s")), flush=True)
        return
    try:
        verdicts = json.loads(said.stdout)
    except ValueError:
        verdicts = None
    if verdicts is None:
        complaint = (said.stderr.strip() or recorded.stderr.strip() or "no message").splitlines()[-1]
        good, words = False, f"no verdict: {complaint}"
    else:
        good, words = judge(verdicts)
    print(encode(Check(name, good, words, round(time.monotonic() - began, 1))), flush=True)


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=_COMMAND_S)


if __name__ == "__main__":
    main()
