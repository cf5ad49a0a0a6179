"""What the tests of the lab share: where things are, a running job, the command as an operator runs it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from installed import RANKSCOPE

REPOSITORY = Path(__file__).resolve().parents[2]
PLAIN_JOB = Path(__file__).with_name("plain_job.py")


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A torchrun with its ranks."""

    launcher: subprocess.Popen[bytes]
    port: int
    size: int = 2

    @property
    def name(self) -> str:
        return f"torch-{socket.gethostname()}:{self.port}"

    def ranks(self) -> list[int]:
        """Pids of the ranks, rank 0 first: the launcher's children; none when it has ended."""
        try:
            return sorted(child.pid for child in psutil.Process(self.launcher.pid).children())
        except psutil.NoSuchProcess:
            return []

    def wait_until_it_trains(self) -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            assert self.launcher.poll() is None, "the job ended before it trained"
            if sum(trains(pid) for pid in self.ranks()) == self.size:
                time.sleep(1.0)
                return
            time.sleep(0.2)
        raise AssertionError("the job did not begin to train")


def trains(pid: int) -> bool:
    """Whether a rank has imported torch (0.7 s of CPU time or more) and met its peers."""
    try:
        used = psutil.Process(pid).cpu_times()
        # By the links, which name sockets of any network namespace; psutil's connections are those of its own.
        sockets = sum("socket:" in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    except (psutil.NoSuchProcess, OSError):
        return False
    return used.user + used.system > 0.5 and sockets > 2


@contextlib.contextmanager
def started_jobs() -> Iterator[Callable[..., RunningJob]]:
    """What starts jobs with torchrun; they end with the context."""
    jobs: list[RunningJob] = []

    def start(
        *arguments: str, ranks: int = 2, restarts: int = 0, script: Path = PLAIN_JOB, wait: bool = True
    ) -> RunningJob:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(port), "--max-restarts", str(restarts)]
        command += [str(script), *arguments]
        launcher = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        jobs.append(RunningJob(launcher, port, ranks))
        if wait:
            jobs[-1].wait_until_it_trains()
        return jobs[-1]

    try:
        yield start
    finally:
        for job in jobs:
            pids = job.ranks()
            if job.launcher.poll() is None:
                os.killpg(job.launcher.pid, signal.SIGKILL)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            job.launcher.wait()


def begun(*arguments: str, once: str = "to go") -> subprocess.Popen[str]:
    """The command, once a line of its stderr holds `once`; by default, once its window has begun."""
    command = subprocess.Popen([RANKSCOPE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert command.stderr is not None
    assert any(once in line for line in command.stderr)
    return command


def rankscope(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """The command as an operator runs it."""
    return subprocess.run([RANKSCOPE, *arguments], capture_output=True, text=True, timeout=timeout, check=False)
