"""No GPU asks to be reset.

Reads the driver's own recommendation from NVML (field GPU_RECOVERY_ACTION, driver 565 and later): none, reset the GPU, reboot
the host, drain. Cheap and decisive: the driver has weighed all errors.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import fallen_silent, name_of, telling
from rankscope.probes.gpu.nvml import RECOVERY_ACTIONS

ID = "gpu.recovery"
SETTINGS: dict[str, float] = {}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per GPU: critical if the driver recommends to reset it, to reboot or to drain, else ok.

    Raises NotApplicable if the driver recommends nothing at all (before 565).
    """
    found = telling(
        context,
        lambda gpu: gpu.recovery_action is not None,
        "this driver recommends nothing (before 565)",
    )
    yield from fallen_silent(context, found, "what the driver recommends")
    for gpu in found:
        action = gpu.recovery_action or 0
        words = RECOVERY_ACTIONS[action] if 0 <= action < len(RECOVERY_ACTIONS) else f"action {action}"
        if action:
            yield context.critical("NVML", words, instance=name_of(gpu), expected="none",
                                   why="the driver wants the GPU to be recovered", action=f"Drain the host, then: {words}.")  # fmt: skip
        else:
            yield context.ok("NVML", "none", instance=name_of(gpu))
