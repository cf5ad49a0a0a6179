"""A file that a target has mapped, opened once: for reading and for attaching uprobes.

In: a pid and a line of its maps. Out: MappedFile. How it is opened and what must not happen:
README.md.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from pathlib import Path

from rankscope.probes.host.maps import Mapping
from rankscope.probes.host.procfs import ROOT, proc_path
from rankscope.probes.mapped.reader import READER, FileNotRead, Waiting

# For one file, in all. The largest known, jaxlib, takes 130 MB (its names and symbols).
BUDGET_BYTES = 512 << 20
# The same from a cold network file system, at 10 MB/s, takes 13 s.
BUDGET_S = 20.0
_NAME_CHARACTERS = 256

_handles = itertools.count(1)


class MappedFile:
    """An open file of a target. Close it, or use it in a `with` statement.

    `identity` changes when the file does. Reads are limited to BUDGET_BYTES and BUDGET_S in all.
    """

    def __init__(self, mapping: Mapping, descriptor: int, identity: tuple[int, ...], owner: str) -> None:
        """Take over the O_PATH `descriptor`. `owner`: the user whose process maps the file, '' if unknown."""
        self.name = mapping.path.rpartition("/")[2][:_NAME_CHARACTERS]
        self.device, self.inode, self.identity = mapping.device, mapping.inode, identity
        self._descriptor, self._handle, self._owner = descriptor, next(_handles), owner
        self._left_bytes, self._waiting = BUDGET_BYTES, Waiting(BUDGET_S)

    @property
    def path(self) -> Path:
        """A path to the open file, valid here and for the kernel even if its name changes or is deleted."""
        return Path(f"/proc/self/fd/{self._descriptor}")

    @property
    def descriptor(self) -> int:
        """The open file (O_PATH), for another process to attach to; still owned by this object."""
        return self._descriptor

    @property
    def read_bytes(self) -> int:
        """Number of bytes read so far, also after closing."""
        return BUDGET_BYTES - self._left_bytes

    def pread(self, size: int, at: int) -> bytes:
        """Read up to `size` bytes from `at` on, fewer where the file ends. Raises FileNotRead."""
        if self._descriptor < 0:
            raise FileNotRead("closed")
        size_left = min(size, self._left_bytes)
        data = READER.read(self.device, self._owner, self._handle, self._descriptor, size_left, at, self._waiting)
        self._left_bytes -= len(data)
        if len(data) < size and not self._left_bytes:
            raise FileNotRead(f"more than {BUDGET_BYTES >> 20} MB of it would have to be read")
        return data

    def close(self) -> None:
        """Close the file. Never waits: an O_PATH descriptor involves no driver or file system."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> MappedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def file_from_descriptor(descriptor: int) -> MappedFile:
    """Wrap a descriptor that another process opened and passed; it is duplicated. Raises OSError.

    Its file system is not involved at all, so the file's identity is unknown and each call counts
    as a new file.
    """
    path = f"handed over, {next(_handles)}"
    return MappedFile(Mapping(0, 0, "", 0, path, 0, path), fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3), (), "")


def open_mapped(pid: int, mapping: Mapping, root: Path = ROOT) -> MappedFile:
    """Open the file behind a mapping, even if deleted, replaced, or in another mount namespace.

    Needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, as /proc/PID/map_files does. Raises FileNotRead.
    """
    link = proc_path(root, pid, "map_files", f"{mapping.start:x}-{mapping.end:x}")
    opened = READER.open(link, mapping.device, mapping.inode)
    return MappedFile(mapping, opened.descriptor, opened.identity, opened.owner)
