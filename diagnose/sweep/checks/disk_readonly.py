"""No file system became read-only.

Reads /proc/self/mountinfo, /etc/fstab, /sys/fs/ext4 and the kernel's log. A mount that is read-only on purpose is fine. One that an
earlier sweep saw writable, or that fstab mounts writable, is a warning; it is critical where the kernel says why: it shut down, the
log tells of a remount after an error, or ext4 counts errors that it did not while it was writable (where no sweep saw that: of this
boot). Mounts of users (FUSE), and of devices that users may attach, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, OK, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.attached import kernel_names
from rankscope.diagnose.sweep.readings.filesystems import mounts
from rankscope.diagnose.sweep.readings.kernel_events import READONLY, logged_events
from rankscope.probes.host.mounts import Mount

ID = "disk.readonly"
SETTINGS: dict[str, float] = {}
_ERRORS = "errors "  # key prefix of a mount point


def run(context: Context) -> Iterator[Finding]:
    """Yield for each file system whether it became read-only; store its state while it is writable.

    Raises NotApplicable without a file system on a device.
    """
    found = mounts(context)
    if not found:
        raise NotApplicable("no file system on a device")
    try:
        logged = [event for event in logged_events(context) if event.family == READONLY]
        remounted = {event.instance for event in logged if event.state == CRITICAL}
    except Unreadable:
        remounted = set()  # os.kmsg reports an unreadable log
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
                _keep_errors(context, mount, _errors(context, mount))
            yield context.ok(
                "/proc/self/mountinfo", "read-only" if read_only else "writable", instance=mount.mount_point
            )


def _judge(context: Context, mount: Mount, remounted: set[str], writable: set[str]) -> tuple[str, str]:
    """Return the state of a mount and the reason, '' if nothing is wrong.

    `remounted`: devices that the kernel remounted read-only after an error, by its log; `writable`: mount points that
    fstab mounts writable.
    """
    options = mount.super_options.split(",")
    if "shutdown" in options or "emergency_ro" in options:
        return CRITICAL, "the file system shut itself down after an error"
    if not _read_only(mount):
        return OK, ""
    was_writable = context.recall(mount.mount_point) == "writable"
    if was_writable:
        context.keep(mount.mount_point, "writable")
        _keep_errors(context, mount, context.recall(_ERRORS + mount.mount_point))
    if remounted.intersection(kernel_names(context, mount)):
        return CRITICAL, "the kernel remounted it after an error"
    if was_writable or (mount.mount_point in writable and mount.root == "/"):
        since = "it was writable in an earlier sweep" if was_writable else "/etc/fstab mounts it writable"
        errors = _new_errors(context, mount)
        return (CRITICAL, f"{since}, and its kernel driver counts {errors} errors") if errors else (WARNING, since)
    return OK, ""


def _keep_errors(context: Context, mount: Mount, errors: int | str | None) -> None:
    """Store the error count of a mount that was last seen writable, for later comparison; nothing if it is None."""
    if errors is not None:
        context.keep(_ERRORS + mount.mount_point, f"{errors}")


def _errors(context: Context, mount: Mount) -> int | None:
    """Number of errors that the file system's driver counts on a mount; None if it counts none."""
    return _driver_says(context, mount, "errors_count")


def _driver_says(context: Context, mount: Mount, name: str) -> int | None:
    """A number from the folder of the file system's driver in /sys/fs for this mount, by file name; None if absent."""
    numbers = (context.integer("sys/fs", mount.fs_type, device, name) for device in kernel_names(context, mount))
    return next((number for number in numbers if number is not None), None)


def _new_errors(context: Context, mount: Mount) -> int:
    """Number of errors since the mount was last seen writable; without such a sweep, of this boot.

    ext4 counts old ones for ever.
    """
    errors, before = _errors(context, mount) or 0, context.recall(_ERRORS + mount.mount_point) or ""
    if before.isdecimal():
        return errors - int(before) if errors >= int(before) else errors  # fsck resets the count
    last_s = _driver_says(context, mount, "last_error_time")
    return 0 if last_s is not None and last_s < context.now_s - context.uptime_s else errors


def _read_only(mount: Mount) -> bool:
    """Whether the file system itself is read-only, not just this mount of it (a sandbox or a
    container)."""
    return "ro" in mount.super_options.split(",")


def _fstab(text: str) -> set[str]:
    """Mount points that fstab explicitly mounts writable."""
    points = set()
    for line in text.splitlines()[:4096]:
        words = line.split("#", 1)[0].split()
        if len(words) >= 4 and "rw" in words[3].split(","):
            points.add(words[1])
    return points
