"""What the tests of the lab share: where things are, a running job, the command as an operator runs it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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
        pids = []
        for children in Path("/proc").glob(f"{self.launcher.pid}/task/*/children"):
            with contextlib.suppress(OSError):
                pids += [int(word) for word in children.read_text().split()]
        return sorted(pids)


def rankscope(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """The command as an operator runs it."""
    return subprocess.run([RANKSCOPE, *arguments], capture_output=True, text=True, timeout=timeout, check=False)
