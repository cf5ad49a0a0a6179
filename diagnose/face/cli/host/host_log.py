"""Send lines to this host's log through the socket of journald or syslogd, with a deadline.

syslog(3) would wait for ever: if the reader is stopped, or waits for a dead disk, the socket takes
eleven lines and no more, while cron starts a sweep every five minutes.
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
PATIENCE_S = 2.0  # for all lines together; a working reader takes milliseconds
_DAEMON = 3 << 3
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def log(lines: Iterable[tuple[int, str]]) -> str:
    """Send each (priority, line); return why not all were taken, or ''. Never raises."""
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
    """Connect to the log's socket, datagram or stream. Raises OSError."""
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
    """Send a message until the deadline. Raises OSError, TimeoutError."""
    if reader.type == socket.SOCK_STREAM:
        message += b"\0"  # line terminator of stream sockets, as in syslog(3)
    while message:
        try:
            message = message[reader.send(message) :]
        except BlockingIOError:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([], [reader], [], left_s)[1]:
                raise TimeoutError from None


def _message(priority: int, line: str) -> bytes:
    """Format a line as syslog(3) sends it: priority, local time, program and pid."""
    now = time.localtime()
    clock = f"{_MONTHS[now.tm_mon - 1]} {now.tm_mday:2} {time.strftime('%H:%M:%S', now)}"
    return f"<{_DAEMON | priority}>{clock} rankscope[{os.getpid()}]: {line}".encode("utf-8", "replace")
