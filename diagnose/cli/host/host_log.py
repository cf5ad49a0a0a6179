"""Lines to the log of this host, by the socket that journald or syslogd reads. Who has stopped reading keeps nobody waiting.

syslog(3) waits for ever: a reader that is stopped, or waits for a disk that is gone, takes eleven lines and no more, and cron starts a
sweep every five minutes.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Iterable

from rankscope.probes.host.procfs import reason

PLACE = "/dev/log"
PATIENCE_S = 2.0  # for all lines together: who reads takes them in milliseconds
_DAEMON = 3 << 3
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def log(lines: Iterable[tuple[int, str]]) -> str:
    """Send (priority, line) each; why not all were taken, '' where they were. Never raises."""
    waiting = [_message(priority, line) for priority, line in lines]
    all_of_them, until = len(waiting), time.monotonic() + PATIENCE_S
    try:
        with _connected() as reader:
            while waiting:
                _send(reader, waiting[0], until)
                del waiting[0]
    except OSError as error:
        why = "nobody reads it" if isinstance(error, (BlockingIOError, TimeoutError)) else reason(error)
        return f"{PLACE} did not take {len(waiting)} of {all_of_them} lines: {why}"
    return ""


def _connected() -> socket.socket:
    """OSError."""
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
        reader = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
        try:
            reader.setblocking(False)
            reader.connect(PLACE)
            return reader
        except OSError as error:
            reader.close()
            if error.errno != errno.EPROTOTYPE:
                raise
    raise OSError(errno.EPROTOTYPE, os.strerror(errno.EPROTOTYPE))


def _send(reader: socket.socket, message: bytes, until: float) -> None:
    """OSError; TimeoutError where it is not taken until then."""
    if reader.type == socket.SOCK_STREAM:
        message += b"\0"  # as syslog(3): what ends a line there
    while message:
        try:
            message = message[reader.send(message) :]
        except BlockingIOError:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([], [reader], [], left_s)[1]:
                raise TimeoutError from None


def _message(priority: int, line: str) -> bytes:
    now = time.localtime()
    clock = f"{_MONTHS[now.tm_mon - 1]} {now.tm_mday:2} {time.strftime('%H:%M:%S', now)}"
    return f"<{_DAEMON | priority}>{clock} rankscope[{os.getpid()}]: {line}".encode("utf-8", "replace")
