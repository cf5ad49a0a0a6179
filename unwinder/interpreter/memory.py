"""Read-only access to the memory of another process, through /proc/PID/mem.

The descriptor refers to the address space that it was opened on (proc(5), mem): after an exec or
the end of the process it reads nothing, so a recycled pid can never be read by mistake once the
start time was checked at opening. Everything read is untrusted: lengths are capped, and every read
may fail.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Protocol

from rankscope.probes.base.patience import ask
from rankscope.probes.host import procfs
from rankscope.unwinder.errors import MemoryNotPermitted, TargetGone, UnreadableMemory

READ_CAP_BYTES = 256 * 1024
ADDRESS_END = 1 << 63  # pread takes a signed offset; user addresses end far below

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")


class Memory(Protocol):
    """A source of bytes by address: a process, or a recorded image."""

    def read(self, address: int, size: int) -> bytes:
        """Read exactly `size` bytes. Raises UnreadableMemory, TargetGone."""
        ...


def read_u8(memory: Memory, address: int) -> int:
    """Read one unsigned byte. Raises UnreadableMemory, TargetGone."""
    return memory.read(address, 1)[0]


def read_u32(memory: Memory, address: int) -> int:
    """Read an unsigned 32-bit integer. Raises UnreadableMemory, TargetGone."""
    return int(_U32.unpack(memory.read(address, 4))[0])


def read_i32(memory: Memory, address: int) -> int:
    """Read a signed 32-bit integer. Raises UnreadableMemory, TargetGone."""
    return int(_I32.unpack(memory.read(address, 4))[0])


def read_u64(memory: Memory, address: int) -> int:
    """Read an unsigned 64-bit integer, such as a pointer or a length. Raises UnreadableMemory, TargetGone."""
    return int(_U64.unpack(memory.read(address, 8))[0])


class ProcessMemory:
    """The memory of one process. Close it, or use it in a `with` statement.

    `start_ticks`: the start time that the pid must have (procfs.start_ticks); None accepts any
    process. Raises TargetGone, MemoryNotPermitted.
    """

    def __init__(self, pid: int, root: Path = procfs.ROOT, start_ticks: int | None = None) -> None:
        self.pid = pid
        self._root = root
        self._fd = -1
        try:
            self._fd = ask(pid, os.open, procfs.proc_path(root, pid, "mem"), os.O_RDONLY | os.O_CLOEXEC)
            self.start_ticks = procfs.start_ticks(pid, root)
        except (OSError, ValueError) as error:
            self.close()
            if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM):
                raise MemoryNotPermitted(f"memory of process {pid}: {procfs.reason(error)}") from error
            raise TargetGone(f"process {pid}: {procfs.reason(error)}") from error
        if start_ticks is not None and start_ticks != self.start_ticks:
            self.close()
            raise TargetGone(f"pid {pid} belongs to another process now")

    def read(self, address: int, size: int) -> bytes:
        """Read exactly `size` bytes (at most 256 KiB). Raises UnreadableMemory, TargetGone."""
        if not 0 < size <= READ_CAP_BYTES or not 0 < address < ADDRESS_END - size:
            raise UnreadableMemory(f"{size} bytes at {address:#x}: out of range")
        try:
            data = ask(self.pid, os.pread, self._fd, size, address)
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise TargetGone(f"process {self.pid} ended") from error
            raise UnreadableMemory(f"{size} bytes at {address:#x}: {procfs.reason(error)}") from error
        if len(data) == size:
            return data
        if not data:
            raise TargetGone(f"process {self.pid} ended, or became another program")
        raise UnreadableMemory(f"{size} bytes at {address:#x}: {len(data)} are mapped")

    def alive(self) -> bool:
        """Tell whether the opened process still runs under its pid. A zombie counts as ended."""
        try:
            stat = procfs.read_stat(self.pid, self._root)
        except (OSError, ValueError):
            return False
        return stat.start_ticks == self.start_ticks and stat.state not in ("Z", "X")

    def close(self) -> None:
        """Close the descriptor of the target's memory."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ProcessMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
