"""Names of devices in processes' own views of the mounts, read once per view.

In: /proc/PID/mountinfo. The owner of a mount namespace can create any number of mounts: reading is
bounded, for all users together and then per user; a device whose mount was not read is named by its
number, with a note on whose mounts were too many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.probes.host import procfs
from rankscope.probes.host.block_devices import mount_words
from rankscope.probes.host.common_tables import CommonTables
from rankscope.probes.host.fair import Fair, whose
from rankscope.probes.host.mounts import MOUNTINFO_CAP, Mount, by_device, parse_mountinfo
from rankscope.probes.host.namespaces import namespace_inode

# Bytes of mount tables, 20 MB a second: for all views together, and then per user. A container has
# some hundreds of mounts in 30 KB.
_FREELY, _EACH = 16 << 20, 1 << 20
_View = tuple[int, str]
_Device = tuple[int, int]


@dataclass(slots=True)
class MountViews:
    """Mount names for one window (mounts come and go)."""

    root: Path
    notes: list[str] = field(default_factory=list)
    _views: CommonTables[_View, _Device, Mount] = field(init=False)

    def __post_init__(self) -> None:
        fair = Fair(_FREELY, _EACH)
        self._views = CommonTables(
            self.root, ("mountinfo",), lambda data: by_device(parse_mountinfo(data)), MOUNTINFO_CAP, fair, self._tell
        )

    def words(self, pid: int, devices: Iterable[_Device]) -> list[str]:
        """Name each device by its mount in the process's view: `/data (ext4 254:1)`."""
        mounts = self._views.of(pid, self._view(pid), partial(whose, pid, self.root))
        return [mount_words(mounts.get(device), *device) for device in devices]

    def _view(self, pid: int) -> _View:
        """Return the process's mount namespace and root folder, which limit the mounts that the kernel shows.

        (-pid, '') where unreadable.
        """
        try:
            space = namespace_inode(pid, "mnt", self.root)
            return space, procfs.read_link(procfs.proc_path(self.root, pid, "root"))
        except (OSError, ValueError):
            return -pid, ""

    def _tell(self, user: str, pid: int) -> None:
        """Note that the mounts of this process were not all read, as the user's budget is used up."""
        self.notes.append(f"{user}: pid {pid} has more mounts than were read: some devices are named by number")
