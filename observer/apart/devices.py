"""GPUs of this host for a confined process: another process opens them on request
(probes/confine/opener.py).

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
    """List the GPU devices of this host."""
    return [*(device for pattern in _NAMES for device in FOLDER.glob(pattern)), *map(Path, _emulated())]


def _emulated() -> list[str]:
    return [name for name in os.environ.get("RANKSCOPE_DEVICES", "").split(":") if name]


def groups(devices: Sequence[Path]) -> list[int]:
    """List the groups (except root's) of devices that not everybody may open."""
    found = set()
    for device in devices:
        with contextlib.suppress(OSError):
            status = device.stat()
            if status.st_gid and status.st_mode & 0o006 != 0o006:
                found.add(status.st_gid)
    return sorted(found)


def listen() -> int:
    """Filter the calls of this thread and its children; return the descriptor that receives
    requests to open for writing.

    Raises OSError, ValueError where that is impossible: then nothing is filtered.
    """
    _try_once()
    return credentials.filter_and_listen(seccomp.program(writing=False, asking=True))


def _try_once() -> None:
    """Test the kernel's support on a thread of its own, since a filter cannot be removed. Raises
    OSError.
    """
    refused: list[OSError] = []

    def attempt() -> None:
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
    """Start the program that opens GPUs for the process behind this listener; return its pid.

    It ends with that process, and with us. Raises OSError.
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
