"""The processes that are observed: starting them, and reading what they say about themselves."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchkit.unwinder.workload import CYCLE_CPU_S, FUNCTIONS
from labkit.machine.shell import LabError

_WORKLOAD = Path(__file__).with_name("workload.py")
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Workload:
    """One running process and the file in which it keeps its account."""

    process: subprocess.Popen[str]
    ledger: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def spent_ns(self) -> Counter[str]:
        """CPU time of each function since it began, by its own measurement."""
        if self.process.poll() is not None:
            raise LabError(f"a process under observation ended with {self.process.returncode}")
        return Counter(dict(zip(FUNCTIONS, np.fromfile(self.ledger, "<u8").tolist(), strict=True)))


@contextlib.contextmanager
def workloads(
    pythons: Sequence[str], threads: int, busy: float, cycle_s: float = CYCLE_CPU_S
) -> Iterator[list[Workload]]:
    """One process for each interpreter in `pythons`, each with `busy` of a CPU to do; they end with the block."""
    started: list[Workload] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, python in enumerate(pythons):
                ledger = Path(folder, str(number))
                ledger.write_bytes(bytes(8 * len(FUNCTIONS)))
                command = [python, str(_WORKLOAD), str(ledger), str(threads), f"{busy:g}", str(number), f"{cycle_s:g}"]
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
                    preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, no locks
                )
                started.append(Workload(process, ledger))
                assert process.stdout is not None
                if process.stdout.readline().strip() != "ready":
                    raise LabError(f"the workload does not run on {python}")
            yield started
        finally:
            for one in started:
                one.process.kill()
                one.process.wait()
                for stream in (one.process.stdin, one.process.stdout):
                    if stream is not None:
                        stream.close()


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
