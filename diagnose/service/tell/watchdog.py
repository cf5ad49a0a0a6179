"""Report to a supervisor that the service is ready, alive or stopping; it restarts one that stopped reporting.

systemd by its socket (sd_notify(3)); others by the age of a file, RANKSCOPE_ALIVE, best in memory:
a full disk is no reason to restart a healthy service.
"""

from __future__ import annotations

import contextlib
import os
import socket

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


def tell(state: str) -> None:
    """Report `READY`, `ALIVE` or `STOPPING` to the supervisor, if there is one. Never raises, never blocks."""
    if state == ALIVE:
        _touch(os.environ.get("RANKSCOPE_ALIVE", ""))
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.setblocking(False)
        told.sendto(state.encode(), "\0" + place[1:] if place.startswith("@") else place)


def _touch(path: str) -> None:
    """Set the file's time of modification to now, creating it if missing; '' for no file. Never raises."""
    if not path:
        return
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            os.utime(file)
        finally:
            os.close(file)
