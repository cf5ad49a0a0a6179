"""No dead or hanging process keeps hold of a GPU.

Where the NVIDIA driver is loaded: looks in /proc for nvidia processes in state D, and for zombies that still have threads: a
process that the driver does not let go. Their GPU memory comes back only by a reset or reboot. Looks twice, `wait_s` apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import loaded
from rankscope.probes.host.procfs import ProcStat, pids, read_stat, threads

ID = "os.zombie-gpu"
SETTINGS = {"wait_s": 0.5}
PER_PROCESS = True


def run(context: Context) -> Iterator[Finding]:
    if not loaded(context):
        raise NotApplicable("no NVIDIA driver is loaded here")
    suspects = _look(context, pids(context.root))
    if suspects:
        time.sleep(context.number("wait_s"))
        again = {stat.pid: stat for stat in _look(context, [stat.pid for stat in suspects])}
        suspects = [stat for stat in suspects if stat.pid in again and again[stat.pid].start_ticks == stat.start_ticks]
    for stat in suspects:
        yield context.critical(
            f"/proc/{stat.pid}/stat", stat.state, instance=f"{stat.comm} ({stat.pid})", expected="to end, or to run",
            why="it died, but the driver holds its threads" if stat.state == "Z" else "it hangs in the NVIDIA driver",
            action="Drain the host; reset the GPU or reboot.",
        )  # fmt: skip
    if not suspects:
        yield context.ok("/proc/*/stat", 0.0, unit="processes")


def _look(context: Context, among: list[int]) -> list[ProcStat]:
    found = []
    for pid in among:
        try:
            stat = read_stat(pid, context.root)
            hangs = stat.state == "D" and stat.comm.startswith(("nvidia", "nv-", "UVM"))
            if hangs or (stat.state == "Z" and len(threads(pid, context.root)) > 1):
                found.append(stat)
        except (OSError, ValueError):
            continue
    return found
