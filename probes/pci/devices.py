"""Read PCI devices: identity, link speed and width, errors.

In: /sys/bus/pci/devices (Documentation/ABI/testing/sysfs-bus-pci, …-devices-aer_stats). Out:
PciDevice.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, read_file

CLASS_STORAGE_NVME, CLASS_NETWORK, CLASS_DISPLAY, CLASS_ACCELERATOR, CLASS_INFINIBAND = 0x0108, 0x02, 0x03, 0x12, 0x0C06
VENDOR_NVIDIA = 0x10DE
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(r"([0-9.]+)\s*GT/s")
_PART = ".sf."
MAX_DEVICES = 8192


@dataclass(frozen=True, slots=True)
class PciLink:
    """Link speed in GT/s per lane and number of lanes; None where not reported (not PCI Express,
    asleep).
    """

    speed_gts: float | None
    width: int | None


@dataclass(frozen=True, slots=True)
class AerCounters:
    """PCIe error counts since boot; None where they cannot be read now."""

    correctable: int | None
    nonfatal: int | None
    fatal: int | None


@dataclass(frozen=True, slots=True)
class PciDevice:
    """One PCI device. `able`: the maximum that both it and the port above it support. `class_code`
    has 24 bits.
    """

    address: str
    vendor: int
    device: int
    class_code: int
    driver: str
    link: PciLink
    able: PciLink
    aer: AerCounters | None

    @property
    def kind(self) -> str:
        """Kind of the device: gpu, nic, nvme, accelerator, or '' for others."""
        base, sub = self.class_code >> 16, self.class_code >> 8
        if base == CLASS_DISPLAY:
            return "gpu"
        if base == CLASS_NETWORK or sub == CLASS_INFINIBAND:
            return "nic"
        if sub == CLASS_STORAGE_NVME:
            return "nvme"
        return "accelerator" if base == CLASS_ACCELERATOR else ""


def read_pci(root: Path = ROOT, errors: bool = True) -> tuple[PciDevice, ...]:
    """Read all PCI devices, by address; none where there is no PCI bus. Raises PermissionError.

    `errors`: read AER counters too, three files more per device.
    """
    folder = f"{str(root).rstrip('/')}/sys/bus/pci/devices"
    try:
        names = sorted(name for name in os.listdir(folder) if _ADDRESS.fullmatch(name))[:MAX_DEVICES]  # noqa: PTH208
    except FileNotFoundError:
        return ()
    return tuple(_device(folder, name, errors) for name in names)


def is_address(name: str) -> bool:
    """Tell whether `name` is an address such as '0000:3b:00.0'."""
    return _ADDRESS.fullmatch(name) is not None


def parse_speed(text: str) -> float | None:
    """Parse '16.0 GT/s PCIe' to GT/s; None for 'Unknown' and the like. Never raises."""
    match = _SPEED.match(text.strip())
    try:
        value = float(match[1]) if match else 0.0
    except ValueError:
        return None
    return value if 0 < value < 1000 else None


def parse_width(text: str) -> int | None:
    """Parse '16' to a number of lanes; None for 255 and 0, read from a device asleep or gone. Never
    raises.
    """
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 and 0 < int(text) <= 64 else None


def parse_aer(text: str) -> int:
    """Parse an aer_dev_* file to its number of errors: its total line, else the sum of its lines. Never raises."""
    total = 0
    for line in text.splitlines()[:256]:
        name, _, number = line.strip().rpartition(" ")
        if not number.isascii() or not number.isdigit() or len(number) > 19:
            continue
        if name.startswith("TOTAL_ERR"):
            return int(number)
        total += int(number)
    return total


def _device(folder: str, name: str, errors: bool) -> PciDevice:
    """Read the PCI device `name` (an address) in `folder`; with `errors` its AER counters too. Never raises."""
    path = f"{folder}/{name}"
    parent = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
    above = _able(parent) if _ADDRESS.fullmatch(os.path.basename(parent)) else PciLink(None, None)  # noqa: PTH119
    own = _able(path)
    try:
        driver = os.path.basename(os.readlink(f"{path}/driver"))  # noqa: PTH115, PTH119
    except OSError:
        driver = ""
    return PciDevice(
        address=name,
        vendor=_hexadecimal(f"{path}/vendor"),
        device=_hexadecimal(f"{path}/device"),
        class_code=_hexadecimal(f"{path}/class"),
        driver=driver,
        link=PciLink(parse_speed(_text(f"{path}/current_link_speed")), _width(f"{path}/current_link_width")),
        able=PciLink(_least(own.speed_gts, above.speed_gts), _least_width(own.width, above.width)),
        aer=_aer(path) if errors else None,
    )


def _able(path: str) -> PciLink:
    """Read the maximum link speed and width of a PCI device's folder; None where not reported."""
    return PciLink(parse_speed(_text(f"{path}/max_link_speed")), _width(f"{path}/max_link_width"))


def _aer(path: str) -> AerCounters | None:
    """Read the PCIe error counts of a device's folder; None where it has no readable AER file."""
    texts = [_text(f"{path}/aer_dev_{name}") for name in ("correctable", "nonfatal", "fatal")]
    return AerCounters(*(parse_aer(text) if text else None for text in texts)) if any(texts) else None


def _least(one: float | None, other: float | None) -> float | None:
    """Return the lesser of two speeds; `one`, be it None, where either is None."""
    return min(one, other) if one is not None and other is not None else one


def _least_width(one: int | None, other: int | None) -> int | None:
    """Return the lesser of two widths; `one`, be it None, where either is None."""
    return min(one, other) if one is not None and other is not None else one


def _width(path: str) -> int | None:
    """Read a file with a number of lanes; None where unreadable or implausible."""
    return parse_width(_text(path))


def _hexadecimal(path: str) -> int:
    """Read a file with a hexadecimal number ('0x10de'); 0 where unreadable."""
    try:
        return int(_text(path).strip() or "0", 16)
    except ValueError:
        return 0


def _text(path: str) -> str:
    """Read a file, 8 KB at most; '' where it cannot be read."""
    try:
        return read_file(path, 8192).decode("ascii", "replace")
    except OSError:
        return ""


def device_address(link: str) -> str:
    """Return the address of the nearest PCI device at or above a sysfs `device` link; '' for none.

    None: USB, virtual, absent.
    """
    parts = os.path.realpath(link).split("/")
    return next((part for part in reversed(parts) if is_address(part)), "")


def is_part(link: str) -> bool:
    """Tell whether a sysfs `device` link leads to a virtual function or sub-function.

    Such are made for a container or a virtual machine.
    """
    return _PART in os.path.basename(os.path.realpath(link)) or os.path.exists(f"{link}/physfn")  # noqa: PTH110, PTH119
