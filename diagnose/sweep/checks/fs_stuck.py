"""Mounts answer, and no process hangs in the kernel.

Asks statvfs of every mount from a child process, which may hang without harm: a mount that does not answer in `patience_s` is a
warning, and critical if it did not in an earlier sweep either, at least `critical_s` ago; one of a local file system only where the
kernel says what the child waits for, one of a FUSE server only where that is the host's own root's. Looks twice, `wait_s` apart, for
processes in state D (uninterruptible) that did not run meanwhile: a warning, and critical if they have not run for `critical_s` either
and the kernel waits in a driver, for a file server or a disk (/proc/PID/stack). Mounts that do not answer keep the first look waiting for
`patience_s` at most. Of the processes `most_shown` are told, the worst first, and of equals one of each user in turn. Mounts of users
(FUSE, loop devices), and mounts that such a one covers, are not asked. Reads /proc/*/stat, status; of a silent FUSE mount fd, fdinfo, ns.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from rankscope.diagnose.severity import CRITICAL, WARNING, weight
from rankscope.diagnose.sweep.context import Context, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.filesystems import MAX_MOUNTS, Usage, left_out, usages
from rankscope.diagnose.sweep.readings.fuse_servers import of_the_host
from rankscope.diagnose.sweep.readings.hanging import hangs_for_s, still_for_s, switches_in
from rankscope.diagnose.sweep.readings.kernel_stacks import Held, held
from rankscope.probes.base import room
from rankscope.probes.base.patience import patiently
from rankscope.probes.host.fair import group_by, interleave
from rankscope.probes.host.procfs import pids, proc_path, read_file, read_stat

ID = "fs.stuck"
# A file server's failover takes 15 to 90 s, and sweeps before and after jobs follow each other
# within seconds.
SETTINGS = {"patience_s": 1.0, "wait_s": 0.5, "critical_s": 120.0, "most_shown": 20.0}
PER_PROCESS = True
KTHREADD = 2
# Time for reading stacks, s (about 0.05 ms each); processes after that count as having unreadable
# stacks.
_STACKS_S = 1.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A process in state D (uninterruptible). `switches`: its counts of context switches as text; `user`: its uid."""

    pid: int
    comm: str
    start_ticks: int
    switches: str
    user: bytes


@dataclass(frozen=True, slots=True)
class _Hanging:
    """Finding on a process.

    `waits`: it waits for something of the host; `never_ran`: not since the last sweep.
    """

    finding: Finding
    waits: bool
    never_ran: bool


def run(context: Context) -> Iterator[Finding]:
    """Yield mounts that do not answer and processes that hang in the kernel; ok if there are none.

    Raises Unreadable, after all findings, if the mounts could not be asked.
    """
    # Mounts first, and reported before processes, since users' processes may use up the time.
    first = _FirstLook(context)
    silent: list[Usage] = []
    unasked: Unreadable | None = None
    try:
        silent = [usage for usage in usages(context, context.number("patience_s")) if not usage.answered]
    except Unreadable as why:
        unasked = why
    for usage in silent:
        yield _silent(context, usage)
    if more := left_out(context):
        yield context.unknown(
            "/proc/1/mountinfo", f"{more} more mounts than are asked ({MAX_MOUNTS})", instance="mounts"
        )
    waiting, ended_s = first.result()
    stuck: list[_Waiting] = []
    if waiting:
        time.sleep(max(0.0, context.number("wait_s") - (time.monotonic() - ended_s)))
        before = set(waiting)
        among = {one.pid for one in waiting}
        stuck = [one for one in patiently(lambda: _uninterruptible(context, among)) if one in before]
    # Not in order of pid: any user can have harmlessly hanging processes with lower pids.
    until = time.monotonic() + _STACKS_S
    hanging = [_hanging(context, one, until) for one in interleave(group_by(stuck, lambda one: one.user))]
    hanging.sort(key=lambda one: (weight(one.finding.state), one.waits, one.never_ran), reverse=True)
    yield from (one.finding for one in hanging[: int(context.number("most_shown"))])
    if unasked is not None:
        raise unasked
    if not stuck and not silent:
        yield context.ok("statvfs, /proc/*/stat", 0.0, unit="hanging")


class _FirstLook:
    """First pass over processes, on its own thread, as hanging mounts leave no time for it afterwards.

    It begins after `patience_s`, when working mounts have answered, or when `result` is called.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._asked = threading.Event()
        self._found: Future[tuple[list[_Waiting], float]] = Future()
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="first-look", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            if not room.refused_a_thread(error):
                raise
            self._thread = None

    def result(self) -> tuple[list[_Waiting], float]:
        """Waiting processes, and the time (time.monotonic) at which the pass ended.

        Raises what the pass raised.
        """
        self._asked.set()
        if self._thread is None:
            self._run()
        return self._found.result()

    def _run(self) -> None:
        """Make the pass after `patience_s`, or as soon as `result` asks; store what it found or raised."""
        self._asked.wait(self._context.number("patience_s"))
        try:
            found = patiently(lambda: _uninterruptible(self._context, None))
            self._found.set_result((found, time.monotonic()))
        except BaseException as error:
            self._found.set_exception(error)


def _silent(context: Context, usage: Usage) -> Finding:
    """Make the finding on a mount that did not answer: a warning, or critical if it lasts and the host is at fault.

    A slow answer may be load; one that never comes is a fault.
    """
    mount = usage.mount
    key = f"silent {mount.mount_point} {mount.source}"
    hung_s = hangs_for_s(context, key)
    lasts = hung_s is not None and hung_s >= context.number("critical_s")
    # Local file systems answer from memory; without a known wait a silent one may just be slow,
    # like the host.
    at_fault = lasts and (usage.network or usage.waits != "")
    if at_fault and mount.fs_type.startswith("fuse"):
        at_fault = of_the_host(mount, context.root)
    why = f"{mount.fs_type} {mount.source} hangs"
    return context.bad(
        CRITICAL if at_fault else WARNING, "statvfs", "no answer",
        instance=mount.mount_point, expected=f"an answer in {context.number('patience_s'):g} s",
        why=why + (f": it waits for {usage.waits}" if usage.waits else "") + (f", as {hung_s:.0f} s ago" if hung_s else ""),
        action="Check the file server and the way to it; umount -l as a last resort.",
        since_s=None if hung_s is None else context.now_s - hung_s,
    )  # fmt: skip


def _hanging(context: Context, one: _Waiting, until: float) -> _Hanging:
    """Make the finding on a process that did not run between both passes: a warning, or critical if it lasts.

    Critical only if it also waits for something of the host. `until`: deadline for reading stacks (monotonic).
    """
    still_s = still_for_s(context, f"{one.pid}.{one.start_ticks}", one.switches)
    lasts = still_s is not None and still_s >= context.number("critical_s")
    waits = Held("", False)
    if time.monotonic() < until:
        with contextlib.suppress(OSError):  # it ended meanwhile
            waits = held(one.pid, root=context.root)
    where = f": it waits for {waits.by}" if waits.by else ""
    if waits.seen and not waits.by:
        where = ", in no driver, and for no file server or disk"
    finding = context.bad(
        CRITICAL if lasts and waits.by else WARNING, f"/proc/{one.pid}/stack", "D", instance=f"{one.comm} ({one.pid})",
        expected="never long in state D",
        why=f"it hangs in the kernel{f', and has not run for {still_s:.0f} s' if still_s else ''}{where}",
        action=f"cat /proc/{one.pid}/stack says where{'' if waits.seen else '; the sweep has no right to (CAP_SYS_ADMIN)'}.",
        since_s=None if still_s is None else context.now_s - still_s,
    )  # fmt: skip
    return _Hanging(finding, waits.by != "", still_s is not None)


def _uninterruptible(context: Context, among: set[int] | None) -> list[_Waiting]:
    """Find the processes in state D among these pids (None: all), without kernel threads."""
    found = []
    for pid in pids(context.root) if among is None else sorted(among):
        try:
            stat = read_stat(pid, context.root)
            # Kernel threads of some drivers always wait in D; os.kmsg reports hung ones.
            if stat.state != "D" or stat.ppid == KTHREADD:
                continue
            status = read_file(proc_path(context.root, pid, "status"), 65536)
        except (OSError, ValueError):
            continue  # ended meanwhile
        lines = status.split(b"\n")
        user = next((b"".join(line.split()[1:2]) for line in lines if line.startswith(b"Uid:")), b"")
        found.append(_Waiting(pid, stat.comm, stat.start_ticks, switches_in(status), user))
    return found
