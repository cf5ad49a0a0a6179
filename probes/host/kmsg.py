"""Read the kernel's log, /dev/kmsg, record by record.

In: /dev/kmsg (Documentation/ABI/testing/dev-kmsg). Out: KernelMessage. Only records of the kernel
itself: what a process writes into /dev/kmsg gets another facility, so nobody can forge an Xid.
Reading needs CAP_SYSLOG where kernel.dmesg_restrict is set. About 2 µs per record; the usual ring
holds some thousands.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.base import rights
from rankscope.probes.host.procfs import ROOT

RECORD_CAP = 8192  # the kernel's own limit for one record
MAX_RECORDS = 200_000
FILE_CAP = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KernelMessage:
    """One record. `time_s` is seconds since boot, without time in suspend; `level` 0 (emergency) to
    7 (debug).
    """

    level: int
    sequence: int
    time_s: float
    text: str


def read_kmsg(root: Path = ROOT) -> tuple[KernelMessage, ...]:
    """Read all records in the kernel's ring, oldest first. Raises OSError (PermissionError without
    CAP_SYSLOG).
    """
    descriptor = open_log(root)
    try:
        if not stat.S_ISCHR(os.fstat(descriptor).st_mode):
            return tuple(_parsed(_recorded(descriptor)))
        return tuple(_parsed(_records(descriptor)))
    finally:
        os.close(descriptor)


def open_log(root: Path = ROOT) -> int:
    """Open the log at its oldest record; return the descriptor, which the caller closes. Raises OSError."""
    if (asked := rights.delegate()) is not None:
        return asked.ask("kernel_log")[1][0]
    return os.open(f"{str(root).rstrip('/')}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


@contextlib.contextmanager
def following(root: Path = ROOT) -> Iterator[Callable[[], tuple[KernelMessage, ...]]]:
    """Yield a function that returns the records since its last call (at first: since now).

    Both raise OSError.
    """
    descriptor = open_log(root)
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
        yield lambda: tuple(_parsed(_records(descriptor)))
    finally:
        os.close(descriptor)


def parse_record(data: bytes) -> KernelMessage | None:
    """Parse one record ('6,1234,5678901,-;text'); None if it is not one of the kernel's. Never
    raises.
    """
    head, semicolon, text = data.partition(b";")
    fields = head.split(b",")
    if not semicolon or len(fields) < 3 or not all(field.isdigit() and len(field) < 19 for field in fields[:3]):
        return None
    priority = int(fields[0])
    if priority >> 3:
        return None
    line = text.split(b"\n", 1)[0][:RECORD_CAP].decode("utf-8", "replace")
    return KernelMessage(priority & 7, int(fields[1]), int(fields[2]) / 1e6, line)


def _records(descriptor: int) -> list[bytes]:
    """Read the raw records from the descriptor's position to the newest, MAX_RECORDS at most. Raises OSError.

    Records that the kernel has overwritten are skipped.
    """
    records: list[bytes] = []
    while len(records) < MAX_RECORDS:
        try:
            data = os.read(descriptor, RECORD_CAP)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno == errno.EPIPE:
                continue  # overwritten meanwhile: the next read is at the oldest that is left
            if error.errno == errno.EINVAL:
                break
            raise
        if not data:
            break
        records.append(data)
    return records


def _recorded(descriptor: int) -> list[bytes]:
    """Read a recorded log, one record per line; continuation lines are included."""
    chunks = []
    size = 0
    while size < FILE_CAP and (chunk := os.read(descriptor, 1 << 20)):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks).split(b"\n")[:MAX_RECORDS]


def _parsed(records: list[bytes]) -> list[KernelMessage]:
    """Parse raw records, leaving out those that are not the kernel's own."""
    return [message for message in map(parse_record, records) if message is not None]
