"""Who else observes this host: two observers cost the jobs twice as much, and each would see the other's probes at work.

An observer holds a name among the sockets of this network namespace for as long as it lives; whoever comes later asks, and the kernel
tells whose it is. Nothing lies on a disk, and nothing stays however an observer ends. Names that another user holds count for nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host import procfs
from rankscope.probes.text import printable

_NAME = "\0rankscope-observer-{}"
_PLACES = 8
_PEER = struct.Struct("3i")  # pid, uid, gid
_COMMAND_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Observer:
    """Somebody who observes. `since_s`: when it was started, Unix time."""

    pid: int
    command: str
    since_s: float

    def text(self) -> str:
        """In words."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since_s))
        return f"pid {self.pid} ({self.command}), since {since} UTC"


@contextlib.contextmanager
def present() -> Iterator[tuple[Observer, ...]]:
    """While this lasts, others are told of us. Yields who observes already. Never raises."""
    found: list[Observer] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ours:
        held = False
        for place in range(_PLACES):
            name = _NAME.format(place)
            if not held:
                with contextlib.suppress(OSError):
                    ours.bind(name)
                    ours.listen()
                    held = True
                    continue
            if (other := _holder(name)) is not None:
                found.append(other)
        yield tuple(found)


def _ourselves() -> set[int]:
    """This process and those that it comes from: a service that looks closer is not another one."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            pid = procfs.read_stat(pid).ppid
        except (OSError, ValueError):
            break
    return found


def _holder(name: str) -> Observer | None:
    """Who holds a name; None where that is nobody, or not root."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            asking.setblocking(False)
            asking.connect(name)
            pid, uid, _ = _PEER.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        if uid != 0 or pid in _ourselves():
            return None
        words = procfs.read_file(f"/proc/{pid}/cmdline", 4096).decode("utf-8", "replace").split("\0")
        begun = procfs.start_ticks(pid) / procfs.TICKS_PER_S
    except (OSError, ValueError):
        return None
    # python, the program, what it was asked to do
    command = " ".join([Path(words[0]).name, *(Path(word).name for word in words[1:2]), *words[2:]]).strip()
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return Observer(pid, printable(command, _COMMAND_CHARACTERS), booted + begun)
