"""No process was killed for lack of memory.

Reads oom_kill of /proc/vmstat, which counts kills of the host and of memory-limited control groups alike; judged by growth
since the last sweep, and reported for `hours`. The kernel's log says who was killed, when and in which control group, where it can be read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.kernel_events import kernel_log, unix_time
from rankscope.diagnose.text import clean, short
from rankscope.observer.census.containers import find_container
from rankscope.probes.host.cpu_memory import sample_host
from rankscope.probes.host.oom import MemoryKill, memory_kills

ID = "mem.oom"
SETTINGS = {"hours": 24.0}
_NAMED = 3  # kills that are told of one by one
_SLURM = re.compile(r"/job_(\d{1,10})(?:/step_(\w{1,16}))?")


def run(context: Context) -> Iterator[Finding]:
    """Yield a warning if processes were killed for lack of memory since the last sweep, with the last three; else ok.

    Raises Unreadable.
    """
    host = context.shared.get("host", lambda: sample_host(context.root, clocks=False))
    if host.vm is None:
        raise Unreadable("/proc/vmstat cannot be read")
    grown = context.grown("oom_kills", host.vm.oom_kills)
    if not grown.amount:
        yield context.ok("/proc/vmstat", 0.0, unit="kills")
        return
    try:
        killed = memory_kills(kernel_log(context))[-int(min(grown.amount, _NAMED)) :]
    except Unreadable:
        killed = ()
    limited = bool(killed) and all(one.limited for one in killed)
    yield context.warning(
        "/proc/vmstat", grown.amount, unit="kills", expected="none since the last sweep",
        why=f"killed: {'; '.join(_words(one, context) for one in killed)}" if killed else "processes were killed for lack of memory",
        action=f"Give the job {'a higher memory limit' if limited else 'more memory or a higher limit'}, or make it use less.", lasts=True,
    )  # fmt: skip


def _words(kill: MemoryKill, context: Context) -> str:
    """Describe one kill: 'python (pid 7, Slurm job 12, user 1000, at 13:05:07, at the limit of /slurm/…)'."""
    clock = time.strftime("%H:%M:%S", time.localtime(unix_time(context, kill.time_s)))
    group = short(clean(kill.cgroup), 80)
    where = (
        f"{'at the limit of' if kill.limited else 'in'} {group}"
        if group
        else "at its cgroup's limit"
        if kill.limited
        else ""
    )
    user = f"user {kill.user}" if kill.user is not None else ""
    about = (f"pid {kill.pid}", job_of(kill.cgroup), user, f"at {clock}", where)
    return f"{clean(kill.name)} ({', '.join(filter(None, about))})"


def job_of(cgroup: str) -> str:
    """Name the job, pod or container that a control group belongs to; '' for none."""
    if "slurm" in cgroup and (found := _SLURM.search(cgroup)) is not None:
        return f"Slurm job {found[1]}"
    container = find_container([cgroup])
    if container is None:
        return ""
    return f"pod {container.pod}" if container.pod else f"container {container.container_id[:12]}"
