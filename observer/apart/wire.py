"""Messages between the two processes: one JSON object each, with descriptors, over a SOCK_SEQPACKET socket.

No pickles: messages of the confined process are untrusted data to the other one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import IO, Any

from rankscope.probes.base.errors import BadData, RankscopeError

_MOST_BYTES = 1 << 20  # the largest, the shapes of all maps, is 20 KB
_MOST_DESCRIPTORS = 253  # SCM_MAX_FD
_SO_SNDBUFFORCE = 32
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "TypeError": TypeError}


class Ended(RankscopeError):
    """The other process has ended."""

    help = "Run again; with -v it says more."


def pair() -> tuple[socket.socket, socket.socket]:
    """Create a connected pair of sockets."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 2 * _MOST_BYTES)
    return ends


def send(channel: socket.socket, content: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message. Raises Ended; ValueError where it is too large."""
    data = json.dumps(content).encode()
    if len(data) > _MOST_BYTES:
        raise ValueError(f"a message of {len(data)} bytes")
    try:
        socket.send_fds(channel, [data], list(descriptors))
    except ConnectionError as error:
        raise Ended("the other process has ended") from error


def receive(channel: socket.socket) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Receive the next message; the caller owns its descriptors.

    Raises Ended (also for malformed messages), OSError without room for descriptors.
    """
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array("i").itemsize)
    try:
        data, told, flags, _ = channel.recvmsg(_MOST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionError as error:
        raise Ended("the other process has ended") from error
    received = array("i")
    for level, kind, part in told:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(part[: len(part) // received.itemsize * received.itemsize])
    if flags & socket.MSG_CTRUNC:
        close_all(received)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    try:
        content = json.loads(data) if data and not flags & socket.MSG_TRUNC else None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        close_all(received)
        raise Ended("the other process has ended")
    return content, tuple(received)


def close_all(descriptors: Sequence[int]) -> None:
    """Close these descriptors, as those of an unwanted message."""
    for descriptor in descriptors:
        socket.close(descriptor)


def file_in_memory(name: str, write: Callable[[IO[bytes]], object]) -> int:
    """Make a file in memory, for what is too large for a message; return its descriptor, which the caller closes.

    `write` gets the open file and writes it. Raises what `write` raises.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            write(file)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def seal(descriptors: Sequence[int]) -> None:
    """Seal files in memory so that their sender cannot change them. Raises BadData where that
    fails.
    """
    for descriptor in descriptors:
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            raise BadData(f"the observing process can still change what it sent: {error.strerror}") from error


def text(content: dict[str, Any], name: str) -> str:
    """Return the text under a name; '' where there is none or it is no text."""
    said = content.get(name)
    return said if isinstance(said, str) else ""


def describe(error: BaseException) -> dict[str, Any]:
    """Encode an error for the other process: its class, errno (None unless an OSError) and text."""
    return {
        # Arrow has a subclass of its own
        "error": "MemoryError" if isinstance(error, MemoryError) else type(error).__name__,
        "number": error.errno if isinstance(error, OSError) and not isinstance(error, RankscopeError) else None,
        "text": (error.strerror if isinstance(error, OSError) else None) or str(error),
    }


def raised(content: dict[str, Any]) -> Exception:
    """Decode an error that `describe` encoded.

    Classes of ours, OSError, ValueError, TypeError and MemoryError are as they were; others become
    RuntimeError with their name.
    """
    name, said, number = text(content, "error"), text(content, "text"), content.get("number")
    if isinstance(number, int):
        return OSError(number, said)
    for known in _all_of(RankscopeError):
        if known.__name__ == name:
            return known(said)
    if name == "MemoryError":
        return MemoryError()
    return _ERRORS[name](said) if name in _ERRORS else RuntimeError(f"{name}: {said}")


def _all_of(kind: type[RankscopeError]) -> list[type[RankscopeError]]:
    """List an error class with all its subclasses, direct or not."""
    return [kind, *(deeper for below in kind.__subclasses__() for deeper in _all_of(below))]


class Client:
    """The confined process's end: sends requests and waits for answers. Thread-safe."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._lock = channel, threading.Lock()

    def ask(self, what: str, handed: tuple[int, ...] = (), **details: Any) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Request a service and return the answer. Raises its errors, and Ended."""
        with self._lock:
            send(self._channel, {"what": what, **details}, handed)
            answer, descriptors = receive(self._channel)
        if "error" in answer:
            close_all(descriptors)
            raise raised(answer)
        return answer, descriptors

    def tell(self, what: str, handed: Sequence[int] = (), **details: Any) -> None:
        """Send a message that has no answer. Raises Ended; ValueError where it is too large."""
        with self._lock:
            send(self._channel, {"what": what, **details}, handed)
