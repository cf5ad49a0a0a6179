"""NVIDIA GPUs of this host, read once per sweep, or the reason why GPU checks do not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.gpu.nvml import Gpu, NvmlReading, read_gpus
from rankscope.probes.pci.devices import VENDOR_NVIDIA, read_pci


def reading(context: Context) -> NvmlReading:
    """NVML's reading, or why there is none; the library is loaded only if the driver is."""
    if not loaded(context):
        return NvmlReading(absent="the NVIDIA driver is not loaded")
    return context.shared.get("nvml", lambda: read_gpus(context.root))


def loaded(context: Context) -> bool:
    """Whether the NVIDIA driver is loaded."""
    return context.path("proc/driver/nvidia/version").exists()


def on_bus(context: Context) -> list[str]:
    """PCI addresses of NVIDIA GPUs with the nvidia driver or none (not those of virtual machines)."""
    devices = context.shared.get("pci", lambda: read_pci(context.root))
    return [
        one.address
        for one in devices
        if one.vendor == VENDOR_NVIDIA and one.kind == "gpu" and one.driver in ("nvidia", "")
    ]


def gpus(context: Context) -> tuple[Gpu, ...]:
    """GPUs that answer.

    Raises NotApplicable without the NVIDIA driver, Unreadable if NVML does not work.
    """
    if not loaded(context):
        raise NotApplicable("no NVIDIA driver is loaded here")
    found = reading(context)
    if found.absent:
        raise Unreadable(found.absent, "Install the NVML library (libnvidia-ml) of the loaded driver's version.")
    return tuple(gpu for gpu in found.gpus if not gpu.lost)


def telling(context: Context, tells: Callable[[Gpu], bool], nobody: str) -> tuple[Gpu, ...]:
    """GPUs that answer and for which `tells` holds.

    Raises NotApplicable with the text `nobody` if there are none.
    """
    found = tuple(gpu for gpu in gpus(context) if tells(gpu))
    if not found:
        raise NotApplicable(nobody)
    return found


def fallen_silent(context: Context, told: tuple[Gpu, ...], what: str) -> Iterator[Finding]:
    """Yield UNKNOWN for GPUs that no longer report a value, so that they do not pass as healthy.

    `told`: GPUs that report it now; `what`: the value's name.
    """
    now = {gpu.uuid for gpu in told}
    for gpu in gpus(context):
        key = f"tells {gpu.uuid}"
        if gpu.uuid in now:
            context.tells(key)
        elif context.told_before(key):
            yield context.unknown("NVML", f"{what} cannot be read now", instance=name_of(gpu))


def name_of(gpu: Gpu) -> str:
    """A GPU's name, 'gpu2'."""
    return f"gpu{gpu.index}"
