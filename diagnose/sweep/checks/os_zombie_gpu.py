"""No dead or hanging process keeps hold of a GPU.

Where the NVIDIA driver is loaded: looks in /proc for processes in state D, and for zombies that still have threads, of which a thread
hangs in the driver (/proc/PID/task/*/stack) and does not run for `wait_s`: a warning. Critical is what has not run for `critical_s`, as an
earlier sweep saw: its GPU memory comes back only by a reset or reboot. To open GPUs, or to give much memory back, takes the driver tens
of seconds, dead or alive. A zombie with threads alone is no fault: any program whose first thread ends early is one. Where the stack may
not be read (CAP_SYS_ADMIN), a zombie with a hanging thread is a warning. Users take turns while there is time; who was not looked at is
said.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import loaded
from rankscope.diagnose.sweep.readings.hanging import still_for_s, switches_of
from rankscope.diagnose.sweep.readings.kernel_stacks import NVIDIA, held
from rankscope.probes.base.patience import patiently
from rankscope.probes.host.fair import group_by, interleave
from rankscope.probes.host.procfs import ProcStat, pids, read_stat, read_status, threads

ID = "os.zombie-gpu"
SETTINGS = {"wait_s": 0.5, "critical_s": 120.0}
PER_PROCESS = True
_MOST_THREADS = 256  # examined per process
# Time for reading threads and stacks, s: any user can have thousands in state D.
_STACKS_S = 1.0


@dataclass(frozen=True, slots=True)
class _Thread:
    """A hanging thread.

    `by_driver`: it hangs in the NVIDIA driver; else the cause is not visible.
    """

    tid: int
    start_ticks: int
    switches: str
    by_driver: bool


def run(context: Context) -> Iterator[Finding]:
    """Yield dead or hanging processes of which a thread hangs in the NVIDIA driver; ok if there are none.

    If the time was too short for all, one more finding is unknown. Raises NotApplicable without the driver.
    """
    if not loaded(context):
        raise NotApplicable("no NVIDIA driver is loaded here")
    until = time.monotonic() + _STACKS_S
    suspects: list[tuple[ProcStat, list[_Thread]]] = []
    unseen: list[ProcStat] = []
    looked = patiently(lambda: _look(context, pids(context.root)))
    for stat in interleave(group_by(looked, lambda stat: _user(context, stat.pid))):
        hanging = _hanging(context, stat, until)
        if hanging is None:
            unseen.append(stat)
        elif hanging:
            suspects.append((stat, hanging))
    if suspects or unseen:
        time.sleep(context.number("wait_s"))
    bad = 0
    for stat, hanging in suspects:
        if still := [one for one in hanging if _stands(context, stat, one)]:
            bad += 1
            yield _told(context, stat, still)
    again = {(stat.pid, stat.start_ticks) for stat in patiently(lambda: _look(context, [one.pid for one in unseen]))}
    if left := sum((stat.pid, stat.start_ticks) in again for stat in unseen):
        yield context.unknown(
            "/proc/*/task/*/stack", f"{left} more processes hang or are dead; there was no time to see where"
        )
    elif not bad:
        yield context.ok("/proc/*/stat", 0.0, unit="processes")


def _told(context: Context, stat: ProcStat, hanging: list[_Thread]) -> Finding:
    """Finding on a process with hanging threads: all in the driver, or all with invisible cause."""
    by_driver = hanging[0].by_driver
    times = [
        still_for_s(context, f"{stat.pid}.{one.tid}.{one.start_ticks}", one.switches) for one in hanging if by_driver
    ]
    still_s = max((seconds for seconds in times if seconds is not None), default=None)
    lasts = still_s is not None and still_s >= context.number("critical_s")
    what = "it died, but a thread of it hangs" if stat.state == "Z" else "it hangs"
    where = " in the NVIDIA driver" if by_driver else "; in what may not be seen"
    action = "Drain the host; reset the GPU or reboot."
    if not lasts:
        action = f"Look again in {context.number('critical_s'):g} s: to give much memory back takes a while."
    return context.bad(
        CRITICAL if lasts else WARNING, f"/proc/{stat.pid}/task/*/stack", stat.state,
        instance=f"{stat.comm} ({stat.pid})", expected="to end, or to run",
        why=f"{what}{where}{f', and has not run for {still_s:.0f} s' if still_s else ''}",
        action=action if by_driver else "Look at the stack as root: the driver, or something else?",
        since_s=None if still_s is None else context.now_s - still_s,
    )  # fmt: skip


def _look(context: Context, among: list[int]) -> list[ProcStat]:
    """Find among these pids the processes in state D, and the zombies that still have other threads."""
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
    """Uid of a process; -1 if it has ended."""
    try:
        return read_status(pid, context.root).uid
    except (OSError, ValueError):
        return -1  # it ended meanwhile


def _hanging(context: Context, stat: ProcStat, until: float) -> list[_Thread] | None:
    """Threads of a process that hang in the driver.

    For a zombie without such, those with unreadable stacks. None if the time (`until`,
    time.monotonic) is up first.
    """
    driver: list[_Thread] = []
    hidden: list[_Thread] = []
    try:
        tids = threads(stat.pid, context.root)[:_MOST_THREADS]
    except OSError:
        return []
    for tid in tids:
        if time.monotonic() > until:
            return driver or None
        try:
            thread = read_stat(stat.pid, context.root, tid)
            if thread.state != "D":
                continue
            switches = _switches(context, stat.pid, tid)  # before the stack, so that a run in between is noticed
            waits = held(stat.pid, tid, context.root)
        except (OSError, ValueError):
            continue  # ended meanwhile
        if waits.by == NVIDIA:
            driver.append(_Thread(tid, thread.start_ticks, switches, True))
        elif not waits.seen and stat.state == "Z":
            hidden.append(_Thread(tid, thread.start_ticks, switches, False))
    return driver or hidden  # other hangs are reported by fs.stuck


def _stands(context: Context, stat: ProcStat, one: _Thread) -> bool:
    """Whether a thread has not run since the first pass."""
    try:
        now = read_stat(stat.pid, context.root, one.tid)
    except (OSError, ValueError):
        return False  # it ended meanwhile
    same = (now.state, now.start_ticks) == ("D", one.start_ticks)
    return same and _switches(context, stat.pid, one.tid) == one.switches


def _switches(context: Context, pid: int, tid: int) -> str:
    """Counts of context switches of a thread, as text; '' if it has ended."""
    try:
        return switches_of(context, pid, tid)
    except OSError:
        return ""  # it ended meanwhile, as its stat will show
