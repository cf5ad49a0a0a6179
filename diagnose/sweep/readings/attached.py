"""Recognise block devices that an unprivileged user may have attached, with any damage on them.

Through udisks a user can attach a loop device with an own file, unlock an encrypted disk in it
(dm-N), and have a RAID array in it assembled (mdN). Anything on such a device is the user's. So is
a mapped device in the log that no longer exists, since its origin cannot be determined. In:
/sys/class/block/NAME/slaves, /sys/dev/block/MAJOR:MINOR/slaves, /sys/class/block/dm-N/dm/name.
"""

from __future__ import annotations

import re

from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.readings.trees import names
from rankscope.probes.host.mounts import Mount

_ATTACHED = re.compile(r"(?:loop|sr|fd|zram|nbd|rbd|ublkb)\d+(?:p\d+)?")
_STACKED = re.compile(r"(?:dm-|md).*")
_PARTITION = re.compile(r"p\d+$")  # partition of an array: md0p1
_MAX_UPON = 4  # layers of devices
_MAX_BESIDE = 256  # devices per layer


def kernel_names(context: Context, mount: Mount) -> tuple[str, ...]:
    """Possible names of a mount's device in the kernel log and in /sys."""
    folder, _, device = mount.source.rpartition("/")
    if not folder.startswith("/dev"):
        return ()
    if mount.major:
        found = context.path("sys/dev/block", f"{mount.major}:{mount.minor}").resolve().name
    else:  # btrfs has device numbers of its own
        found = next((name for name in _mapped(context) if _map_name(context, name) == device), "")
    return (device, found) if found else (device,)


def mount_is_attached(context: Context, mount: Mount) -> bool:
    """Whether a mount's device may have been attached by a user."""
    if not mount.source.startswith("/dev/"):
        return False
    upon = names(context, "sys/dev/block", f"{mount.major}:{mount.minor}", "slaves") if mount.major else []
    return _any_attached(context, [*kernel_names(context, mount), *upon])


def may_be_attached(context: Context, device: str) -> bool:
    """Whether a user may have attached the device with this kernel name from the log."""
    if _STACKED.fullmatch(device) and not context.path("sys/class/block", device).exists():
        return True
    return _any_attached(context, [device])


def _any_attached(context: Context, devices: list[str]) -> bool:
    """Whether one of these block devices, or one below them (up to four layers), may have been attached by a user."""
    for _ in range(_MAX_UPON):
        if any(_ATTACHED.fullmatch(name) for name in devices):
            return True
        devices = [deeper for name in devices[:_MAX_BESIDE] for deeper in _upon(context, name)]
    return any(_ATTACHED.fullmatch(name) for name in devices)


def _upon(context: Context, device: str) -> list[str]:
    """Names of the devices that a block device is made of; [] for a plain disk."""
    whole = _PARTITION.sub("", device) if _STACKED.fullmatch(device) else device
    return names(context, "sys/class/block", whole, "slaves")


def _mapped(context: Context) -> list[str]:
    """Names of all mapped devices (dm-N)."""
    return [name for name in names(context, "sys/class/block") if name.startswith("dm-")]


def _map_name(context: Context, device: str) -> str | None:
    """Name of a mapped device in /dev/mapper; None if unknown."""
    return context.text("sys/class/block", device, "dm/name")
