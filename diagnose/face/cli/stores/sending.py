"""Send windows to a store through the spool, with those still waiting from earlier."""

from __future__ import annotations

import sys
from pathlib import Path

from rankscope.observer.window.folder import Window
from rankscope.observer.window.store.place import StoreFailed, shown_of
from rankscope.observer.window.store.spool import DEFAULT_FOLDER, Spool

_WITHIN_S = 60.0  # retry time; later windows retry again


class Sending:
    """Delivery of this host's windows to one store.

    Raises OutputFailed, before observing, if the spool is unusable.
    """

    def __init__(self, uri: str, spool: Path | None) -> None:
        self.shown = shown_of(uri)
        self.spool = Spool(spool or DEFAULT_FOLDER, uri)
        self.spool.prepare()

    def keep(self, window: Window) -> str:
        """Add a window to the spool; return its future address in the store."""
        return f"{self.shown}/{self.spool.add(window)}"

    def deliver(self) -> StoreFailed | None:
        """Send what is waiting; return the error if something remains."""
        sys.stdout.flush()
        done = self.spool.deliver(_WITHIN_S)
        if not done.waiting:
            return None
        plural = "s wait" if done.waiting > 1 else " waits"
        error = StoreFailed(f"{done.trouble}: {done.waiting} window{plural} in {self.spool.folder}")
        error.help = f"{error.help} What waits goes with the next window that is recorded."
        return error
