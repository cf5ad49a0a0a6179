"""Folders for a moment, where temporary files go. One whose maker was killed is removed by the next.

A lock on the folder says that its maker lives: the kernel lets go of it, however he ends. Removed is only what says that it is such a
folder, and is ours, and only in a place where nobody else can have moved it: his alone, or one like /tmp, where everybody may move only
what is his.
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

from rankscope.probes.host.clocks import is_older
from rankscope.probes.host.folders import create_file, others_can_write

PREFIX = "rankscope-"
_LOCKED_S = 60.0  # a folder is, so long after it was made
_MARK = ".rankscope-scratch"  # in each: anybody may call a folder as he likes


@dataclass(slots=True)
class Scratch:
    """A folder that is ours alone. Close it; `with` does."""

    path: Path
    _lock: int

    def close(self) -> None:
        """Remove it with all that is in it. Never raises."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def scratch(place: str | None = None, prefix: str = PREFIX) -> Scratch:
    """A new folder in `place`, else where this process keeps temporary files; what killed ones left there goes. OSError."""
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
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove_left(place: Path, prefix: str) -> None:
    """OSError."""
    here = place.stat()
    if others_can_write(here) and not here.st_mode & stat.S_ISVTX:
        return
    for path in list(place.glob(f"{prefix}*")):
        with contextlib.suppress(OSError):
            _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    """OSError, also where somebody holds it, and where it is none of these folders."""
    lock = _opened(path)
    try:
        found = os.fstat(lock)
        if found.st_uid == os.geteuid() and is_older(found.st_ctime, _LOCKED_S, time.time()):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(_MARK, dir_fd=lock, follow_symlinks=False)
            shutil.rmtree(path)
    finally:
        os.close(lock)
