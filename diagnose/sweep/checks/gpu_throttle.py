"""GPUs are not slowed down by heat or power.

Reads the reasons for lowered clocks, temperatures and power limits from NVML. Hardware slowdown, thermal slowdown and power
brake are critical (the GPU runs at a fraction of its speed); software thermal slowdown, and a power limit below `power_percent`
of the default, are warnings. The software power cap alone is normal under full load.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import fallen_silent, name_of, telling
from rankscope.probes.gpu.nvml import Gpu

ID = "gpu.throttle"
SETTINGS = {"power_percent": 95.0}
_HARDWARE = {0x08: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
_SOFTWARE_THERMAL = 0x20


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per GPU: whether it is slowed down by heat or power; unknown if it stopped telling.

    Raises NotApplicable if no GPU tells why its clocks are low.
    """
    found = telling(
        context,
        lambda gpu: gpu.throttle_reasons is not None or gpu.power_limit_w is not None,
        "no GPU tells why its clocks are low",
    )
    silent = list(
        fallen_silent(
            context, tuple(gpu for gpu in found if gpu.throttle_reasons is not None), "why its clocks are low"
        )
    )
    yield from silent
    unknown = {one.instance for one in silent}
    for gpu in found:
        if name_of(gpu) not in unknown:
            yield _judge(context, gpu)


def _judge(context: Context, gpu: Gpu) -> Finding:
    """Judge one GPU: slowed down by hardware critical; by software for heat, or a lowered power limit, a warning."""
    reasons, name = gpu.throttle_reasons or 0, name_of(gpu)
    hot = f" at {gpu.temperature_c} °C" if gpu.temperature_c is not None else ""
    hardware = [word for bit, word in _HARDWARE.items() if reasons & bit]
    if hardware:
        return context.critical(
            "NVML", ", ".join(hardware), instance=name, expected="none", why=f"the GPU slowed itself down{hot}",
            action="Check airflow, fans and power supply; drain the host until then.",
        )  # fmt: skip
    if reasons & _SOFTWARE_THERMAL:
        return context.warning(
            "NVML", "software thermal slowdown", instance=name, expected="none", why=f"the GPU is too hot{hot}",
            action="Check airflow and inlet temperature.",
        )  # fmt: skip
    limit, default = gpu.power_limit_w, gpu.power_default_w
    if limit and default and limit * 100 < default * context.number("power_percent"):
        return context.warning(
            "NVML", limit, unit="W", instance=name, expected=f"{default:g} W, its default", why="the power limit was lowered",
            action=f"nvidia-smi -i {gpu.index} -pl {default:g}, or `ignore` it if it is on purpose.",
        )  # fmt: skip
    return context.ok("NVML", None if gpu.temperature_c is None else float(gpu.temperature_c), instance=name, unit="°C")
