"""Temporary folders that are cleaned up even if their maker is killed: the next one removes them.

A lock on the folder shows that its maker lives: the kernel releases it, however the maker ends. A
folder is removed only if it is marked as one, is ours, and lies where nobody else can have moved
it: in a folder of ours, or one like /tmp, where users may move only their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.base.clocks import is_older
from rankscope.probes.base.folders import create_file, others_can_write

PREFIX = "rankscope-"
_LOCKED_S = 60.0  # seconds after its creation until a folder is sure to be locked
_MARK = ".rankscope-scratch"  # in each: anybody may name a folder like ours


@dataclass(slots=True)
class Scratch:
    """A private temporary folder. Close it; `with` does."""

    path: Path
    _lock: int

    def close(self) -> None:
        """Remove the folder with its content. Never raises."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def scratch(place: str | None = None, prefix: str = PREFIX) -> Scratch:
    """Create a folder in `place` (default: the usual temporary folder), and remove leftovers there.
    Raises OSError.
    """
    place = place or tempfile.gettempdir()
    with contextlib.suppress(OSError):
        _remove_left(Path(place), prefix)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    try:
        lock = _opened(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(create_file(lock, _MARK))
        except BaseException:
            os.close(lock)
            raise
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return Scratch(path, lock)


def _opened(path: Path) -> int:
    """Open a folder that is no link; return its descriptor. Raises OSError."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove_left(place: Path, prefix: str) -> None:
    """Remove leftover folders of killed processes, unless others could have put them there. Raises
    OSError.
    """
    here = place.stat()
    if others_can_write(here) and not here.st_mode & stat.S_ISVTX:
        return
    for path in list(place.glob(f"{prefix}*")):
        with contextlib.suppress(OSError):
            _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    """Remove a temporary folder of ours over `_LOCKED_S` seconds old, as its maker was killed; leave any other.

    Raises OSError, also where it is locked or not marked as ours.
    """
    lock = _opened(path)
    try:
        found = os.fstat(lock)
        if found.st_uid == os.geteuid() and is_older(found.st_ctime, _LOCKED_S, time.time()):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(_MARK, dir_fd=lock, follow_symlinks=False)
            shutil.rmtree(path)
    finally:
        os.close(lock)
