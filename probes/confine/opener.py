"""Open GPU devices for a confined process, which itself may open nothing for writing.

A GPU's library opens its devices to read and write, when and by what names it likes. So the kernel
asks this program (seccomp_unotify(2)) whenever the confined process opens anything so: GPU devices
are opened and added to its descriptors; all else is refused. The name is copied before it is
checked, so a later change of it in the process has no effect.

Run with the listener as descriptor 3 and, as arguments, the pid of the starting process, the folder
of the devices and files that replace some (`python -I -S`): imports nothing of ours. It ends when
the confined or the starting process has. Sources: include/uapi/linux/seccomp.h; numbers of calls
from arch/x86/entry/syscalls/syscall_64.tbl.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import select
import signal
import stat
import struct
import sys

LISTENER = 3  # a descriptor
# struct seccomp_notif: id, pid, flags; of seccomp_data: number, architecture, instruction, six arguments
_ASKED = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")  # struct seccomp_notif_resp: id, value, error, flags
_ADDED = struct.Struct("=QIIII")  # struct seccomp_notif_addfd: id, flags, our descriptor, theirs, flags of theirs
_RECEIVE, _SEND, _ADD = 0xC0502100, 0xC0182101, 0x40182103  # SECCOMP_IOCTL_NOTIF_RECV, _SEND, _ADDFD
_OPEN = {2}  # x86-64 alone; elsewhere, and mostly there too, it is openat
_LONGEST = 256
# Up to about Linux 6.11 a listener reports the end of the confined process only after that was
# waited for, which never happens if the process that started both has ended.
_LOOKS_EVERY_S = 2.0
_ARGUMENTS = 4  # arguments before ours, used by credentials.py
_DEVICE = re.compile(r"nvidia[a-z0-9_-]*|nvidia-caps(-imex-channels)?/[a-z0-9_-]+|kfd|dri/(card|renderD)[0-9]+")
_KEPT_FLAGS = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC


def can_add(listener: int) -> bool:
    """Tell whether this kernel can add descriptors to the requesting process (Linux 5.9).

    Older kernels do not know the request.
    """
    try:
        fcntl.ioctl(listener, _ADD, _ADDED.pack(0, 0, listener, 0, 0))
    except OSError as error:
        return error.errno == errno.ENOENT  # no request has this number
    return True


def main() -> None:
    """Answer requests until the confined process has ended."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.closerange(LISTENER + 1, 1 << 16)
    command, folder, *others = sys.argv[_ARGUMENTS:]
    asks = select.poll()
    asks.register(LISTENER, select.POLLIN)
    while os.getppid() == int(command):
        for _, event in asks.poll(_LOOKS_EVERY_S * 1000):
            if not event & select.POLLIN:
                return
            try:
                asked = _ASKED.unpack(fcntl.ioctl(LISTENER, _RECEIVE, bytes(_ASKED.size)))
            except OSError:
                continue  # the requesting process is gone, or was interrupted
            _answer(folder, others, asked)


def _answer(folder: str, others: list[str], asked: tuple[int, ...]) -> None:
    """Open what a request asks for and add it to the process's descriptors, or answer with an error.

    `folder`: of the GPU devices; `others`: further files allowed; `asked`: unpacked struct seccomp_notif.
    """
    identity, pid, _, number, _, _, *arguments = asked
    place, flags = arguments[:2] if number in _OPEN else arguments[1:3]
    value = problem = 0
    try:
        device = opened(folder, others, _name(pid, place), flags)
        try:
            theirs = os.O_CLOEXEC if flags & os.O_CLOEXEC else 0
            value = fcntl.ioctl(LISTENER, _ADD, bytearray(_ADDED.pack(identity, 0, device, 0, theirs)))
        finally:
            os.close(device)
    except (OSError, ValueError) as error:
        problem = (error.errno if isinstance(error, OSError) else None) or errno.EPERM
    with contextlib.suppress(OSError):  # the requesting process is gone
        fcntl.ioctl(LISTENER, _SEND, _ANSWER.pack(identity, value, -problem, 0))


def _name(pid: int, place: int) -> str:
    """Read the file name at an address of a process, at most `_LONGEST` bytes. Raises OSError, ValueError."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(memory, _LONGEST, place).partition(b"\0")[0].decode("ascii")
    except OverflowError as error:
        raise ValueError("no such place") from error
    finally:
        os.close(memory)


def opened(folder: str, others: list[str], name: str, flags: int) -> int:
    """Open a GPU device, or one of the `others`, by its full name; return the descriptor.

    Raises OSError; PermissionError for anything else.
    """
    if name in others:
        return os.open(name, flags & _KEPT_FLAGS | os.O_NOFOLLOW)
    begin = f"{folder}/"
    if not name.startswith(begin) or not _DEVICE.fullmatch(name[len(begin) :]):
        raise PermissionError(errno.EPERM, "no device of a GPU")
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISCHR(os.fstat(found).st_mode):
            raise PermissionError(errno.EPERM, "no device")
        return os.open(f"/proc/self/fd/{found}", flags & _KEPT_FLAGS)
    finally:
        os.close(found)


if __name__ == "__main__":
    main()
