"""Format mounts and disks as text with their device number, and find that number in the text again.

A window joins file calls with disks by it. A mount is `/data (ext4 254:1)`, a disk `vda1 254:1`, a
throttle `254:0 read`. Numbers, because a process does not see the name of the disk under a mount,
and a name may be another disk's on the next host.
"""

from __future__ import annotations

import re

from rankscope.probes.host.mounts import Mount

_NUMBER = re.compile(r"(?<![\w:])(\d{1,4}:\d{1,7})(?![\w:])")
_MOUNT_MOST = 160  # characters of a mount point: a longer one would leave no room for the number


def mount_words(mount: Mount | None, major: int, minor: int) -> str:
    """Format a mount as '/data (ext4 254:1)'; 'device 254:1' where the process's view has no mount
    of it.
    """
    if mount is None:
        return f"device {major}:{minor}"
    return f"{mount.mount_point[:_MOUNT_MOST]} ({mount.fs_type[:20]} {major}:{minor})"


def disk_words(name: str, major: int, minor: int) -> str:
    """Format a disk as 'vda1 254:1'."""
    return f"{name} {major}:{minor}"


def number_in(text: str) -> str:
    """Return the last device number in a text, such as '254:1'; '' where there is none."""
    found = _NUMBER.findall(text)
    return found[-1] if found else ""
