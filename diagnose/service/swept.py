"""Report what sweeps of this host newly found critical (ports down, memory errors, lost GPUs), from their state file.

Read only, without the sweep's lock: SQLite shows a whole transaction or none. What was critical
when the service began is not reported.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.diagnose.severity import CRITICAL
from rankscope.diagnose.sweep.damage import FAILURES
from rankscope.diagnose.sweep.store import STATE_FILE
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.base.folders import opened_folder

_MOST = 1000


@dataclass(slots=True)
class Swept:
    """What the sweep's state file shows as critical. Call `turned` regularly. `folder`: the sweep's state folder."""

    folder: Path
    _known: frozenset[tuple[str, str]] | None = None
    _seen: tuple[int, int] = field(default=(0, 0))

    def turned(self) -> tuple[str, ...]:
        """List in words what became critical since the last call; empty at first or without a sweep. Never raises."""
        try:
            # As in the sweep: a folder that others can write is not trusted.
            with opened_folder(self.folder):
                found = (self.folder / STATE_FILE).stat()
        except (OSError, RankscopeError):
            return ()
        if (found.st_mtime_ns, found.st_ino) == self._seen:
            return ()
        now = self._critical()
        if now is None:
            return ()
        self._seen = (found.st_mtime_ns, found.st_ino)
        fresh = sorted(now - self._known) if self._known is not None else []
        self._known = now
        return tuple(
            f"{clean(check, 60)}{' of ' + clean(instance, 80) if instance else ''} is critical"
            for check, instance in fresh
        )

    def _critical(self) -> frozenset[tuple[str, str]] | None:
        """Read the pairs (check, instance) that are critical from the sweep's state file; None if unreadable."""
        try:
            with contextlib.closing(
                sqlite3.connect(f"{(self.folder / STATE_FILE).absolute().as_uri()}?mode=ro", uri=True, timeout=0.1)
            ) as database:
                rows = database.execute(
                    "SELECT id, instance FROM current WHERE state = ? LIMIT ?", (CRITICAL, _MOST)
                ).fetchall()
        except FAILURES:
            return None
        return frozenset((str(check), str(instance)) for check, instance in rows)
