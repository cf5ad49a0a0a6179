"""The mounts that one process sees; find one by device or by path.

In: /proc/PID/mountinfo (its mount namespace, so a container's own view). Out: Mounts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, number, proc_path, read_file

MOUNTINFO_CAP = 8 * 1024 * 1024
_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo. `root` is the folder of the file system that appears at `mount_point`."""

    mount_id: int
    parent_id: int
    major: int
    minor: int
    root: str
    mount_point: str
    options: str
    fs_type: str
    source: str
    super_options: str


@dataclass(frozen=True, slots=True)
class Mounts:
    """The mounts of one mount namespace, in order of mounting: a later one hides an earlier one at
    the same path.
    """

    mounts: tuple[Mount, ...]

    def by_device(self, major: int, minor: int) -> Mount | None:
        """Return the mount of a device (st_dev), preferably of the whole file system; None where there is none.

        Chosen by the function `by_device`.
        """
        return by_device(self.mounts).get((major, minor))

    def by_path(self, path: str) -> Mount | None:
        """Return the mount that an absolute path lies under; None where there is none.

        Symbolic links must be resolved already. Of several, the longest mount point; of equals, the last.
        """
        best: Mount | None = None
        for mount in self.mounts:
            point = mount.mount_point
            inside = path == point or path.startswith(point if point.endswith("/") else point + "/")
            if inside and (best is None or len(point) >= len(best.mount_point)):
                best = mount
        return best


def by_device(mounts: Iterable[Mount]) -> dict[tuple[int, int], Mount]:
    """Choose one mount per device (st_dev): of the whole file system if there is one.

    Of several, the one with the shortest path; among equals the first.
    """
    found: dict[tuple[int, int], Mount] = {}
    for mount in mounts:
        known = found.setdefault((mount.major, mount.minor), mount)
        if (mount.root != "/", len(mount.mount_point)) < (known.root != "/", len(known.mount_point)):
            found[mount.major, mount.minor] = mount
    return found


def read_mounts(pid: int | str = "self", root: Path = ROOT) -> Mounts:
    """Read the mounts in the mount namespace of a process. Raises OSError."""
    return Mounts(parse_mountinfo(read_file(proc_path(root, pid, "mountinfo"), MOUNTINFO_CAP)))


def parse_mountinfo(data: bytes) -> tuple[Mount, ...]:
    """Parse mountinfo (proc_pid_mountinfo(5)); unusable lines are left out. Never raises."""
    mounts = []
    for line in data.split(b"\n"):
        fields = line.split(b" ")
        try:
            dash = fields.index(b"-", 6)
            major, _, minor = fields[2].partition(b":")
            mounts.append(
                Mount(
                    mount_id=number(fields[0]),
                    parent_id=number(fields[1]),
                    major=number(major),
                    minor=number(minor),
                    root=unescape(fields[3]),
                    mount_point=unescape(fields[4]),
                    options=unescape(fields[5]),
                    fs_type=unescape(fields[dash + 1]),
                    source=unescape(fields[dash + 2]),
                    super_options=unescape(fields[dash + 3]) if len(fields) > dash + 3 else "",
                )
            )
        except (ValueError, IndexError):
            continue
    return tuple(mounts)


def unescape(field: bytes) -> str:
    r"""Decode the kernel's octal escapes (space is \040). Never raises."""
    return _ESCAPE.sub(lambda match: bytes((int(match[1], 8) & 0xFF,)), field).decode("utf-8", "replace")
