"""All GPUs are there.

Compares NVIDIA GPUs on the PCI bus, those that the driver lists, those that answer NVML, and the most that an earlier sweep saw. A
GPU that is missing or does not answer is critical; one that was given to a virtual machine (vfio-pci) since is not missed. One that the
driver lists, but says nothing of, is unknown. A driver that is not loaded any more is loaded anew, maybe: a warning, and critical when an
earlier sweep missed it at least `critical_s` ago. The setting `count` says how many there must be.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import loaded, name_of, on_bus, reading
from rankscope.diagnose.sweep.readings.hanging import hangs_for_s
from rankscope.probes.pci.cards import is_given_away

_SEEN = "seen "
ID = "gpu.lost"
SETTINGS = {"count": 0.0, "critical_s": 120.0}
_ACTION = "Drain the host and power-cycle it; inspect the GPU (seating, power) if it repeats."


def run(context: Context) -> Iterator[Finding]:
    """Yield GPUs that do not answer, say nothing, or are missing; ok with their number if there are none.

    Raises NotApplicable without the driver, Unreadable without NVML.
    """
    known, given_away = _known(context)
    before = max(0, _number(context.recall("count")) - given_away)
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
    for gpu in found.gpus:
        if gpu.uuid is None and not gpu.lost:
            yield context.unknown("NVML", "the driver lists it, and says nothing of it now", instance=name_of(gpu))
        elif gpu.bus and not gpu.lost:
            known.add(_short(gpu.bus))
    for address in known:
        context.keep(_SEEN + address, "answered")
    answering = len(found.gpus) - len(lost)
    expected = max(expected, len(listed))
    context.keep("count", f"{max(before, answering)}")
    if answering < expected:
        silent = sorted(set(listed) - {_short(gpu.bus or "") for gpu in found.gpus if not gpu.lost})
        why = f"missing: {', '.join(silent)}" if silent else "an earlier sweep, or the setting, has more"
        away_s = None if loaded(context) else hangs_for_s(context, "driver is not loaded") or 0.0
        yield context.bad(
            CRITICAL if away_s is None or away_s >= context.number("critical_s") else WARNING,
            "NVML, /sys/bus/pci", float(answering), unit="GPUs", expected=f"{expected} GPUs",
            why=why if away_s is None else f"the NVIDIA driver is not loaded; {why}",
            action=_ACTION if away_s is None else "Load it (modprobe nvidia); why it does not load is in the kernel's log.",
        )  # fmt: skip
    elif not any(gpu.lost or gpu.uuid is None for gpu in found.gpus):
        yield context.ok("NVML, /sys/bus/pci", float(answering), unit="GPUs")


def _known(context: Context) -> tuple[set[str], int]:
    """PCI addresses of GPUs that answered earlier and are still the host's; number of those given to virtual machines."""
    seen = {key.removeprefix(_SEEN) for check, key in context.earlier.words if check == ID and key.startswith(_SEEN)}
    given_away = {address for address in seen if is_given_away(context.root, address)}
    return seen - given_away, len(given_away)


def _short(bus: str) -> str:
    """Convert NVML's address 00000000:3b:00.0 to that of /sys, 0000:3b:00.0."""
    domain, _, rest = bus.partition(":")
    return f"{domain[-4:]}:{rest}"


def _number(text: str | None) -> int:
    """Parse a stored number; 0 for anything else."""
    return int(text) if text and text.isascii() and text.isdigit() else 0
