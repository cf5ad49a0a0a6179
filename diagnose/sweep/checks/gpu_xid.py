"""The NVIDIA driver logged no Xid.

Reads Xids from the kernel's log. Those that only a reset or reboot cures are critical until the host was rebooted; warnings are
reported for `hours`. What user code can cause on its own channel (13, 31, 32, 43, 45, 65, 68, 69) is a warning, for whoever may use
a GPU can bring it about; so is what spoils one application alone (94). `ignore` takes GPUs by bus address.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import loaded
from rankscope.diagnose.sweep.readings.kernel_events import kernel_log, recent, unix_time
from rankscope.diagnose.xids import meaning
from rankscope.probes.gpu.xid import LoggedXid, logged_xids

ID = "gpu.xid"
SETTINGS = {"hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield the Xids in the kernel's log by GPU and number, warnings only of the last `hours`; ok if there are none.

    Raises NotApplicable without the driver, Unreadable without the log.
    """
    if not loaded(context):
        raise NotApplicable("no NVIDIA driver is loaded here")
    groups: dict[tuple[str, int], list[LoggedXid]] = {}
    for xid in logged_xids(kernel_log(context)):
        if meaning(xid.number)[1] == CRITICAL or recent(context, xid.time_s, context.number("hours")):
            groups.setdefault((xid.bus, xid.number), []).append(xid)
    for (bus, number), found in groups.items():
        what, state, action = meaning(number)
        yield context.bad(
            state, "/dev/kmsg", float(len(found)), unit=f"times Xid {number}", instance=bus, expected="none",
            why=f"Xid {number}: {what}", action=action, since_s=unix_time(context, found[0].time_s),
        )  # fmt: skip
    if not groups:
        yield context.ok("/dev/kmsg", 0.0, unit="Xids")
