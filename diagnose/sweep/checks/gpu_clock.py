"""GPUs may reach their full clock, and siblings the same.

Reads clock limits from NVML. An application clock below its default, or a maximum below that of a sibling of the same name, is a
warning: every rank waits for the slowest GPU. The clock of the moment is not judged: an idle GPU lowers it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import gpus, name_of

ID = "gpu.clock"
SETTINGS = {"percent": 97.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per GPU: a warning if its clock limit is below its default or a sibling's, else ok.

    Raises NotApplicable if no GPU tells its clocks.
    """
    found = [gpu for gpu in gpus(context) if gpu.sm_clock_max_mhz]
    if not found:
        raise NotApplicable("no GPU tells its clocks")
    share = context.number("percent") / 100
    for gpu in found:
        most = float(gpu.sm_clock_max_mhz or 0)
        best = float(max(other.sm_clock_max_mhz or 0 for other in found if other.name == gpu.name))
        set_to, default = gpu.sm_clock_app_mhz, gpu.sm_clock_app_default_mhz
        if set_to and default and set_to < default * share:
            yield context.warning(
                "NVML", float(set_to), unit="MHz", instance=name_of(gpu), expected=f"{default} MHz, its default",
                why="somebody lowered the application clock", action="nvidia-smi -rac",
            )  # fmt: skip
        elif most < best * share:
            yield context.warning(
                "NVML", most, unit="MHz", instance=name_of(gpu), expected=f"{best:g} MHz, as its siblings",
                why="its maximum clock is lower", action="nvidia-smi -rgc; compare VBIOS versions.",
            )  # fmt: skip
        else:
            yield context.ok("NVML", most, unit="MHz", instance=name_of(gpu))
