"""Serve the metrics: GET /metrics on one address, answered between two beats of the service.

Without threads, as the service forks. A scrape waits for the next beat, at most a second. Every
user of the host may connect, and of the network where the address is no loopback, so the service
never waits for a client: one that has not sent its request, or reads slowly, is tried again in the
next beat, and disconnected after `_PATIENCE_S`. The text is built once for all clients of a beat.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from rankscope.probes.base.errors import MissingFeature

_PATIENCE_S = 5.0
_ASKED_MOST = 4096
_AT_ONCE_MOST = 1024  # connections between two beats: to block a scrape an attacker must be quicker
_KEPT_MOST = 64  # from one beat to the next
_KEPT_OF_ONE = 16  # of these from one address, which so cannot displace the others
LOOPBACK = "127.0.0.1"
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class PortTaken(MissingFeature):
    """The port or the address is not available."""

    help = "Choose another with --metrics-port, or see who listens there: ss -ltnp."


class NoSuchAddress(PortTaken):
    """No interface of this host has the address."""

    help = "Give one that `ip address` shows, or 0.0.0.0 for all."


@dataclass(slots=True)
class _Asker:
    """A connected client; `rest`: unsent part of its answer, None before its request."""

    line: socket.socket
    address: str
    since: float
    rest: memoryview | None = None

    def let_go(self) -> None:
        """Close the connection, also for a client that waits for its end while a forked child still has it."""
        with self.line, contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_WR)


class MetricsPort:
    """A listening port of one address, IPv4 or IPv6; port 0: any. Raises PortTaken. Call `close` when done."""

    def __init__(self, port: int, address: str = LOOPBACK) -> None:
        self._askers: list[_Asker] = []
        self._place = shown(address)
        version = ipaddress.ip_address(address).version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError as error:  # a host without IPv6
            raise NoSuchAddress(f"{self._place}:{port}: {error.strerror}") from None
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((address, port))
            self._socket.listen(_AT_ONCE_MOST)
            self._socket.setblocking(False)
        except OSError as error:
            self._socket.close()
            kind = NoSuchAddress if error.errno == errno.EADDRNOTAVAIL else PortTaken
            raise kind(f"{self._place}:{port}: {error.strerror}") from None

    @property
    def url(self) -> str:
        return f"http://{self._place}:{self.number}/metrics"

    @property
    def number(self) -> int:
        """The number of the port, also if port 0 was given."""
        return int(self._socket.getsockname()[1])

    def answer(self, text: Callable[[], str]) -> None:
        """Answer requests that came since the last call, and continue unfinished answers. Never blocks.

        `text`: builds the metrics, called at most once.
        """
        now = time.monotonic()
        with contextlib.suppress(OSError):
            for _ in range(_AT_ONCE_MOST):
                line, source = self._socket.accept()
                line.setblocking(False)
                self._askers.append(_Asker(line, str(source[0]), now))
        once = lru_cache(maxsize=1)(partial(_metrics, text))
        open_yet = []
        for asker in self._askers:
            if _is_done(asker, once) or now - asker.since > _PATIENCE_S:
                asker.let_go()
            else:
                open_yet.append(asker)
        self._askers = _newest(open_yet)

    def close(self) -> None:
        for asker in self._askers:
            asker.let_go()
        self._socket.close()


def shown(address: str) -> str:
    """Return an IP address as it stands in a URL. Raises ValueError if it is none."""
    parsed = ipaddress.ip_address(address)
    return f"[{parsed}]" if ":" in str(parsed) else str(parsed)


def _newest(askers: list[_Asker]) -> list[_Asker]:
    """Return the newest `_KEPT_MOST` clients, `_KEPT_OF_ONE` of an address, in order; disconnect the others."""
    kept: list[_Asker] = []
    of_address: Counter[str] = Counter()
    for asker in reversed(askers):
        of_address[asker.address] += 1
        if len(kept) < _KEPT_MOST and of_address[asker.address] <= _KEPT_OF_ONE:
            kept.append(asker)
        else:
            asker.let_go()
    return kept[::-1]


def _is_done(asker: _Asker, metrics: Callable[[], bytes]) -> bool:
    """Answer a client's first bytes without blocking; return whether all is sent or the client is gone."""
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
    """Return the HTTP response to a request: `metrics()`, head included, for GET /metrics; else 404."""
    words = asked.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or words[0] != b"GET" or words[1].split(b"?", 1)[0] != b"/metrics":
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return metrics()


def _metrics(text: Callable[[], str]) -> bytes:
    """Return the whole HTTP response with the metrics as body. `text`: builds them."""
    body = text().encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
