"""Telling who watches over the service that it watches, lives, ends: he restarts one that has not said for a while that it lives.

systemd by its socket (sd_notify(3)); anybody else by the age of a file, RANKSCOPE_ALIVE, which best lies in memory: a full disk is no
reason to restart a sound service.
"""

from __future__ import annotations

import contextlib
import os
import socket

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


def tell(state: str) -> None:
    """Say so, where somebody listens. Never raises, never waits."""
    if state == ALIVE:
        _touch(os.environ.get("RANKSCOPE_ALIVE", ""))
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.setblocking(False)
        told.sendto(state.encode(), "\0" + place[1:] if place.startswith("@") else place)


def _touch(path: str) -> None:
    if not path:
        return
    with contextlib.suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(path, flags, 0o600)
        try:
            os.utime(file)
        finally:
            os.close(file)
