"""No dead or hanging process keeps hold of a GPU.

Where the NVIDIA driver is loaded: looks in /proc for processes in state D, and for zombies that still have threads, which hang in
the driver (/proc/PID/task/*/stack): their GPU memory comes back only by a reset or reboot. Looks twice, `wait_s` apart. A zombie
with threads alone is no fault: any program whose first thread ends early is one. Where the stack may not be read
(CAP_SYS_ADMIN), a zombie with a hanging thread is a warning. Users take turns while there is time; who was not looked at is said.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import loaded
from rankscope.diagnose.sweep.readings.kernel_stacks import NVIDIA, Held, held
from rankscope.probes.fair import by_kind, in_turn
from rankscope.probes.host.procfs import ProcStat, pids, read_stat, read_status, threads
from rankscope.probes.patience import patiently

ID = "os.zombie-gpu"
SETTINGS = {"wait_s": 0.5}
PER_PROCESS = True
_MOST_THREADS = 256  # of one process
# How long threads and stacks are looked at, in seconds: any user can have thousands of both in state D.
_STACKS_S = 1.0


def run(context: Context) -> Iterator[Finding]:
    if not loaded(context):
        raise NotApplicable("no NVIDIA driver is loaded here")
    suspects = patiently(lambda: _look(context, pids(context.root)))
    if suspects:
        time.sleep(context.number("wait_s"))
        among = [stat.pid for stat in suspects]
        again = {stat.pid: stat for stat in patiently(lambda: _look(context, among))}
        suspects = [stat for stat in suspects if stat.pid in again and again[stat.pid].start_ticks == stat.start_ticks]
    until = time.monotonic() + _STACKS_S
    bad = unseen = 0
    for stat in in_turn(by_kind(suspects, lambda stat: _user(context, stat.pid))):
        waits = _where(context, stat, until)
        if waits is None:
            unseen += 1
            continue
        if waits.by != NVIDIA and (waits.seen or stat.state != "Z"):
            continue  # fs.stuck tells of it, if it hangs
        bad += 1
        dead = "it died, but a thread of it hangs"
        yield context.bad(
            CRITICAL if waits.by else WARNING, f"/proc/{stat.pid}/task/*/stack", stat.state,
            instance=f"{stat.comm} ({stat.pid})", expected="to end, or to run",
            why=f"{dead if stat.state == 'Z' else 'it hangs'}{' in the NVIDIA driver' if waits.by else '; in what may not be seen'}",
            action="Drain the host; reset the GPU or reboot." if waits.by else "Look at the stack as root: the driver, or something else?",
        )  # fmt: skip
    if unseen:
        yield context.unknown(
            "/proc/*/task/*/stack", f"{unseen} more processes hang or are dead; there was no time to see where"
        )
    elif not bad:
        yield context.ok("/proc/*/stat", 0.0, unit="processes")


def _look(context: Context, among: list[int]) -> list[ProcStat]:
    found = []
    for pid in among:
        try:
            stat = read_stat(pid, context.root)
            if stat.state == "D" or (stat.state == "Z" and len(threads(pid, context.root)) > 1):
                found.append(stat)
        except (OSError, ValueError):
            continue
    return found


def _user(context: Context, pid: int) -> int:
    try:
        return read_status(pid, context.root).uid
    except (OSError, ValueError):
        return -1  # it has ended


def _where(context: Context, stat: ProcStat, until: float) -> Held | None:
    """What its hanging threads wait for: the driver, if one of them does. None where that is not known at `until` (time.monotonic)."""
    seen = True
    try:
        tids = threads(stat.pid, context.root)[:_MOST_THREADS]
    except OSError:
        return Held("", True)
    for tid in tids:
        if time.monotonic() > until:
            return None
        try:
            if read_stat(stat.pid, context.root, tid).state != "D":
                continue
            waits = held(stat.pid, tid, context.root)
        except (OSError, ValueError):
            continue  # ended meanwhile
        if waits.by == NVIDIA:
            return waits
        seen = seen and waits.seen
    return Held("", seen)
