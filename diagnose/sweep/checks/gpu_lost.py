"""All GPUs are there.

Compares NVIDIA GPUs on the PCI bus, those that the driver lists, those that answer NVML, and the most that an earlier sweep saw. A
GPU that is missing or does not answer is critical. The setting `count` says how many there must be.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import loaded, name_of, on_bus, reading

ID = "gpu.lost"
SETTINGS = {"count": 0.0}
_ACTION = "Drain the host and power-cycle it; inspect the GPU (seating, power) if it repeats."


def run(context: Context) -> Iterator[Finding]:
    before = _number(context.recall("count"))
    expected = int(context.number("count")) or before
    listed = on_bus(context)
    if not loaded(context) and not expected:
        raise NotApplicable("no NVIDIA driver is loaded here")
    found = reading(context)
    if found.absent and loaded(context):
        raise Unreadable(found.absent, "Install the NVML library (libnvidia-ml) of the loaded driver's version.")
    lost = [gpu for gpu in found.gpus if gpu.lost]
    for gpu in lost:
        yield context.critical("NVML", "lost", instance=name_of(gpu), expected="an answer",
                               why="the GPU does not answer the driver", action=_ACTION)  # fmt: skip
    answering = len(found.gpus) - len(lost)
    expected = max(expected, len(listed))
    context.keep("count", f"{max(before, answering)}")
    if answering < expected:
        silent = sorted(set(listed) - {_short(gpu.bus or "") for gpu in found.gpus if not gpu.lost})
        yield context.critical(
            "NVML, /sys/bus/pci", float(answering), unit="GPUs", expected=f"{expected} GPUs",
            why=f"missing: {', '.join(silent)}" if silent else "an earlier sweep, or the setting, has more", action=_ACTION,
        )  # fmt: skip
    elif not lost:
        yield context.ok("NVML, /sys/bus/pci", float(answering), unit="GPUs")


def _short(bus: str) -> str:
    """NVML writes 00000000:3b:00.0, /sys writes 0000:3b:00.0."""
    domain, _, rest = bus.partition(":")
    return f"{domain[-4:]}:{rest}"


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0
