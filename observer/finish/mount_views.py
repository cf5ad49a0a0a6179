"""What devices are called by those who see them mounted: read once for all processes with one view of the mounts.

In: /proc/PID/mountinfo. Who has a mount namespace of his own mounts there as much as he likes: what is read is bounded, for all together
and then for a user; a device whose mount was not read is told by its number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.probes.fair import Fair, whose
from rankscope.probes.host import procfs
from rankscope.probes.host.block_devices import mount_words
from rankscope.probes.host.mounts import MOUNTINFO_CAP, Mount, parse_mountinfo
from rankscope.probes.host.namespaces import namespace_inode

# Bytes of tables of mounts, 20 MB a second: of all views together, and then of a user's. A container has some hundreds of mounts in 30 KB.
_FREELY, _EACH = 16 << 20, 1 << 20
_View = tuple[int, str]
_Device = tuple[int, int]


@dataclass(slots=True)
class MountViews:
    """Keep it for one window: mounts come and go."""

    root: Path
    _views: dict[_View, dict[_Device, Mount]] = field(default_factory=dict)
    _fair: Fair = field(default_factory=lambda: Fair(_FREELY, _EACH))

    def words(self, pid: int, devices: Iterable[_Device]) -> list[str]:
        """`/data (ext4 254:1)`: the mount of each device as the process sees it."""
        view = self._view(pid)
        if view not in self._views:
            self._views[view] = self._read(pid)
        mounts = self._views[view]
        return [mount_words(mounts.get(device), *device) for device in devices]

    def _view(self, pid: int) -> _View:
        """Its namespace and its root folder: what lies outside that one the kernel does not tell."""
        try:
            space = namespace_inode(pid, "mnt", self.root)
            return space, procfs.read_link(procfs.proc_path(self.root, pid, "root"))
        except (OSError, ValueError):
            return -pid, ""

    def _read(self, pid: int) -> dict[_Device, Mount]:
        user = partial(whose, pid, self.root)
        most = min(max(int(self._fair.left(user)), 0), MOUNTINFO_CAP)
        try:
            data = procfs.read_file(procfs.proc_path(self.root, pid, "mountinfo"), most)
        except OSError:
            return {}
        self._fair.took(len(data), user)
        if len(data) >= most:
            data = data[: data.rfind(b"\n") + 1]
        found: dict[_Device, Mount] = {}
        for mount in parse_mountinfo(data):
            device = mount.major, mount.minor
            if device not in found or _order(mount) < _order(found[device]):
                found[device] = mount
        return found


def _order(mount: Mount) -> tuple[bool, int]:
    """The whole file system goes before a part of it, then the shortest place: as Mounts.by_device chooses."""
    return mount.root != "/", len(mount.mount_point)
