"""CPUs may reach their full clock.

Reads scaling_governor, scaling_driver and scaling_max_freq of every CPU. "powersave" holds the clock at its lowest with
acpi-cpufreq and the like; intel_pstate and amd-pstate-epp raise it on demand all the same, so there it is fine. A
maximum set below the hardware's (`max_percent`) and CPUs that differ from the others are warnings too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.trees import cpu_folders

ID = "cpu.governor"
SETTINGS = {"max_percent": 90.0}
_DYNAMIC = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
_SLOW = ("powersave", "userspace")
_READ = "/sys/devices/system/cpu/cpu*/cpufreq"


def run(context: Context) -> Iterator[Finding]:
    """Yield a warning for CPUs whose governor keeps them slow, whose clock is capped, or that differ; else ok.

    Raises NotApplicable without cpufreq.
    """
    governors: Counter[str] = Counter()
    slow, capped = [], []
    for cpu in cpu_folders(context):
        base = f"sys/devices/system/cpu/{cpu}/cpufreq"
        governor = context.text(base, "scaling_governor")
        if governor is None:
            continue
        governors[governor] += 1
        if governor in _SLOW and context.text(base, "scaling_driver") not in _DYNAMIC:
            slow.append(cpu)
        most, able = context.integer(base, "scaling_max_freq"), context.integer(base, "cpuinfo_max_freq")
        if most and able and most * 100 < able * context.number("max_percent"):
            capped.append(cpu)
    if not governors:
        raise NotApplicable("no cpufreq (usual in a virtual machine)")
    value = ", ".join(f"{name} on {count}" for name, count in governors.most_common(4))
    remedy = "cpupower frequency-set -g performance"
    if slow:
        yield context.warning(
            _READ,
            value,
            expected="performance or schedutil",
            why=f"{len(slow)} CPUs stay at their lowest clock",
            action=remedy,
        )
    if capped:
        yield context.warning(
            _READ, f"{len(capped)} CPUs capped", expected="scaling_max_freq at the hardware's maximum",
            why=f"the clock of {capped[0]} and {len(capped) - 1} others is capped by software",
            action="Raise it (cpupower frequency-set -u) or find what lowered it.",
        )  # fmt: skip
    if len(governors) > 1 and not slow:
        yield context.warning(_READ, value, expected="one governor on all CPUs", why="some CPUs differ", action=remedy)
    if not slow and not capped and len(governors) == 1:
        yield context.ok(_READ, value)
