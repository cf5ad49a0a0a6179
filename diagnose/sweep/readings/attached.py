"""Block devices that a user without root may have attached, with any damage on them: whether a device is one, or lies upon one.

Through udisks a user attaches a loop device with a file of theirs, unlocks an encrypted disk in it (dm-N), and a RAID array in it may be
put together by itself (mdN). What lies upon such a device is the user's. So is what the log tells of a mapped device that is gone: nobody
can say any more what it was.

In: /sys/class/block/NAME/slaves, /sys/dev/block/MAJOR:MINOR/slaves, /sys/class/block/dm-N/dm/name.
"""

from __future__ import annotations

import re

from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.readings.trees import names
from rankscope.probes.host.mounts import Mount

_ATTACHED = re.compile(r"(?:loop|sr|fd|zram|nbd|rbd|ublkb)\d+(?:p\d+)?")
_STACKED = re.compile(r"(?:dm-|md).*")
_PARTITION = re.compile(r"p\d+$")  # of an array: md0p1
_MAX_UPON = 4  # devices one upon the other
_MAX_BESIDE = 256  # devices of one layer


def kernel_names(context: Context, mount: Mount) -> tuple[str, ...]:
    """How the kernel's log and /sys may call the device of a mount."""
    folder, _, device = mount.source.rpartition("/")
    if not folder.startswith("/dev"):
        return ()
    if mount.major:
        found = context.path("sys/dev/block", f"{mount.major}:{mount.minor}").resolve().name
    else:  # btrfs has a number of its own
        found = next((name for name in _mapped(context) if _map_name(context, name) == device), "")
    return (device, found) if found else (device,)


def mount_is_attached(context: Context, mount: Mount) -> bool:
    """Whether a mount is of such a device."""
    if not mount.source.startswith("/dev/"):
        return False
    upon = names(context, "sys/dev/block", f"{mount.major}:{mount.minor}", "slaves") if mount.major else []
    return _any_attached(context, [*kernel_names(context, mount), *upon])


def may_be_attached(context: Context, device: str) -> bool:
    """Whether a device that the log names is one, or was: by the name that the kernel has for it."""
    if _STACKED.fullmatch(device) and not context.path("sys/class/block", device).exists():
        return True
    return _any_attached(context, [device])


def _any_attached(context: Context, devices: list[str]) -> bool:
    for _ in range(_MAX_UPON):
        if any(_ATTACHED.fullmatch(name) for name in devices):
            return True
        devices = [deeper for name in devices[:_MAX_BESIDE] for deeper in _upon(context, name)]
    return any(_ATTACHED.fullmatch(name) for name in devices)


def _upon(context: Context, device: str) -> list[str]:
    whole = _PARTITION.sub("", device) if _STACKED.fullmatch(device) else device
    return names(context, "sys/class/block", whole, "slaves")


def _mapped(context: Context) -> list[str]:
    return [name for name in names(context, "sys/class/block") if name.startswith("dm-")]


def _map_name(context: Context, device: str) -> str | None:
    return context.text("sys/class/block", device, "dm/name")
