"""No process is left over from a job that has gone.

Reads /proc/*/environ and stat: processes with the environment of a rank (torchrun, Slurm,
Open MPI) that process 1 has adopted, where no process of the same run has another parent: the launcher and all that
it watched are gone. They hold GPU memory, ports and CPUs that the next job needs. Processes of other launchers, and
daemons of a job that still runs, are never named.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.training import LaunchedRank, claims
from rankscope.probes.host.procfs import pids

ID = "job.orphans"
SETTINGS = {"age_s": 60.0, "most_shown": 20.0}
PER_PROCESS = True


def run(context: Context) -> Iterator[Finding]:
    """Yield a warning for each process left over from a run whose launcher is gone; ok if there are none.

    Raises Unreadable if processes could not be examined.
    """
    found = context.shared.get("claims", lambda: claims(context.root, pids(context.root)))
    runs: dict[str, list[LaunchedRank]] = {}
    for claim in found.ranks:
        runs.setdefault(claim.run, []).append(claim)
    orphans = []
    for members in runs.values():
        inside = {member.pid for member in members}
        # A run is alive if a process has a parent outside of the run other than process 1: its
        # launcher.
        if any(member.stat.ppid not in inside and member.stat.ppid != 1 for member in members):
            continue
        orphans += [member for member in members if context.uptime_s - member.stat.start_s >= context.number("age_s")]
    for one in orphans[: int(context.number("most_shown"))]:
        yield context.warning(
            f"/proc/{one.pid}/stat", f"parent {one.stat.ppid}", instance=f"{one.stat.comm} ({one.pid})",
            expected="ends with its launcher", why=f"left over from rank {one.rank} of a {one.launcher} job that has gone",
            action=f"Make sure that the job is over, then: kill {one.pid}",
            since_s=context.now_s - context.uptime_s + one.stat.start_s,
        )  # fmt: skip
    if not orphans and found.refused:
        raise Unreadable(f"{found.refused} processes could not be looked at", found.RIGHT)
    if not orphans:
        yield context.ok("/proc/*/environ", 0.0, unit="left over")
