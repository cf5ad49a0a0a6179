"""Mounts answer, and no process hangs in the kernel.

Asks statvfs of every mount from a child process, which may hang without harm: a mount that does not answer in `patience_s` is
critical. Looks twice, `wait_s` apart, for processes in state D (uninterruptible) that did not run meanwhile: a warning, and
critical if the last sweep saw the same process so. Reads /proc/*/stat and status.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.filesystems import usages
from rankscope.probes.host.procfs import pids, proc_path, read_file, read_stat

ID = "fs.stuck"
SETTINGS = {"patience_s": 1.0, "wait_s": 0.5, "most_shown": 20.0}
PER_PROCESS = True
KTHREADD = 2


@dataclass(frozen=True, slots=True)
class _Waiting:
    pid: int
    comm: str
    start_ticks: int
    switches: bytes


def run(context: Context) -> Iterator[Finding]:
    first = _uninterruptible(context, None)
    begun = time.monotonic()
    silent = [usage for usage in usages(context, context.number("patience_s")) if not usage.answered]
    for usage in silent:
        yield context.critical(
            "statvfs", "no answer", instance=usage.mount.mount_point, expected=f"an answer in {context.number('patience_s'):g} s",
            why=f"{usage.mount.fs_type} {usage.mount.source} hangs",
            action="Check the file server and the way to it; umount -l as a last resort.",
        )  # fmt: skip
    stuck: list[_Waiting] = []
    if first:
        time.sleep(max(0.0, context.number("wait_s") - (time.monotonic() - begun)))
        stuck = [one for one in _uninterruptible(context, {one.pid for one in first}) if one in first]
    for one in stuck[: int(context.number("most_shown"))]:
        key = f"{one.pid}.{one.start_ticks}"
        since = context.recall(key)
        context.keep(key, since or f"{context.now_s:.0f}")
        yield context.bad(
            CRITICAL if since else WARNING, f"/proc/{one.pid}/stat", "D", instance=f"{one.comm} ({one.pid})",
            expected="never long in state D", why="it hangs in the kernel" + (", as in the last sweep" if since else ""),
            action=f"cat /proc/{one.pid}/stack says where; storage, a network mount or a driver hangs.",
            since_s=float(since) if since else None,
        )  # fmt: skip
    if not stuck and not silent:
        yield context.ok("statvfs, /proc/*/stat", 0.0, unit="hanging")


def _uninterruptible(context: Context, among: set[int] | None) -> list[_Waiting]:
    found = []
    for pid in pids(context.root) if among is None else sorted(among):
        try:
            stat = read_stat(pid, context.root)
            # Some drivers' kernel threads always wait in D; the hung-task lines of os.kmsg tell of those that hang.
            if stat.state != "D" or stat.ppid == KTHREADD:
                continue
            status = read_file(proc_path(context.root, pid, "status"), 65536)
        except (OSError, ValueError):
            continue  # ended meanwhile
        switches = b"".join(line for line in status.split(b"\n") if b"ctxt_switches" in line)
        found.append(_Waiting(pid, stat.comm, stat.start_ticks, switches))
    return found
