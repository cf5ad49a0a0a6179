"""NVLinks transfer without errors.

Reads replay, recovery and CRC counters of each link from NVML; judged by growth per hour since the last sweep, and
reported for `hours`. Replays cost
bandwidth; many of them come before a link fails (Xid 74).
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import gpus, name_of

ID = "nvlink.errors"
SETTINGS = {"per_hour": 100.0, "hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield the hourly rate of errors of each NVLink since the last sweep: a warning above the limit, else ok.

    Raises NotApplicable if no link counts errors.
    """
    found = [(gpu, link) for gpu in gpus(context) for link in gpu.links if link.errors is not None]
    if not found:
        raise NotApplicable("no NVLink that counts errors")
    for gpu, link in found:
        grown = context.grown(f"{gpu.uuid}.{link.link}", link.errors or 0)
        yield context.judged(
            round(grown.per_hour, 1), context.number("per_hour"), float("inf"), "NVML", unit="errors/h",
            instance=f"{name_of(gpu)} link {link.link}", what="errors", why="transfers are repeated",
            action="Reset the GPU when the job is over; check bridge or switch if it repeats.",
            lasts=True,
        )  # fmt: skip
