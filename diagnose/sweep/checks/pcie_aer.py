"""PCIe error counters (AER) do not grow.

Reads aer_dev_correctable, aer_dev_nonfatal and aer_dev_fatal of every PCI device. Correctable errors are repeated by
hardware: few do no harm, many cost bandwidth and come before a link fails. Judged by growth since the last sweep, per
hour. Uncorrected (nonfatal) errors are a warning, fatal ones critical, however few.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.pci.devices import read_pci

ID = "pcie.aer"
SETTINGS = {"correctable_per_hour": 100.0}


def run(context: Context) -> Iterator[Finding]:
    devices = [device for device in context.shared.get("pci", lambda: read_pci(context.root)) if device.aer]
    if not devices:
        raise NotApplicable("no PCI device counts errors (no AER)")
    for device in devices:
        assert device.aer is not None
        growths = {
            name: context.grown(f"{device.address}.{name}", value)
            for name, value in (
                ("fatal", device.aer.fatal),
                ("nonfatal", device.aer.nonfatal),
                ("correctable", device.aer.correctable),
            )
        }
        read, action = (
            f"/sys/bus/pci/devices/{device.address}/aer_dev_*",
            "Reseat the card or riser; replace what repeats.",
        )
        if growths["fatal"].amount or growths["nonfatal"].amount:
            kind = "fatal" if growths["fatal"].amount else "nonfatal"
            yield context.bad(
                CRITICAL if kind == "fatal" else WARNING,
                read,
                growths[kind].amount,
                unit="errors",
                instance=device.address,
                expected="none since the last sweep",
                why=f"{kind} PCIe errors: transfers of this device failed",
                action=action,
            )
        elif growths["correctable"].per_hour > context.number("correctable_per_hour"):
            yield context.warning(
                read,
                round(growths["correctable"].per_hour, 1),
                unit="errors/h",
                instance=device.address,
                expected=f"at most {context.number('correctable_per_hour'):g} correctable errors an hour",
                why="transfers are repeated: bandwidth is lost, and the link may fail",
                action=action,
            )
        else:
            yield context.ok(read, round(growths["correctable"].per_hour, 1), unit="errors/h", instance=device.address)
