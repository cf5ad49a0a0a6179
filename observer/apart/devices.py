"""GPUs of this host for a confined process: another process opens them on request (probes/confine/opener.py).

`listen` runs in the confined process, `start` in the privileged one. RANKSCOPE_DEVICES in its
environment: files that replace devices, as those of the lab's emulated machine, separated by ":".
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from rankscope.probes.confine import credentials, opener, seccomp

FOLDER = Path("/dev")
_NAMES = ("nvidiactl", "nvidia[0-9]*", "nvidia-caps/*", "kfd", "dri/*")


def present() -> list[Path]:
    """List the device files of this host's GPUs, and the files that replace devices (RANKSCOPE_DEVICES)."""
    return [*(device for pattern in _NAMES for device in FOLDER.glob(pattern)), *map(Path, _emulated())]


def _emulated() -> list[str]:
    """List the files in RANKSCOPE_DEVICES, which replace devices; none where it is unset."""
    return [name for name in os.environ.get("RANKSCOPE_DEVICES", "").split(":") if name]


def groups(devices: Sequence[Path]) -> list[int]:
    """List the ids of groups that a user needs to open these devices: not root's, nor of those open to everybody."""
    found = set()
    for device in devices:
        with contextlib.suppress(OSError):
            status = device.stat()
            if status.st_gid and status.st_mode & 0o006 != 0o006:
                found.add(status.st_gid)
    return sorted(found)


def listen() -> int:
    """Filter the system calls of this thread and its children (seccomp).

    Returns the descriptor that receives their requests to open files for writing. Raises OSError,
    ValueError where that is impossible: then nothing is filtered.
    """
    _try_once()
    return credentials.filter_and_listen(seccomp.program(writing=False, asking=True))


def _try_once() -> None:
    """Test whether the kernel supports such a filter, on a thread of its own, as a filter cannot be removed.

    Raises OSError where it does not.
    """
    refused: list[OSError] = []

    def attempt() -> None:
        """Install a filter that allows all on this thread, and test its listener; a failure goes to `refused`."""
        try:
            listener = credentials.filter_and_listen(seccomp.allow_all())
        except OSError as error:
            refused.append(error)
            return
        if not opener.can_add(listener):
            refused.append(OSError(errno.ENOSYS, "this kernel cannot pass opened devices to another process"))
        os.close(listener)

    thread = threading.Thread(target=attempt)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "no thread could be started") from error
    thread.join()
    if refused:
        raise refused[0]


def start(listener: int) -> int:
    """Start the program that opens GPUs for the process behind this seccomp listener; return its pid.

    It ends with that process, and with this one. Raises OSError.
    """
    # a number that differs from the one in the child
    handed = fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, 8)
    keep = credentials.mask((credentials.CAP_SYS_PTRACE,))  # to read the requested name
    try:
        calls = seccomp.program(writing=True, listening=True) if credentials.can_filter() else b""
    except ValueError:
        calls = b""
    confined = [str(Path(credentials.__file__).resolve()), f"{keep:x}", calls.hex()]
    program = [str(Path(opener.__file__).resolve()), str(os.getpid())]
    command = [sys.executable, "-I", "-S", *confined, *program, str(FOLDER), *_emulated()]
    actions = [(os.POSIX_SPAWN_OPEN, standard, os.devnull, os.O_RDWR, 0) for standard in (0, 1, 2)]
    try:
        return os.posix_spawn(
            sys.executable,
            command,
            {"LC_ALL": "C"},
            file_actions=[*actions, (os.POSIX_SPAWN_DUP2, handed, opener.LISTENER)],
        )
    finally:
        os.close(handed)
