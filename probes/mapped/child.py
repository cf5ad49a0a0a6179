"""The child process that opens and reads targets' files, so the observer cannot hang on a dead file system.

Run by reader.py as a program of its own (`python -I -S`): it inherits none of the observer's
descriptors, and imports nothing of ours. One request at a time comes over a socket; bytes are
returned in shared memory. It ends when the socket is closed.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import socket
import stat
import struct
from collections import Counter, OrderedDict

SOCKET, MEMORY = 3, 4  # descriptors
MEMORY_BYTES = 1 << 20
OPEN, READ = 1, 2
# Sent before the answer to OPEN: from here on the file system is asked; delays before are the
# process's.
FOUND = errno.EINPROGRESS
LONGEST = 4096  # bytes of a request
REQUEST = struct.Struct("<IIIQQI")  # kind; OPEN: major, minor, inode, then the path; READ: 0, handle, position, bytes
REPLY = struct.Struct("<iIQQQQ")  # errno; READ: bytes; OPEN: device, inode, time of change in ns, size
_KEPT = 64


def main() -> None:
    """Answer requests until the socket is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Ctrl-C is for the observer, which may still need to read
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.closerange(MEMORY + 1, 1 << 16)
    memory = mmap.mmap(MEMORY, MEMORY_BYTES)
    kept: OrderedDict[int, int] = OrderedDict()
    with socket.socket(fileno=SOCKET) as channel:
        while True:
            request, passed, _, _ = socket.recv_fds(channel, LONGEST, 1)
            if len(request) < REQUEST.size:
                return
            try:
                reply, sent = _answer(channel, request, passed, kept, memory)
            except (OSError, ValueError) as error:
                code = error.errno if isinstance(error, OSError) and error.errno else errno.EINVAL
                reply, sent = REPLY.pack(code, 0, 0, 0, 0, 0), []
            socket.send_fds(channel, [reply], sent)
            for descriptor in (*passed, *sent):
                os.close(descriptor)


def _answer(
    channel: socket.socket, request: bytes, passed: list[int], kept: OrderedDict[int, int], memory: mmap.mmap
) -> tuple[bytes, list[int]]:
    """Carry out one request; return the reply and the descriptors to send with it. Raises OSError, ValueError.

    `passed`: descriptors that came with the request. `kept`: open files by handle, oldest first. `memory`:
    shared with the observer; bytes that were read are put there.
    """
    what, major, minor, first, place, size = REQUEST.unpack_from(request)
    if what == OPEN:
        # The kernel finds the file under the lock of the process's address space. Its file system
        # is not involved: map_files links skip name lookup, and O_PATH opens nothing.
        descriptor = os.open(request[REQUEST.size :], os.O_PATH | os.O_CLOEXEC)
        channel.send(REPLY.pack(FOUND, 0, 0, 0, 0, 0))
        status = checked(descriptor, f"{major:02x}:{minor:02x}", first)
        return REPLY.pack(0, 0, status.st_dev, status.st_ino, max(status.st_ctime_ns, 0), status.st_size), [descriptor]
    if first not in kept:
        if not passed:
            raise OSError(errno.EBADF, "not open here")
        kept[first] = _open_to_read(passed[0])
        if len(kept) > _KEPT:
            os.close(kept.popitem(last=False)[1])
    count = os.preadv(kept[first], [memoryview(memory)[: min(size, MEMORY_BYTES)]], place)
    return REPLY.pack(0, count, 0, 0, 0, 0), []


def checked(descriptor: int, device: str, inode: int) -> os.stat_result:
    """Check that an O_PATH descriptor is the file `device`, `inode` of a maps line; return its
    stat.

    The descriptor came from a link of /proc/PID/map_files. Raises OSError, after closing it, if it
    is not; ESTALE: another file by now. Only maps can tell: on overlays and btrfs stat reports
    other numbers. So the file is mapped here, and our own maps are read.
    """
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        file = _open_to_read(descriptor)
        try:
            before = _mapped()
            with mmap.mmap(file, 1, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ):
                added = _mapped() - before
        finally:
            os.close(file)
        if set(added) != {(device, inode)}:
            raise OSError(errno.ESTALE, "another file is mapped there now")
    except BaseException:
        os.close(descriptor)
        raise
    return status


def _open_to_read(descriptor: int) -> int:
    """Open the file behind an O_PATH descriptor for reading; return the new one. Raises OSError."""
    # O_NONBLOCK: do not wait for a lease that the owner holds on the file.
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)


def _mapped() -> Counter[tuple[str, int]]:
    """Count the mappings of each file in this process, by (device, inode) of its maps."""
    found: Counter[tuple[str, int]] = Counter()
    with open("/proc/self/maps", "rb") as maps:  # noqa: PTH123 - pathlib takes as long to import as all the rest
        for line in maps:
            fields = line.split(None, 5)
            if len(fields) > 4 and fields[4] != b"0":
                found[fields[3].decode("ascii"), int(fields[4])] += 1
    return found


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):
        main()
