"""A folder in memory for targets that take a file; gone with the process, or found and removed by the next one if it was killed."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PREFIX = "rankscope-fuzz-"


@lru_cache(maxsize=1)
def place() -> Path:
    clear()
    made = _home() / f"{_PREFIX}{os.getpid()}"
    made.mkdir(mode=0o700)
    atexit.register(remove)
    return made


def remove() -> None:
    """For who ends without the usual ways out."""
    shutil.rmtree(place(), ignore_errors=True)


def clear() -> None:
    """Remove the folders of processes that have ended."""
    for left in _home().glob(f"{_PREFIX}*"):
        if not Path(f"/proc/{left.name.rpartition('-')[2]}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _home() -> Path:
    return _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
