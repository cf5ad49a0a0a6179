"""Detect other observers of this host: two cost the jobs twice as much, and see each other's probes at work.

An observer holds the lock of a byte in a file of root's for as long as it lives; a later one asks
the kernel who holds locks, and gets the pids in its own namespace. The file is empty, and only root
can open it: it contains nothing to trust, no user can hold a lock, and a leftover file means
nothing. The kernel releases a lock however its holder ends; its children do not inherit it.

Only observers with the same file are seen: one with a /run of its own, as in most containers, is
not, nor sees others.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.base.folders import UnsafePlace, opened_folder, others_can_write
from rankscope.probes.base.text import printable
from rankscope.probes.host import procfs

FOLDER = Path("/run/rankscope/observers")
_FILE = "places"
_PLACES = 64  # lockable bytes; an observer without a free one still sees the others
# Locks of a process, not of an open file: only these report their holder. A process releases all of
# them when it closes the file once.
_LOCK = struct.Struct("hhqqi0q")  # type, whence, start, length, pid
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ROOT = frozenset((0,))
_COMMAND_CHARACTERS = 60
# process and descriptor: of this process, or of the one that forked it
_opened: list[tuple[int, int]] = []


@dataclass(frozen=True, slots=True)
class Observer:
    """Another observer. `pid` 0: in another namespace, so nothing more is known; `since_s`: start,
    Unix time.
    """

    pid: int
    command: str
    since_s: float

    def text(self) -> str:
        """Describe the observer: 'pid 77 (python rankscope watch), since 2026-01-31 12:00:00 UTC'.

        'in another container' where its pid is 0.
        """
        if not self.pid:
            return "in another container"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since_s))
        return f"pid {self.pid} ({self.command}), since {since} UTC"


@contextlib.contextmanager
def present(say: Callable[[str], None] = lambda _: None) -> Iterator[tuple[Observer, ...]]:
    """Register as an observer for the duration of the block; yield the others.

    `say`: called with a note where others cannot be detected. Never raises.
    """
    if _opened and _opened[-1][0] == os.getpid():
        yield _others(_opened[-1][1])
        return
    try:
        file = _open()
    except (OSError, RankscopeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        say(f"it is unknown whether another observer runs on this host ({FOLDER}: {why})")
        yield ()
        return
    _opened.append((os.getpid(), file))
    try:
        _lock_slot(file)
        yield _others(file)
    finally:
        _opened.pop()
        os.close(file)


def _open() -> int:
    """Open the file of locks. Raises OSError, UnsafePlace: also where others could open it."""
    run, ours = FOLDER.parents[1], FOLDER.parent
    # A host without /run gets none. Where all may write to /run, as to any new tmpfs, somebody can
    # only create the folder first.
    with opened_folder(run, of_others=True), opened_folder(ours, make=True), opened_folder(FOLDER, make=True) as folder:
        file = os.open(_FILE, _OPEN, 0o600, dir_fd=folder)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or others_can_write(found, _ROOT) or found.st_mode & 0o077:
        os.close(file)
        raise UnsafePlace(f"{_FILE} is not root's alone")
    return file


def _lock_slot(file: int) -> None:
    """Lock the first free byte of the file as this process's slot; do nothing where none is free. Never raises."""
    for place in range(_PLACES):
        with contextlib.suppress(OSError):  # held by another observer, or a file system without locks
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            return


def _others(file: int) -> tuple[Observer, ...]:
    """Describe the observers that hold a lock in the file, except this process and its ancestors."""
    ours = _ourselves()
    held = dict.fromkeys(pid for place in range(_PLACES) if (pid := _holder(file, place)) is not None)
    return tuple(found for pid in held if pid not in ours and (found := _observer(pid)) is not None)


def _ourselves() -> set[int]:
    """Return the pids of this process and its ancestors: a service that starts an observer is not another one."""
    found: set[int] = set()
    pid = os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            pid = procfs.read_stat(pid).ppid
        except (OSError, ValueError):
            break
    return found


def _holder(file: int, place: int) -> int | None:
    """Return the pid that holds the lock of byte `place`, 0 if it is in another pid namespace; None if free or ours."""
    try:
        asked = fcntl.fcntl(file, fcntl.F_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
    except OSError:
        return None
    kind, _, _, _, pid = _LOCK.unpack(asked)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _observer(pid: int) -> Observer | None:
    """Describe the observer of a pid, 0 for one in another pid namespace; None where it has ended."""
    if not pid:
        return Observer(0, "", 0.0)
    try:
        words = procfs.read_file(f"/proc/{pid}/cmdline", 4096).decode("utf-8", "replace").split("\0")
        begun = procfs.start_ticks(pid) / procfs.TICKS_PER_S
    except (OSError, ValueError):
        return None
    # python, the program, its command: no options, since a store or a collector may be named with a
    # key
    command = " ".join([*(Path(word).name for word in words[:2]), *(word for word in words[2:3] if word.isalpha())])
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return Observer(pid, printable(command, _COMMAND_CHARACTERS), booted + begun)
