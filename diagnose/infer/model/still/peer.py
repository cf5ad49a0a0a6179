"""Parse the other end of a connection from the detail of a wait in a window."""

from __future__ import annotations

import re

from rankscope.observer.window.schema import SOCKET_TO

# 127.0.0.1:35095, ::1:80, [::1]:80; what is no address, as in a renamed or forged window, is not said.
_PEER = re.compile(r"(\d{1,3}(\.\d{1,3}){3}|\[?[0-9a-fA-F]{0,4}(:[0-9a-fA-F]{0,4}){2,8}\]?):\d{1,5}(?=$|[\s,;)])")


def peer_of(detail: str) -> str:
    """Return address and port of the connection that a wait names ('a socket to 10.0.0.7:443 (poll)'); '' without one."""
    found = _PEER.match(detail.rpartition(SOCKET_TO)[2]) if SOCKET_TO in detail else None
    return "" if found is None else found[0].replace("[", "").replace("]", "")
