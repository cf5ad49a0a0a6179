"""Disks, NVMe controllers and RAID arrays have no errors.

Reads ioerr_cnt of SCSI disks (growth since the last sweep), the state of NVMe controllers, md/degraded of RAID arrays, and I/O
errors in the kernel's log; growth and the log's lines are reported for `hours`. A controller that is reset, connects anew (over
a network) or is taken out is a warning, and critical when an earlier sweep saw it so at least `critical_s` ago; a dead one is.
What the log tells of a disk that a user may have attached (loop devices, and what is mapped to them) is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.hanging import hangs_for_s
from rankscope.diagnose.sweep.readings.kernel_events import IO, grouped, logged_events, recent, unix_time
from rankscope.diagnose.sweep.readings.trees import names

ID = "disk.errors"
SETTINGS = {"hours": 24.0, "scsi_errors": 10.0, "critical_s": 120.0}
_ACTION = "Check the device (smartctl, nvme smart-log) and replace it if it repeats."


def run(context: Context) -> Iterator[Finding]:
    """Yield errors of SCSI disks, NVMe controllers, RAID arrays and of the kernel's log; ok if there are none.

    Raises Unreadable if the log cannot be read and nothing else is wrong.
    """
    bad = [*_scsi(context), *_nvme(context), *_raid(context)]
    yield from bad
    try:
        errors = [event for event in logged_events(context) if event.family == IO]
    except Unreadable:
        if bad:
            return
        raise
    errors = [event for event in errors if recent(context, event.time_s, context.number("hours"))]
    for (name, device), events in grouped(errors).items():
        yield context.bad(
            events[-1].state, "/dev/kmsg", float(len(events)), unit=f"{name} lines", instance=device, expected="none",
            why=events[-1].text, action=events[-1].action, since_s=unix_time(context, events[0].time_s),
        )  # fmt: skip
    if not bad and not errors:
        yield context.ok("/sys/block, /sys/class/nvme, /dev/kmsg", 0.0, unit="errors")


def _scsi(context: Context) -> Iterator[Finding]:
    """Yield a warning for each SCSI disk whose error count grew by more than the setting allows."""
    for disk in names(context, "sys/block"):
        text = context.text("sys/block", disk, "device/ioerr_cnt")
        try:
            count = int(text or "", 16)
        except ValueError:
            continue
        # Disks count unknown commands as errors, and get some when probed: allow a few.
        grown = context.grown(disk, count)
        if grown.amount > context.number("scsi_errors"):
            yield context.warning(
                f"/sys/block/{disk}/device/ioerr_cnt", grown.amount, unit="errors", instance=disk,
                expected=f"at most {context.number('scsi_errors'):g} since the last sweep", why="commands failed", action=_ACTION,
                lasts=True,
            )  # fmt: skip


def _nvme(context: Context) -> Iterator[Finding]:
    """Yield each NVMe controller that is not in use: critical if dead or away for `critical_s`, else a warning."""
    for controller in names(context, "sys/class/nvme"):
        state = context.text("sys/class/nvme", controller, "state")
        if state is None or state in ("live", "new"):
            continue
        lasting_s = hangs_for_s(context, f"{controller} away")  # in any state but live
        lasts = state == "dead" or (lasting_s is not None and lasting_s >= context.number("critical_s"))
        yield context.bad(
            CRITICAL if lasts else WARNING, f"/sys/class/nvme/{controller}/state", state, instance=controller, expected="live",
            why=f"the controller does not answer{f', as {lasting_s:.0f} s ago' if lasting_s else ''}", action=_ACTION,
            since_s=None if lasting_s is None else context.now_s - lasting_s,
        )  # fmt: skip


def _raid(context: Context) -> Iterator[Finding]:
    """Yield a warning for each RAID array that lacks disks."""
    for array in names(context, "sys/block"):
        missing = context.integer("sys/block", array, "md/degraded") if array.startswith("md") else None
        if missing:
            yield context.warning(
                f"/sys/block/{array}/md/degraded", float(missing), unit="missing disks", instance=array, expected="0",
                why="the array lacks disks", action="Replace the failed disk and rebuild.",
            )  # fmt: skip
