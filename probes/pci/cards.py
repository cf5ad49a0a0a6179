"""What became of a card whose port or device is not seen any more: who has it, and whether it answers on the bus.

In: /sys/bus/pci/devices. `address` is that of a whole function, '0000:3b:00.0'.
"""

from __future__ import annotations

import os
from pathlib import Path

from rankscope.probes.host.procfs import read_file

_GIVEN_AWAY = ("vfio", "pci-stub", "uio", "igb_uio")  # drivers that hand a card to a virtual machine or a program


def driver_of(root: Path, address: str) -> str:
    """'' where it has none."""
    try:
        return os.path.basename(os.readlink(f"{_folder(root, address)}/driver"))  # noqa: PTH115, PTH119
    except OSError:
        return ""


def is_given_away(root: Path, address: str) -> bool:
    """Whether a virtual machine or a program was given this card."""
    return driver_of(root, address).startswith(_GIVEN_AWAY)


def is_mute(root: Path, address: str) -> bool:
    """Whether the bus lists it and it does not answer: then its configuration reads as all ones."""
    try:
        return read_file(f"{_folder(root, address)}/config", 4)[:2] == b"\xff\xff"
    except OSError:
        return False


def is_well_elsewhere(root: Path, address: str, kind: str) -> bool:
    """Whether it is no fault that its device of a class ('infiniband', 'net') is not seen: it is in a virtual machine or a pod, or under
    another name. While a driver is loaded anew it is none of these."""
    if is_given_away(root, address):
        return True
    return os.path.isdir(f"{_folder(root, address)}/{kind}") and not is_mute(root, address)  # noqa: PTH112


def _folder(root: Path, address: str) -> str:
    return f"{str(root).rstrip('/')}/sys/bus/pci/devices/{address}"
