"""What the tests of the lab share: where things are, a running job, the command as an operator runs it."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
RANKSCOPE = Path(sys.executable).with_name("rankscope")
PLAIN_JOB = Path(__file__).with_name("plain_job.py")


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A torchrun with its ranks."""

    launcher: subprocess.Popen[bytes]
    port: int

    @property
    def name(self) -> str:
        return f"torch-{socket.gethostname()}:{self.port}"

    def ranks(self) -> list[int]:
        """Pids of the ranks, rank 0 first: the launcher's children; none when it has ended."""
        try:
            return sorted(child.pid for child in psutil.Process(self.launcher.pid).children())
        except psutil.NoSuchProcess:
            return []


def trains(pid: int) -> bool:
    """Whether a rank has imported torch (0.7 s of CPU time or more) and met its peers."""
    try:
        used = psutil.Process(pid).cpu_times()
        # By the links, which name sockets of any network namespace; psutil's connections are those of its own.
        sockets = sum("socket:" in str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir())
    except (psutil.NoSuchProcess, OSError):
        return False
    return used.user + used.system > 0.5 and sockets > 2


def rankscope(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """The command as an operator runs it."""
    return subprocess.run([RANKSCOPE, *arguments], capture_output=True, text=True, timeout=timeout, check=False)
