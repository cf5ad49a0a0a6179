"""GPU memory has no errors.

Reads ECC counters from NVML; judged by growth since the last sweep, and reported for `hours`. An uncorrected error is critical:
the job that met it has died or computes with wrong numbers. Corrected errors are a warning above `corrected_per_hour`. ECC
switched off on a GPU whose siblings have it on is a warning. A count that could be read earlier and cannot now is unknown,
whether or not the GPU says that its ECC is on.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import gpus, name_of

ID = "gpu.ecc"
SETTINGS = {"corrected_per_hour": 100.0, "hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per GPU with ECC: new uncorrected errors critical, many corrected ones or ECC off a warning.

    Raises NotApplicable without such a GPU.
    """
    found = gpus(context)
    some_on, judged = any(gpu.ecc_enabled for gpu in found), False
    for gpu in found:
        name = name_of(gpu)
        if gpu.ecc_enabled is False:
            judged = True
            if some_on:
                yield context.warning("NVML", "off", instance=name, expected="on, as on its siblings", why="ECC is off",
                                      action="nvidia-smi -e 1, then reset the GPU.")  # fmt: skip
            else:
                yield context.ok("NVML", "off", instance=name)
            continue
        # Volatile counts restart with every driver load.
        lost = context.grown(f"{gpu.uuid}.uncorrected", gpu.ecc_uncorrected)
        corrected = context.grown(f"{gpu.uuid}.corrected", gpu.ecc_corrected)
        if gpu.ecc_enabled is None and gpu.ecc_uncorrected is None and lost.first:
            continue  # a GPU without ECC
        judged = True
        if lost.amount:
            yield context.critical(
                "NVML", lost.amount, unit="uncorrected errors", instance=name, expected="none since the last sweep",
                why="GPU memory lost data", action="Drain the host and reset the GPU; inspect it if it repeats.",
                lasts=True,
            )  # fmt: skip
        elif gpu.ecc_uncorrected is None and not lost.first:
            yield context.unknown("NVML", "its uncorrected errors cannot be read now", instance=name)
        else:
            yield context.judged(
                round(corrected.per_hour, 1), context.number("corrected_per_hour"), float("inf"), "NVML", instance=name,
                unit="errors/h", what="corrected errors", why="the memory corrects many errors; uncorrected ones follow",
                action="Have the GPU inspected at the next chance.", lasts=True,
            )  # fmt: skip
    if not judged:
        raise NotApplicable("no GPU with ECC")
