"""CPUs are not slowed down because they are too hot.

Reads thermal_throttle/*_throttle_count of every CPU; judged by growth since the last sweep, and reported for `hours`;
the worst CPU counts. A
throttled CPU feeds its GPUs late, and every rank waits. Absent in virtual machines.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.trees import cpu_folders

ID = "cpu.throttle"
SETTINGS = {"per_hour": 10.0, "hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield the hourly rate of thermal throttling of the worst CPU: a warning above the limit, else ok.

    Raises NotApplicable if no CPU counts it.
    """
    read, counted, hottest, where = "/sys/devices/system/cpu/cpu*/thermal_throttle", False, 0.0, ""
    for cpu in cpu_folders(context):
        for kind in ("core", "package"):
            count = context.integer("sys/devices/system/cpu", cpu, "thermal_throttle", f"{kind}_throttle_count")
            if count is None:
                continue
            counted = True
            rate = context.grown(f"{cpu}.{kind}", count).per_hour
            if rate > hottest:
                hottest, where = rate, f"{cpu} ({kind})"
    if not counted:
        raise NotApplicable("these CPUs do not count throttling (usual in a virtual machine)")
    yield context.judged(
        round(hottest, 1), context.number("per_hour"), float("inf"), read, what="throttling events", unit="events/h",
        why=f"{where} was slowed down because of its temperature", action="Check fans, airflow and inlet temperature.",
        lasts=True,
    )  # fmt: skip
