"""Processes that a launcher started as ranks, found by environment alone, which is cheaper than the census."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rankscope.probes.base.patience import patiently
from rankscope.probes.host.procfs import ProcStat, read_environ_bytes, read_stat

# Environment variable that names the run → its launcher.
LAUNCHERS = {
    b"TORCHELASTIC_RUN_ID": "torchrun",
    b"SLURM_STEP_ID": "Slurm",
    b"PMIX_NAMESPACE": "Open MPI",
    b"OMPI_COMM_WORLD_RANK": "Open MPI",
}
_RANKS = (b"RANK", b"SLURM_PROCID", b"OMPI_COMM_WORLD_RANK")


@dataclass(frozen=True, slots=True)
class LaunchedRank:
    """A process with a launched rank's environment: the rank or a descendant. `run`: name of the run."""

    pid: int
    stat: ProcStat
    launcher: str
    run: str
    rank: str


@dataclass(frozen=True, slots=True)
class Launched:
    """The launched processes found; `refused`: number of processes that could not be examined."""

    ranks: tuple[LaunchedRank, ...]
    refused: int

    RIGHT: ClassVar[str] = "Run as root or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH."


def claims(root: Path, among: Sequence[int]) -> Launched:
    """Find among these pids the processes that a launcher started; skip those that end or do not answer.

    Never raises.
    """
    return patiently(lambda: _claims(root, among))


def _claims(root: Path, among: Sequence[int]) -> Launched:
    """Find the launched processes among these pids, as `claims`; may block on a process that hangs."""
    found = []
    refused = 0
    for pid in among:
        try:
            data = read_environ_bytes(pid, root)
            if not data or (b"RANK=" not in data and b"SLURM_PROCID=" not in data):
                continue
            environ = dict(entry.split(b"=", 1) for entry in data.split(b"\0") if b"=" in entry)
            rank = next((environ[name] for name in _RANKS if name in environ), None)
            launcher = next((name for name in LAUNCHERS if name in environ), None)
            if rank is None or launcher is None:
                continue
            job = environ.get(b"SLURM_JOB_ID", b"") + b"." + environ[launcher] + b":" + environ.get(b"MASTER_PORT", b"")
            found.append(
                LaunchedRank(
                    pid,
                    read_stat(pid, root),
                    LAUNCHERS[launcher],
                    job[:100].decode("utf-8", "replace"),
                    rank[:8].decode("utf-8", "replace"),
                )
            )
        except PermissionError:
            refused += pid != 1  # process 1 may deny even root, and is no rank
        except (OSError, ValueError):
            continue
    return Launched(tuple(found), refused)
