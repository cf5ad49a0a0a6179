"""What devices are called by those who see them mounted: read once for all processes with one view of the mounts.

In: /proc/PID/mountinfo. Who has a mount namespace of his own mounts there as much as he likes: what is read is bounded, for all together
and then for a user; a device whose mount was not read is told by its number, and a note says whose mounts were too many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.probes.common_tables import CommonTables
from rankscope.probes.fair import Fair, whose
from rankscope.probes.host import procfs
from rankscope.probes.host.block_devices import mount_words
from rankscope.probes.host.mounts import MOUNTINFO_CAP, Mount, by_device, parse_mountinfo
from rankscope.probes.host.namespaces import namespace_inode

# Bytes of tables of mounts, 20 MB a second: of all views together, and then of a user's. A container has some hundreds of mounts in 30 KB.
_FREELY, _EACH = 16 << 20, 1 << 20
_View = tuple[int, str]
_Device = tuple[int, int]


@dataclass(slots=True)
class MountViews:
    """Keep it for one window: mounts come and go."""

    root: Path
    notes: list[str] = field(default_factory=list)
    _views: CommonTables[_View, _Device, Mount] = field(init=False)

    def __post_init__(self) -> None:
        fair = Fair(_FREELY, _EACH)
        self._views = CommonTables(
            self.root, ("mountinfo",), lambda data: by_device(parse_mountinfo(data)), MOUNTINFO_CAP, fair, self._tell
        )

    def words(self, pid: int, devices: Iterable[_Device]) -> list[str]:
        """`/data (ext4 254:1)`: the mount of each device as the process sees it."""
        mounts = self._views.of(pid, self._view(pid), partial(whose, pid, self.root))
        return [mount_words(mounts.get(device), *device) for device in devices]

    def _view(self, pid: int) -> _View:
        """Its namespace and its root folder: what lies outside that one the kernel does not tell."""
        try:
            space = namespace_inode(pid, "mnt", self.root)
            return space, procfs.read_link(procfs.proc_path(self.root, pid, "root"))
        except (OSError, ValueError):
            return -pid, ""

    def _tell(self, user: str, pid: int) -> None:
        self.notes.append(f"{user}: pid {pid} sees more mounts than were looked at: some devices are told by number")
