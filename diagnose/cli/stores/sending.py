"""Windows on their way to a store: into the spool, and from there, with those that wait since earlier, to the store."""

from __future__ import annotations

import sys
from pathlib import Path

from rankscope.observer.window.folder import Window
from rankscope.observer.window.store.place import StoreFailed, shown_of
from rankscope.observer.window.store.spool import DEFAULT_FOLDER, Spool

_WITHIN_S = 60.0  # tries; a store that is away for longer gets the windows with the next one


class Sending:
    """The way of this host's windows to one store. OutputFailed, before anything is observed, where they could not be kept."""

    def __init__(self, uri: str, spool: Path | None) -> None:
        self.shown = shown_of(uri)
        self.spool = Spool(spool or DEFAULT_FOLDER, uri)
        self.spool.prepare()

    def keep(self, window: Window) -> str:
        """Keep one window until it is there; where it will be."""
        return f"{self.shown}/{self.spool.add(window)}"

    def deliver(self) -> StoreFailed | None:
        """Send what waits; what kept some of it from going."""
        sys.stdout.flush()
        done = self.spool.deliver(_WITHIN_S)
        if not done.waiting:
            return None
        plural = "s wait" if done.waiting > 1 else " waits"
        return StoreFailed(f"{done.trouble}: {done.waiting} window{plural} in {self.spool.folder}")
