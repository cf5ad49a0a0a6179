"""A file that is ours or that somebody trusts, opened by its name: for tests, benches and what was downloaded. Never a target's."""

from __future__ import annotations

import os
from pathlib import Path


class LocalFile:
    """Satisfies probes.elf.reader.FileBytes; so does probes.mapped.file.MappedFile, for the files of targets."""

    def __init__(self, path: Path) -> None:
        self.name, self.path = path.name, path
        self._descriptor = -1
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def identity(self) -> tuple[int, ...]:
        """Changes when the file does."""
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    def pread(self, size: int, at: int) -> bytes:
        """Up to `size` bytes from `at` on, fewer where the file ends. OSError."""
        return os.pread(self._descriptor, size, at)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
