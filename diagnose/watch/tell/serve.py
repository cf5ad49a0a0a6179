"""The metrics for a scrape: GET /metrics on a port of the loopback, answered between two beats of the service.

No thread: the service forks, and what forks has one. A scrape waits for the next beat, a second at most; who sends nothing for
`_PATIENCE_S` is let go.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from rankscope.probes.errors import MissingFeature

_PATIENCE_S = 0.05
_ASKED_MOST, _AT_ONCE_MOST = 4096, 4
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PortTaken(MissingFeature):
    """The port cannot be had."""

    help = "Choose another with --metrics-port, or see who listens there: ss -ltnp."


class MetricsPort:
    """A listening port of 127.0.0.1; 0: any. PortTaken. `close` when done."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen(_AT_ONCE_MOST)
            self._socket.setblocking(False)
        except OSError as error:
            self._socket.close()
            raise PortTaken(f"127.0.0.1:{port}: {error.strerror}") from None

    @property
    def number(self) -> int:
        return int(self._socket.getsockname()[1])

    def answer(self, text: Callable[[], str]) -> None:
        """Answer who has asked since the last call. Never raises."""
        for _ in range(_AT_ONCE_MOST):
            try:
                asker, _ = self._socket.accept()
            except OSError:
                return
            with asker, contextlib.suppress(OSError):
                asker.settimeout(_PATIENCE_S)
                asker.sendall(_reply(asker.recv(_ASKED_MOST), text))

    def close(self) -> None:
        self._socket.close()


def _reply(asked: bytes, text: Callable[[], str]) -> bytes:
    words = asked.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or words[0] != b"GET" or words[1].split(b"?", 1)[0] != b"/metrics":
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    body = text().encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
