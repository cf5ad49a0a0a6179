"""Serve the metrics: GET /metrics on a loopback port, answered between two beats of the service.

Without threads, as the service forks. A scrape waits for the next beat, at most a second. Every
user of the host may connect, so the service never waits for a client: one that has not sent its
request, or reads slowly, is tried again in the next beat, and disconnected after `_PATIENCE_S`. The
text is built once for all clients of a beat.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from rankscope.probes.base.errors import MissingFeature

_PATIENCE_S = 5.0
_ASKED_MOST = 4096
_AT_ONCE_MOST = 1024  # connections between two beats: to block a scrape an attacker must be quicker
_KEPT_MOST = 64  # from one beat to the next
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PortTaken(MissingFeature):
    """The port is not available."""

    help = "Choose another with --metrics-port, or see who listens there: ss -ltnp."


@dataclass(slots=True)
class _Asker:
    """A connected client; `rest`: unsent part of its answer, None before its request."""

    line: socket.socket
    since: float
    rest: memoryview | None = None

    def let_go(self) -> None:
        """Close the connection, also for a client that waits for its end while a forked child still
        has it.
        """
        with self.line, contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_WR)


class MetricsPort:
    """A listening port of 127.0.0.1; 0: any. Raises PortTaken. Call `close` when done."""

    def __init__(self, port: int) -> None:
        self._askers: list[_Asker] = []
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
        """Answer the requests since the last call. Never blocks, never raises."""
        now = time.monotonic()
        with contextlib.suppress(OSError):
            for _ in range(_AT_ONCE_MOST):
                line, _ = self._socket.accept()
                line.setblocking(False)
                self._askers.append(_Asker(line, now))
        once = lru_cache(maxsize=1)(partial(_metrics, text))
        open_yet = []
        for asker in self._askers:
            if _is_done(asker, once) or now - asker.since > _PATIENCE_S:
                asker.let_go()
            else:
                open_yet.append(asker)
        for asker in open_yet[:-_KEPT_MOST]:  # the newest remain
            asker.let_go()
        self._askers = open_yet[-_KEPT_MOST:]

    def close(self) -> None:
        for asker in self._askers:
            asker.let_go()
        self._socket.close()


def _is_done(asker: _Asker, metrics: Callable[[], bytes]) -> bool:
    """Continue a client's answer; return whether it is complete or the client is gone."""
    try:
        if asker.rest is None:
            asker.rest = memoryview(_reply(asker.line.recv(_ASKED_MOST), metrics))
        while asker.rest:
            asker.rest = asker.rest[asker.line.send(asker.rest) :]
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _reply(asked: bytes, metrics: Callable[[], bytes]) -> bytes:
    words = asked.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or words[0] != b"GET" or words[1].split(b"?", 1)[0] != b"/metrics":
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return metrics()


def _metrics(text: Callable[[], str]) -> bytes:
    body = text().encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
