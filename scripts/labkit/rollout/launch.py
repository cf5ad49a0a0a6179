"""Start a job of reinforcement learning with a fault, and end it: `with Rollout("slow-server") as job:`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

SERVERS = 3
SLOW = 1  # number of the server that is slow
FAULTS = ("none", "slow-server", "tail", "slow-reward", "slow-weights")
_HERE = Path(__file__).parent
_START_S = 90.0


class Rollout:
    """A running job: its servers, its launcher with two ranks, and the lines of rank 0."""

    def __init__(self, fault: str = "none", python: str = sys.executable) -> None:
        self.fault, self._python = fault, python
        self.ports = [_free_port() for _ in range(SERVERS)]
        self._started: list[subprocess.Popen[str]] = []
        self._lines: list[dict[str, object]] = []

    def __enter__(self) -> Rollout:
        for number, port in enumerate(self.ports):
            slow = ["--slow", "0.002"] if self.fault == "slow-server" and number == SLOW else []
            slow += ["--slow-weights", "0.03"] if self.fault == "slow-weights" and number == SLOW else []
            self._start([self._python, str(_HERE / "server.py"), str(port), *slow])
        for port in self.ports:
            _await(port)
        said = {"tail": ["--tail"], "slow-reward": ["--reward", "0.3"]}.get(self.fault, [])
        ports = ",".join(map(str, self.ports))
        trainer = [str(_HERE / "trainer.py"), "--servers", ports, *said]
        launcher = [self._python, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        self._start([*launcher, "--master-port", str(_free_port()), *trainer])
        until = time.monotonic() + _START_S
        while len(self._lines) < 3:
            line = self._read(until)
            self._lines.append(line)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in reversed(self._started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGTERM)
        for one in self._started:
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()

    def shares(self) -> list[float]:
        """Shares of generate, reward, train and weights in the iterations so far, as the job prints."""
        os.set_blocking(self._output.fileno(), False)
        with contextlib.suppress(OSError, TypeError):
            self._lines += [json.loads(line) for line in self._output.read().splitlines() if line.startswith("{")]
        totals = [sum(column) for column in zip(*(line["stages_s"] for line in self._lines[3:]), strict=True)]
        return [one / sum(totals) for one in totals]

    def _start(self, command: list[str]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._started.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
                start_new_session=True,
            )
        )  # fmt: skip

    @property
    def _output(self):  # type: ignore[no-untyped-def]
        return self._started[-1].stdout

    def _read(self, until: float) -> dict[str, object]:
        for line in self._output:
            if time.monotonic() > until:
                break
            if line.startswith("{"):
                found: dict[str, object] = json.loads(line)
                return found
        raise RuntimeError("the job has not begun to train")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _await(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"no server listens on port {port}")
