"""The lab's GPU job without the lab's networks, on the emulated GPU machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from labkit.gpu import step_times as account
from labkit.gpu.sim.sim import Machine
from rankscope.observer.window.folder import Window, find_windows, read_window

REPOSITORY = Path(__file__).resolve().parents[2]

PER_HOST = 4
JOB, ORDERS = REPOSITORY / "scripts/labkit/gpu/job.py", REPOSITORY / "scripts/labkit/training"  # control.py


class PlainJob:
    """The lab's GPU job without the lab's networks: ranks on this host, four GPUs to a pod."""

    def __init__(self, folder: Path, ranks: int, arguments: Sequence[str], sample_bytes: int = 4 << 20) -> None:
        self.folder, self.ranks, self.arguments, self.sample_bytes = folder, ranks, arguments, sample_bytes
        self.machine = Machine(folder / "machine", gpus=8, per_host=PER_HOST)
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> PlainJob:
        self.machine.start()
        for number in range(3):
            data = zlib.compress(os.urandom(self.sample_bytes // 4) + bytes(self.sample_bytes * 3 // 4), 1)
            (self.folder / f"sample-{number}.z").write_bytes(data)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in range(self.ranks):
            names = {
                "RANK": rank, "WORLD_SIZE": self.ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": self.ranks, "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "PYTHONPATH": ORDERS,
            }  # fmt: skip
            words = [sys.executable, str(JOB), "--dir", str(self.folder), "--data", str(self.folder), *self.arguments]
            environment = {name: str(value) for name, value in names.items()} | self.machine.job_environment(rank)
            with (self.folder / f"rank{rank}.log").open("wb") as log:
                self.processes.append(subprocess.Popen(words, stdout=log, stderr=log, env=os.environ | environment))
        deadline = time.monotonic() + 60
        while min(len(self.steps(rank)) for rank in range(self.ranks)) < 3:
            assert all(process.poll() is None for process in self.processes), (self.folder / "rank0.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return self

    def steps(self, rank: int) -> list[account.Step]:
        return account.read(self.folder / f"rank{rank}.steps")

    def slow_python(self, rank: int, seconds: float) -> None:
        order = {"function": "prepare", "manner": "busy", "seconds": seconds}
        (self.folder / f"rank{rank}.control").write_text(json.dumps(order))

    def heal(self) -> None:
        for path in self.folder.glob("*.control"):
            path.unlink()
        for index in range(8):
            self.machine.gpu(index).set(speed=1.0)

    def window(self, seconds: float) -> tuple[Window, list[dict[str, float]]]:
        """One window, and the job's own means per rank over its steps in it."""
        out = self.folder / "windows"
        shutil.rmtree(out, ignore_errors=True)
        pids = [word for process in self.processes for word in ("--pid", str(process.pid))]
        options = ["--out", str(out), "--window", f"{seconds:g}", *pids]
        command = [sys.executable, "-m", "rankscope.diagnose.face.cli.main", "record", *options]
        done = subprocess.run(
            self.machine.observer_command(command),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        until = time.monotonic()
        assert done.returncode == 0, done.stderr
        window = read_window(find_windows(out)[0])
        truths = []
        for rank in range(self.ranks):
            mine = [step for step in self.steps(rank) if until - seconds < step.end < until]
            truths.append(
                {
                    "own": float(np.mean([step.seconds - step.exchange for step in mine])),
                    "seconds": float(np.mean([step.seconds for step in mine])),
                    "exchange": float(np.mean([step.exchange for step in mine])),
                    "compute": float(np.mean([step.compute for step in mine])),
                    "copy": float(np.mean([step.copy for step in mine])),
                    "host": float(np.mean([step.host for step in mine])),
                }
            )
        return window, truths

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.machine.stop()
