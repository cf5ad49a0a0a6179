"""Who maps a file so often that a probe in it would block every fork, and files that were refused for it.

A search reads the mappings of each process, each user's processes in turn. On a busy host it may
end before it has come to the one who maps the file; what it has not read says nothing.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rankscope.probes.base import patience
from rankscope.probes.bpf.functions.uprobes import MappedByOthers, MappedTooOften
from rankscope.probes.host import procfs
from rankscope.probes.host.fair import group_by, interleave
from rankscope.probes.host.namespaces import owner_uid

_REFUSED_MOST = 4096  # files
TOO_OFTEN = "a page of it is mapped so often that a probe in it would block every fork of this host"
# limits of the search for the user who maps the file so often
_SEARCH_S, _SEARCH_BYTES, _CHUNK_BYTES = 1.0, 1 << 24, 1 << 18
_SUSPECT = 1_000  # mappings of one file in one process that make its user the likely cause
# A search that ended before it had read all processes says nothing; a user can have it end so. Then
# a refused file is tried again after as long as this.
_TRIED_AGAIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Mapper:
    """The process found to map a file most often, its user and how often.

    `pid`: 0 where none was found that maps it `_SUSPECT` times. `complete`: all processes that may be read were.
    """

    pid: int = 0
    user: int = -1
    count: int = 0
    complete: bool = False

    def __str__(self) -> str:
        """Phrase, empty where none was found. For example `: by user 1000, 60000 times in one process`."""
        return f": by user {self.user}, {self.count} times in one process" if self.pid else ""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Who was found to map the file so often (pid, 0: unknown), and when it was tried (time.monotonic)."""

    pid: int
    tried_s: float


class Refused:
    """Files that a trial has found mapped too often.

    A trial, and its end, delay every fork for as long as it measures, so it is not repeated while a process is found
    that maps the file so often. Known to this process and to forks made later, such as each observer of the service.
    """

    def __init__(self) -> None:
        self._files: dict[tuple[bytes, bytes], _Refusal] = {}

    def add(self, path: Path, by: Mapper) -> None:
        """Remember an open file (/proc/self/fd/N) that was tried now; beyond `_REFUSED_MOST` files the oldest is dropped."""
        if (file := _file_of(path)) is not None:
            self._files[file] = _Refusal(by.pid, time.monotonic())
            if len(self._files) > _REFUSED_MOST:
                del self._files[next(iter(self._files))]

    def check(self, path: Path, root: Path) -> None:
        """Raise MappedTooOften for a file that was refused and may still be mapped so often; else forget that it was.

        The process that was found last time is asked first: on a busy host a search of all ends before it has come to it.
        """
        if not self._files or (file := _file_of(path)) is None or (known := self._files.get(file)) is None:
            return
        inode = inode_of(path)
        by = Mapper()
        if known.pid:
            with contextlib.suppress(OSError):
                by = _asked(known.pid, inode, time.monotonic() + _SEARCH_S, root)
        if not by.pid:
            by = find_mapper(inode, root)
        if by.pid:
            self._files[file] = _Refusal(by.pid, known.tried_s)
        elif by.complete or time.monotonic() - known.tried_s >= _TRIED_AGAIN_S:
            del self._files[file]
            return
        raise MappedTooOften(f"{TOO_OFTEN}{by}")


REFUSED = Refused()


def inode_of(path: Path) -> bytes:
    """Return the inode number, as decimal digits, of an open file (/proc/self/fd/N); empty where unknown.

    Read from fdinfo: its file system might not answer.
    """
    return _told(path, b"ino")


def _file_of(path: Path) -> tuple[bytes, bytes] | None:
    """Identify an open file by mount and inode number; None where unknown (before Linux 5.14)."""
    found = _told(path, b"mnt_id"), _told(path, b"ino")
    return found if all(found) else None


def _told(path: Path, name: bytes) -> bytes:
    """Return the digits of a line of an open file's fdinfo; empty where there are none."""
    try:
        content = (Path("/proc/self/fdinfo") / path.name).read_bytes()
    except OSError:
        return b""
    found = re.search(rb"^" + name + rb":\t(\d+)$", content, re.MULTILINE)
    return found[1] if found else b""


def find_mapper(inode: bytes, root: Path) -> Mapper:
    """Search for who maps the file most often, each user's processes in turn, for `_SEARCH_S` at most."""
    if not inode:
        return Mapper()
    until_s, most, complete = time.monotonic() + _SEARCH_S, Mapper(), True
    for pid in interleave(group_by(_pids(root), partial(_seems_of, root))):
        if time.monotonic() >= until_s:
            complete = False
            break
        try:
            one = _asked(pid, inode, until_s, root)
            most = one if one.count > most.count else most
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended, or will never be read: no other search would tell more
        except OSError:
            complete = False
    return replace(most, complete=complete)


def _asked(pid: int, inode: bytes, until_s: float, root: Path) -> Mapper:
    """Return how often this one process maps the file; no pid where less than `_SUSPECT` times. Raises OSError."""
    count = patience.ask(pid, _times_mapped, pid, inode, until_s, root)
    return Mapper(pid, owner_uid(pid, root), count) if count >= _SUSPECT else Mapper()


def need_one_user(path: Path, root: Path) -> None:
    """Raise MappedByOthers unless all processes that map an open file belong to one user (root
    aside).

    Also raised where that cannot be established in time.
    """
    inode, until_s, users = inode_of(path), time.monotonic() + _SEARCH_S, set[int]()
    for pid in _pids(root) if inode else ():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (user := owner_uid(pid, root)) in (0, *users):
                continue
            try:
                maps_it = patience.ask(pid, _times_mapped, pid, inode, until_s, root, 1) > 0
            except TimeoutError:  # no answer: assume the worst
                maps_it = True
            if maps_it:
                users.add(user)
    if not inode or time.monotonic() >= until_s or len(users) > 1:
        known = (
            f"users {', '.join(map(str, sorted(users)))} map it"
            if len(users) > 1
            else "the users that map it are unknown"
        )
        raise MappedByOthers(f"{known}, and no guard runs on this host to prevent one of them from blocking every fork")


def _seems_of(root: Path, pid: int) -> int:
    """Return the uid that owns a process's folder in /proc; -1 where it cannot be read.

    A fifth of the cost of `owner_uid`, but a process that may not be traced seems to be root's.
    """
    with contextlib.suppress(OSError):
        return Path(procfs.proc_path(root, pid)).stat().st_uid
    return -1


def _pids(root: Path) -> Iterator[int]:
    """Yield the pids of all processes."""
    return (int(one.name) for one in (root / "proc").iterdir() if one.name.isdigit())


def _times_mapped(pid: int, inode: bytes, until_s: float, root: Path, enough: int = 1 << 30) -> int:
    """Count a process's mappings of the file with this inode number. Raises OSError.

    At least as many where the count reached `enough`, the time `until_s` (CLOCK_MONOTONIC) or a limit of bytes.
    """
    wanted, count, rest, left = re.compile(rb" [0-9a-f]+:[0-9a-f]+ " + inode + rb" "), 0, b"", _SEARCH_BYTES
    with open(procfs.proc_path(root, pid, "maps"), "rb", buffering=0) as file:  # noqa: PTH123 - called through patience.ask
        while left > 0 and count < enough and time.monotonic() < until_s and (data := file.read(_CHUNK_BYTES)):
            left -= len(data)
            whole, _, rest = (rest + data).rpartition(b"\n")
            count += len(wanted.findall(whole))
    return count
