"""Access to our own or another trusted file by name: for tests, benches and downloads. Never for a target's file."""

from __future__ import annotations

import os
from pathlib import Path


class LocalFile:
    """An open local file; implements probes.elf.reader.FileBytes, as probes.mapped.file.MappedFile
    does for targets.
    """

    def __init__(self, path: Path) -> None:
        self.name, self.path = path.name, path
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def identity(self) -> tuple[int, ...]:
        """A key that changes when the file does."""
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    def pread(self, size: int, at: int) -> bytes:
        """Read up to `size` bytes from `at` on, fewer where the file ends. Raises OSError."""
        return os.pread(self._descriptor, size, at)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
