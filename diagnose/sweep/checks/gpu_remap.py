"""GPU memory has no bad rows left in use.

Reads remapped rows and retired pages from NVML. A failed remap is critical (no spare rows: the GPU must be replaced); a pending
one is a warning: it takes effect at the next reset of the GPU. Rows that are remapped now are a
warning for `hours`; earlier ones are history.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import fallen_silent, name_of, telling

ID = "gpu.remap"
SETTINGS = {"hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per GPU: a failed remap of memory rows is critical, a pending or a new one a warning.

    Raises NotApplicable if no GPU remaps rows or retires pages.
    """
    found = telling(
        context,
        lambda gpu: gpu.remap_failed is not None or gpu.retired_pending is not None,
        "no GPU remaps rows or retires pages",
    )
    yield from fallen_silent(context, found, "its remapped rows")
    for gpu in found:
        rows = context.grown(f"{gpu.uuid}.rows", gpu.remap_uncorrected, lifetime=True)
        if gpu.remap_failed:
            yield context.critical("NVML", "failed", instance=name_of(gpu), expected="no failed remap",
                                   why="no spare rows are left", action="Replace the GPU.")  # fmt: skip
        elif gpu.remap_pending or gpu.retired_pending:
            yield context.warning("NVML", "pending", instance=name_of(gpu), expected="nothing pending",
                                  why="bad memory stays in use until the GPU is reset",
                                  action="Reset the GPU (nvidia-smi -r) when the job is over.")  # fmt: skip
        elif rows.amount:
            yield context.warning("NVML", rows.amount, unit="rows", instance=name_of(gpu), expected="none since the last sweep",
                                  why="rows with uncorrected errors were remapped", action="Watch gpu.ecc of this GPU.",
                                  lasts=True)  # fmt: skip
        else:
            yield context.ok(
                "NVML", float(gpu.remap_uncorrected or 0), instance=name_of(gpu), unit="rows remapped ever"
            )
