"""Read the events that a service writes to its log, from now on, while the log is renamed and begun anew."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.base.folders import opened_folder

_READ_BYTES = 4 << 20  # at most so much in one call


class EventsLog:
    """The log of a service, read from its present end on. A context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _opened(path)
        self._rest = b""
        if self._file is not None:
            os.lseek(self._file, 0, os.SEEK_END)

    def __enter__(self) -> EventsLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def new(self) -> list[dict[str, Any]]:
        """Return the events written since the last call, also those in a log begun meanwhile."""
        found = self._lines()
        now = _opened(self._path)
        if now is None or (self._file is not None and os.path.sameopenfile(now, self._file)):
            if now is not None:
                os.close(now)
            return found
        if self._file is not None:
            found += self._lines()  # written between the two looks
            os.close(self._file)
        self._file, self._rest = now, b""
        return found + self._lines()

    def _lines(self) -> list[dict[str, Any]]:
        """Read on, and return the events of the lines that are complete; what is no JSON object is skipped."""
        if self._file is None:
            return []
        *whole, self._rest = (self._rest + os.read(self._file, _READ_BYTES)).split(b"\n")
        found = []
        for line in whole:
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(event := json.loads(line), dict):
                    found.append(event)
        return found


def _opened(path: Path) -> int | None:
    """Open the log; None where there is none yet. Raises UnsafePlace."""
    try:
        with opened_folder(path.parent) as folder:
            return os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except RankscopeError:
        raise
    except OSError:
        return None
