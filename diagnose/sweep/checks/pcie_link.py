"""PCIe links run at their full speed and width.

Reads current_link_speed/width and max_link_speed/width of the device and of the port above it under /sys/bus/pci; the
lower maximum is what is expected. A narrower or slower link moves data slower by the same factor: a badly seated card, a
bad riser or a port that trained down. Below half of the expected bandwidth it is critical. A GPU that idles lowers its
speed on purpose, so for GPUs only the width is judged. A link that was faster in an earlier sweep says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.pci.devices import PciDevice, PciLink, read_pci

ID = "pcie.link"
SETTINGS = {"critical_percent": 49.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per GPU, NIC and NVMe drive: whether its PCIe link has full width and speed.

    Raises NotApplicable without such devices.
    """
    devices = context.shared.get("pci", lambda: read_pci(context.root))
    judged = [device for device in devices if device.kind and device.link.width and device.able.width]
    if not judged:
        raise NotApplicable("no GPU, NIC or NVMe drive with a PCIe link")
    for device in judged:
        yield _judge(context, device)


def _judge(context: Context, device: PciDevice) -> Finding:
    """Judge one device's PCIe link by its share of the possible bandwidth; store what it is now.

    For a GPU only the width counts, as idle ones lower their speed.
    """
    read, now = f"/sys/bus/pci/devices/{device.address}/current_link_*", words(device.link)
    ratio = (device.link.width or 1) / (device.able.width or 1)
    if device.kind != "gpu" and device.link.speed_gts and device.able.speed_gts:
        ratio *= device.link.speed_gts / device.able.speed_gts
    before = context.recall(device.address)
    context.keep(device.address, now if ratio >= 1 or before is None else before)
    if ratio >= 1:
        return context.ok(read, now, instance=device.address, expected=words(device.able))
    earlier = f"; it was {before} before" if before and before != now else ""
    return context.bad(
        CRITICAL if ratio * 100 < context.number("critical_percent") else WARNING,
        read,
        now,
        instance=device.address,
        expected=words(device.able),
        why=f"the {device.kind} has {ratio * 100:.0f} % of its bandwidth{earlier}",
        action="Reseat the card or riser, check the slot's bifurcation in the BIOS; replace if it repeats.",
    )


def words(link: PciLink) -> str:
    """Format a link as '16 GT/s x8'."""
    return f"{link.speed_gts:g} GT/s x{link.width}" if link.speed_gts else f"x{link.width}"
