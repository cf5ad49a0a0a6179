"""No process was killed for lack of memory.

Reads oom_kill of /proc/vmstat, which counts kills of the host and of memory-limited control groups alike; judged by growth
since the last sweep, and reported for `hours`. The kernel's log says who was killed, where it can be read.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.kernel_events import OOM, logged_events
from rankscope.probes.host.cpu_memory import sample_host

ID = "mem.oom"
SETTINGS = {"hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    host = context.shared.get("host", lambda: sample_host(context.root, clocks=False))
    if host.vm is None:
        raise Unreadable("/proc/vmstat cannot be read")
    grown = context.grown("oom_kills", host.vm.oom_kills)
    if not grown.amount:
        yield context.ok("/proc/vmstat", 0.0, unit="kills")
        return
    try:
        victims = [event.instance for event in logged_events(context) if event.family == OOM][
            -int(min(grown.amount, 3)) :
        ]
    except Unreadable:
        victims = []
    yield context.warning(
        "/proc/vmstat", grown.amount, unit="kills", expected="none since the last sweep",
        why=f"killed: {', '.join(victims)}" if victims else "processes were killed for lack of memory",
        action="Give the job more memory or a higher limit, or make it use less.", lasts=True,
    )  # fmt: skip
