"""GPUs that a job uses are used by that job alone.

Reads the processes on each GPU from NVML and the job each belongs to from its environment. A process that belongs to no job, on a
GPU where one does, and that holds more than `memory_mb`, is a warning: it takes time and memory from the rank. Monitors
(`known`) are fine.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import gpus, name_of
from rankscope.diagnose.sweep.readings.training import claims
from rankscope.probes.host.procfs import pids, read_comm

ID = "gpu.foreign-process"
SETTINGS = {
    "memory_mb": 256.0,
    "known": ("dcgm", "nv-hostengine", "nvidia-smi", "nvidia-persistenced", "nvidia-cuda-mps"),
}
PER_PROCESS = True


def run(context: Context) -> Iterator[Finding]:
    """Yield a warning for each process of no job on a GPU that a job uses; ok if there are none.

    Raises NotApplicable without GPUs, Unreadable if processes could not be examined.
    """
    found = gpus(context)
    if not found:
        raise NotApplicable("no GPU")
    launched = context.shared.get("claims", lambda: claims(context.root, pids(context.root)))
    if launched.refused:
        raise Unreadable(f"{launched.refused} processes could not be looked at", launched.RIGHT)
    jobs = {one.pid for one in launched.ranks}
    known, foreign = context.settings["known"], 0
    for gpu in found:
        if not any(process.pid in jobs for process in gpu.processes):
            continue
        for process in gpu.processes:
            memory_mb = (process.memory_bytes or 0) / 1e6
            comm = _comm(context, process.pid)
            if process.pid in jobs or not comm or memory_mb < context.number("memory_mb"):
                continue
            if isinstance(known, tuple) and comm.startswith(known):
                continue
            foreign += 1
            yield context.warning(
                "NVML", round(memory_mb), unit="MB", instance=f"{name_of(gpu)} {comm} ({process.pid})",
                expected="only the job's processes", why="a process outside of the job uses the job's GPU",
                action=f"Find out whose it is: ps -fp {process.pid}",
            )  # fmt: skip
    if not foreign:
        yield context.ok("NVML", 0.0, unit="foreign processes")


def _comm(context: Context, pid: int) -> str:
    """Name of a process (comm), '' if it has ended."""
    try:
        return read_comm(pid, context.root)
    except OSError:
        return ""
