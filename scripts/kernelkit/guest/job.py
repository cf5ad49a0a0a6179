"""A live job of two ranks, healthy and then with one slow function on rank 1: what `record` and `diagnose` say of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernelkit.guest.verdicts import healthy, slow_function
from kernelkit.lines import Check, encode
from labkit.machine.shell import REPOSITORY

_TRAIN = Path(__file__).resolve().parents[1] / "programs" / "train.py"
_WINDOW_S = 40  # steps take more than a second in emulation
# PyTorch alone takes minutes to import where other work has the CPUs. Then steps take a second.
_STARTED_S, _NEXT_S, _WARM_STEPS = 600.0, 180.0, 3
_COMMAND_S = 240.0  # for one command with its window

Judge = Callable[[Mapping[str, Any]], tuple[bool, str]]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="kernels-job-") as name:
        folder = Path(name)
        with _job(folder) as pids:
            for check, judge, patience_s in (
                ("healthy job", healthy, _STARTED_S),
                ("slow function", slow_function, _NEXT_S),
            ):
                if wrong := _wait_for_steps(folder, pids, patience_s):
                    print(encode(Check(check, False, wrong)), flush=True)
                    continue
                _say(check, judge, folder / check.replace(" ", "-"))
                (folder / "slow").touch()


@contextmanager
def _job(folder: Path) -> Iterator[list[int]]:
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
        yield [process.pid for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()


def _wait_for_steps(folder: Path, pids: Iterable[int], patience_s: float) -> str:
    """Wait for a few more steps. Why not, where there are none, and where the ranks are."""
    first, until = _steps(folder), time.monotonic() + patience_s
    while (made := _steps(folder) - first) < _WARM_STEPS:
        if time.monotonic() > until:
            said = (folder / "log").read_text("utf-8", "replace").strip().splitlines()
            places = "; ".join(_where(pid) for pid in pids)
            return f"the job made {max(made, 0)} steps in {patience_s:.0f} s: {(said or ['no message'])[-1]}; {places}"
        time.sleep(0.5)
    return ""


def _where(pid: int) -> str:
    """State of each thread of a process, its CPU seconds, and the innermost functions of the kernel that it is in."""
    found = []
    for thread in sorted(Path("/proc", str(pid), "task").iterdir()):
        try:
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            frames = [line.split()[-1] for line in (thread / "stack").read_text().splitlines()[:3]]
        except OSError:
            continue
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        found.append(f"{thread.name} {fields[0]} {seconds:.0f} s {' < '.join(frames)}".strip())
    return ", ".join(found)


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
