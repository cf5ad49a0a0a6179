"""Telling systemd that the service watches, lives, ends: it restarts one that has not said for a while that it lives (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket

READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"


def tell(state: str) -> None:
    """Say so, where somebody listens. Never raises, never waits."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if not place:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.setblocking(False)
        told.sendto(state.encode(), "\0" + place[1:] if place.startswith("@") else place)
