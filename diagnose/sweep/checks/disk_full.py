"""File systems have room, in bytes and in inodes.

Asks statvfs of every mounted file system that is not a pseudo one. Full beyond `warning_percent` or `critical_percent` counts only
while less than `free_gb` is left: 91 % of a 100 TB store is not full. A full disk stops checkpoints, and then the job. It is never
critical as long as `critical_percent` is above 100: whoever may write somewhere can fill it, and nobody must drain a host so.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, OK, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.filesystems import Usage, usages

ID = "disk.full"
SETTINGS = {"warning_percent": 92.0, "critical_percent": 101.0, "free_gb": 20.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield for each file system with a size whether it has room. Raises NotApplicable if there is none."""
    judged = [usage for usage in usages(context) if usage.answered and not usage.error and usage.total_bytes]
    if not judged:
        raise NotApplicable("no file system with a size")
    for usage in judged:
        yield judge(context, usage)


def judge(context: Context, usage: Usage) -> Finding:
    """Judge one file system by bytes and inodes used."""
    warning, critical = context.number("warning_percent"), context.number("critical_percent")
    scarce = usage.free_bytes < context.number("free_gb") * 1e9
    read_only = "ro" in usage.mount.super_options.split(",")
    bytes_state = _state(usage.used_percent, warning, critical) if scarce else OK
    inodes_state = _state(usage.inodes_percent, warning, critical)
    by_inodes = bytes_state == OK and inodes_state != OK
    value = round(usage.inodes_percent if by_inodes else usage.used_percent, 1)
    state = inodes_state if by_inodes else bytes_state
    where, unit = usage.mount.mount_point, "% of inodes" if by_inodes else "%"
    if state == OK or read_only:
        return context.ok("statvfs", value, instance=where, unit=unit)
    return context.bad(
        state, "statvfs", value, unit=unit, instance=where, expected=f"at most {warning:g} % used",
        why=f"{usage.free_bytes / 1e9:.1f} GB left" if not by_inodes else "no room for more files",
        action="Delete old checkpoints, caches and logs, or enlarge it.",
    )  # fmt: skip


def _state(percent: float, warning: float, critical: float) -> str:
    """State of a percentage: critical or warning above these limits, else ok."""
    return CRITICAL if percent > critical else WARNING if percent > warning else OK
