"""No file system became read-only.

Reads /proc/self/mountinfo, /etc/fstab, /sys/fs/ext4 and the kernel's log. A mount that is read-only on purpose is fine. One that an
earlier sweep saw writable, or that fstab mounts writable, is a warning; it is critical where the kernel says why: it shut down, the
log tells of a remount after an error, or ext4 counts errors. Mounts of users (FUSE) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, OK, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.filesystems import mounts
from rankscope.diagnose.sweep.readings.kernel_events import READONLY, logged_events
from rankscope.probes.host.mounts import Mount

ID = "disk.readonly"
SETTINGS: dict[str, float] = {}


def run(context: Context) -> Iterator[Finding]:
    found = mounts(context)
    if not found:
        raise NotApplicable("no file system on a device")
    try:
        remounted = {event.instance for event in logged_events(context) if event.family == READONLY}
    except Unreadable:
        remounted = set()  # the log cannot be read; os.kmsg says so
    writable = _fstab(context.text("etc/fstab") or "")
    for mount in found:
        state, reason = _judge(context, mount, remounted, writable)
        if reason:
            yield context.bad(
                state, "/proc/self/mountinfo", "read-only", instance=mount.mount_point, expected="writable", why=reason,
                action="Drain the host; check the disk, then fsck and remount." if state == CRITICAL
                else "Find out who remounted it, and why; then mount -o remount,rw.",
            )  # fmt: skip
        else:
            read_only = _read_only(mount)
            if not read_only:
                context.keep(mount.mount_point, "writable")
            yield context.ok(
                "/proc/self/mountinfo", "read-only" if read_only else "writable", instance=mount.mount_point
            )


def _judge(context: Context, mount: Mount, remounted: set[str], writable: set[str]) -> tuple[str, str]:
    """(state, why); no reason where nothing is wrong."""
    options = mount.super_options.split(",")
    if "shutdown" in options or "emergency_ro" in options:
        return CRITICAL, "the file system shut itself down after an error"
    if not _read_only(mount):
        return OK, ""
    was_writable = context.recall(mount.mount_point) == "writable"
    if was_writable:
        context.keep(mount.mount_point, "writable")
    device = mount.source.rpartition("/")[2]
    if device in remounted:
        return CRITICAL, "the kernel remounted it after an error"
    if was_writable or (mount.mount_point in writable and mount.root == "/"):
        since = "it was writable in an earlier sweep" if was_writable else "/etc/fstab mounts it writable"
        errors = context.integer("sys/fs", mount.fs_type, device, "errors_count")
        return (CRITICAL, f"{since}, and its kernel driver counts {errors} errors") if errors else (WARNING, since)
    return OK, ""


def _read_only(mount: Mount) -> bool:
    """The whole file system, not this mount of it: what a sandbox or a container mounts read-only is no fault."""
    return "ro" in mount.super_options.split(",")


def _fstab(text: str) -> set[str]:
    """Mount points that fstab says are mounted writable, explicitly."""
    points = set()
    for line in text.splitlines()[:4096]:
        words = line.split("#", 1)[0].split()
        if len(words) >= 4 and "rw" in words[3].split(","):
            points.add(words[1])
    return points
