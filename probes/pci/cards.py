"""State of a card whose port or device is missing: who uses it, and whether it answers on the bus.

In: /sys/bus/pci/devices. `address` is that of a whole function, '0000:3b:00.0'.
"""

from __future__ import annotations

import os
from pathlib import Path

from rankscope.probes.host.procfs import read_file

# drivers that pass a card to a virtual machine or a program
_GIVEN_AWAY = ("vfio", "pci-stub", "uio", "igb_uio")


def driver_of(root: Path, address: str) -> str:
    """Return the name of a card's driver; '' where it has none."""
    try:
        return os.path.basename(os.readlink(f"{_folder(root, address)}/driver"))  # noqa: PTH115, PTH119
    except OSError:
        return ""


def is_given_away(root: Path, address: str) -> bool:
    """Tell whether the card is passed to a virtual machine or a program."""
    return driver_of(root, address).startswith(_GIVEN_AWAY)


def is_mute(root: Path, address: str) -> bool:
    """Tell whether the bus lists the card but it does not answer: its configuration reads as all
    ones.
    """
    try:
        return read_file(f"{_folder(root, address)}/config", 4)[:2] == b"\xff\xff"
    except OSError:
        return False


def is_well_elsewhere(root: Path, address: str, kind: str) -> bool:
    """Tell whether a missing device of class `kind` ('infiniband', 'net') is no fault.

    True where it is in a virtual machine or a pod, or has another name; false while a driver is
    being reloaded.
    """
    if is_given_away(root, address):
        return True
    return os.path.isdir(f"{_folder(root, address)}/{kind}") and not is_mute(root, address)  # noqa: PTH112


def _folder(root: Path, address: str) -> str:
    return f"{str(root).rstrip('/')}/sys/bus/pci/devices/{address}"
