"""The kernel's log tells of no trouble.

Lockups, stalls, hung tasks, panics, full tables, unhappy NICs and file servers. Reads /dev/kmsg (needs CAP_SYSLOG).
What the kernel itself survives only by a reboot (lockups, oopses) is critical until then; everything else is reported
for `hours`. Kinds take turns, for users choose names in some of them (hung tasks), and could push others out of a list that is cut.
Xids are gpu.xid's, I/O errors disk.errors', machine checks cpu.mce's, kills mem.oom's.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL
from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.kernel_events import (
    OTHER,
    grouped,
    kernel_log,
    logged_events,
    recent,
    unix_time,
)
from rankscope.probes.host.fair import group_by, interleave

ID = "os.kmsg"
SETTINGS = {"hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield troubles in the kernel's log by kind and instance, warnings only of the last `hours`; ok if there are none.

    Raises Unreadable.
    """
    lines = len(kernel_log(context))
    found = [
        event
        for event in logged_events(context)
        if event.family == OTHER and (event.state == CRITICAL or recent(context, event.time_s, context.number("hours")))
    ]
    for (name, instance), events in interleave(group_by(grouped(found).items(), lambda group: group[0][0])):
        yield context.bad(
            events[-1].state, "/dev/kmsg", float(len(events)), unit="lines", instance=f"{name} {instance}".strip(),
            expected="none", why=events[-1].text, action=events[-1].action, since_s=unix_time(context, events[0].time_s),
        )  # fmt: skip
    if not found:
        yield context.ok("/dev/kmsg", float(lines), f"{lines} lines read", unit="lines")
