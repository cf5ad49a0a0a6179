"""Who else observes this host: two observers cost the jobs twice as much, and each would see the other's probes at work.

An observer holds a place in a file of root's for as long as it lives; whoever comes later asks the kernel who holds one, and hears the
number that it has in his own namespace. The file is empty, and nobody but root can open it: there is nothing in it to be believed, no
user can hold a place, and a file that was left stands for nobody. The kernel takes a place back however its holder ends; a child of his
does not hold it.

Seen is who has the same file: who has a /run of his own, as most containers do, is not, nor sees others.
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

from rankscope.probes.errors import RankscopeError
from rankscope.probes.host import procfs
from rankscope.probes.host.folders import UnsafePlace, opened_folder, others_can_write
from rankscope.probes.text import printable

FOLDER = Path("/run/rankscope/observers")
_FILE = "places"
_PLACES = 64  # a byte each; who finds none free sees the others all the same
# Locks of a process, not of an open file: these alone say whose they are. That process lets go of all of them as it closes the file once.
_LOCK = struct.Struct("hhqqi0q")  # type, whence, start, length, pid
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ROOT = frozenset((0,))
_COMMAND_CHARACTERS = 60
_opened: list[tuple[int, int]] = []  # process, descriptor: of who is in it already, or of who forked us


@dataclass(frozen=True, slots=True)
class Observer:
    """Somebody who observes. `pid` 0: none in this namespace, so that no more is known; `since_s`: when it was started, Unix time."""

    pid: int
    command: str
    since_s: float

    def text(self) -> str:
        """In words."""
        if not self.pid:
            return "in another container"
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since_s))
        return f"pid {self.pid} ({self.command}), since {since} UTC"


@contextlib.contextmanager
def present(say: Callable[[str], None] = lambda _: None) -> Iterator[tuple[Observer, ...]]:
    """While this lasts, others are told of us. Yields who observes already; `say`: that this cannot be known. Never raises."""
    if _opened and _opened[-1][0] == os.getpid():
        yield _others(_opened[-1][1])
        return
    try:
        file = _open()
    except (OSError, RankscopeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        say(f"whether another observer is at work on this host is not known ({FOLDER}: {why})")
        yield ()
        return
    _opened.append((os.getpid(), file))
    try:
        _take_place(file)
        yield _others(file)
    finally:
        _opened.pop()
        os.close(file)


def _open() -> int:
    """The file of places. OSError, UnsafePlace: also where others could open it, and hold places."""
    run, ours = FOLDER.parents[1], FOLDER.parent
    # A host without /run gets none. In one that all may write, as tmpfs is by itself, somebody can only be there before us.
    with opened_folder(run, of_others=True), opened_folder(ours, make=True), opened_folder(FOLDER, make=True) as folder:
        file = os.open(_FILE, _OPEN, 0o600, dir_fd=folder)
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or others_can_write(found, _ROOT) or found.st_mode & 0o077:
        os.close(file)
        raise UnsafePlace(f"{_FILE} is not root's alone")
    return file


def _take_place(file: int) -> None:
    for place in range(_PLACES):
        with contextlib.suppress(OSError):  # somebody else's, or a file system without locks
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            return


def _others(file: int) -> tuple[Observer, ...]:
    """Who holds a place, but for this process and those that it comes from."""
    ours = _ourselves()
    held = dict.fromkeys(pid for place in range(_PLACES) if (pid := _holder(file, place)) is not None)
    return tuple(found for pid in held if pid not in ours and (found := _observer(pid)) is not None)


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


def _holder(file: int, place: int) -> int | None:
    """Who holds a place, 0 where he has no number in our namespace; None where that is nobody, or this process."""
    try:
        asked = fcntl.fcntl(file, fcntl.F_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0))
    except OSError:
        return None
    kind, _, _, _, pid = _LOCK.unpack(asked)
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


def _observer(pid: int) -> Observer | None:
    """What is known of it; None where it has ended."""
    if not pid:
        return Observer(0, "", 0.0)
    try:
        words = procfs.read_file(f"/proc/{pid}/cmdline", 4096).decode("utf-8", "replace").split("\0")
        begun = procfs.start_ticks(pid) / procfs.TICKS_PER_S
    except (OSError, ValueError):
        return None
    # python, the program, what it was asked to do: no options, as a store or a collector may be named with a key
    command = " ".join([*(Path(word).name for word in words[:2]), *(word for word in words[2:3] if word.isalpha())])
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return Observer(pid, printable(command, _COMMAND_CHARACTERS), booted + begun)
