"""PCIe error counters (AER) do not grow.

Reads aer_dev_correctable, aer_dev_nonfatal and aer_dev_fatal of every PCI device. Correctable errors are repeated by hardware:
few do no harm, many cost bandwidth and come before a link fails. Judged by growth since the last sweep, per hour. Uncorrected
(nonfatal) errors are a warning, fatal ones critical, however few. All are reported for `hours`. A device that counted earlier
and does not now is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.pci.devices import AerCounters, PciDevice, read_pci

ID = "pcie.aer"
SETTINGS = {"correctable_per_hour": 100.0, "hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per PCI device with error counters; unknown if it counted earlier and does not now.

    Raises NotApplicable without any.
    """
    judged = False
    for device in context.shared.get("pci", lambda: read_pci(context.root)):
        if device.aer:
            judged = True
            yield _judge(context, device, device.aer)
        elif not context.grown(f"{device.address}.fatal", None).first:
            judged = True
            yield context.unknown(_read(device), "its errors cannot be read now", instance=device.address)
    if not judged:
        raise NotApplicable("no PCI device counts errors (no AER)")


def _read(device: PciDevice) -> str:
    """Path pattern of a device's error counters, for findings."""
    return f"/sys/bus/pci/devices/{device.address}/aer_dev_*"


def _judge(context: Context, device: PciDevice, aer: AerCounters) -> Finding:
    """Judge one device by growth of its error counters: fatal critical, nonfatal or many correctable ones a warning."""
    fatal, nonfatal, correctable = (
        context.grown(f"{device.address}.{name}", getattr(aer, name)) for name in ("fatal", "nonfatal", "correctable")
    )
    read = _read(device)
    action = "Reseat the card or riser; replace what repeats."
    if fatal.amount or nonfatal.amount:
        kind, state = ("fatal", CRITICAL) if fatal.amount else ("nonfatal", WARNING)
        return context.bad(
            state, read, fatal.amount or nonfatal.amount, unit="errors", instance=device.address,
            expected="none since the last sweep", why=f"{kind} PCIe errors: transfers of this device failed", action=action,
            lasts=True,
        )  # fmt: skip
    per_hour, most = correctable.per_hour, context.number("correctable_per_hour")
    if per_hour > most:
        return context.warning(
            read, round(per_hour, 1), unit="errors/h", instance=device.address,
            expected=f"at most {most:g} correctable errors an hour",
            why="transfers are repeated: bandwidth is lost, and the link may fail", action=action,
            lasts=True,
        )  # fmt: skip
    return context.ok(read, round(per_hour, 1), unit="errors/h", instance=device.address)
