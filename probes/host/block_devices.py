"""How a block device is written in a window, and its number read back: by it a file call is joined with the disk below it.

A mount is `/data (ext4 254:1)`, a disk `vda1 254:1`, a throttle `254:0 read`. Numbers, because a process does not see the name of the
disk under a mount, and a name may be another disk's on the next host.
"""

from __future__ import annotations

import re

from rankscope.probes.host.mounts import Mount

_NUMBER = re.compile(r"(?<![\w:])(\d{1,4}:\d{1,7})(?![\w:])")
_MOUNT_MOST = 160  # characters of a mount point: what is longer would leave no room for the number


def mount_words(mount: Mount | None, major: int, minor: int) -> str:
    """'/data (ext4 254:1)'; 'device 254:1' where it is not mounted in the view of the process."""
    if mount is None:
        return f"device {major}:{minor}"
    return f"{mount.mount_point[:_MOUNT_MOST]} ({mount.fs_type[:20]} {major}:{minor})"


def disk_words(name: str, major: int, minor: int) -> str:
    """'vda1 254:1'."""
    return f"{name} {major}:{minor}"


def number_in(text: str) -> str:
    """'254:1': the last device number in such words; '' where there is none."""
    found = _NUMBER.findall(text)
    return found[-1] if found else ""
