"""Folders and programs that root may trust: nobody else can change their content or replace them.

A folder is reached part by part from `/`, by descriptors: a symbolic link is followed only if it
belongs to root or to us, so nobody can redirect a path while it is walked. Operations use the
descriptor (`dir_fd`), with O_NOFOLLOW | O_EXCL.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rankscope.probes.base.errors import OutputFailed

LOCK_WAIT_S = 10.0
_MAX_LINKS = 40  # as in the kernel
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class UnsafePlace(OutputFailed):
    """Other users than root and the caller could change what would be written or run."""

    help = "Use a folder that belongs to root and that only root can write (chmod go-w)."


def trusted_owners() -> frozenset[int]:
    """Return the users whose files are trusted: root, ourselves, and the caller of sudo."""
    caller = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    return frozenset((0, os.geteuid(), *((int(caller),) if caller.isascii() and caller.isdigit() else ())))


@contextmanager
def opened_folder(path: Path, make: bool = False, of_others: bool = False) -> Iterator[int]:
    """Open a folder safely; yield its descriptor. Raises OSError, UnsafePlace.

    `make`: create missing parts, with mode 0700. `of_others`: it may belong to and be writable by
    others; only the path to it must be safe from redirection.
    """
    descriptor = _walk(path, make)
    try:
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    try:
        if not of_others and (why := others_can_write(os.fstat(folder))):
            raise UnsafePlace(f"{path}: {why}")
        yield folder
    finally:
        os.close(folder)


def others_can_write(found: os.stat_result, owners: frozenset[int] | None = None) -> str:
    """Say why users other than `owners` (None: the trusted ones) can change a file or folder; '' if they cannot."""
    if found.st_uid not in (trusted_owners() if owners is None else owners):
        return f"it belongs to user {found.st_uid}"
    return "others can write it" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def create_file(folder: int, name: str, mode: int = 0o600) -> int:
    """Create a new file in a folder, for writing; fail if the name exists. Raises OSError."""
    return os.open(name, _WRITE, mode, dir_fd=folder)


def open_plain(path: Path) -> int:
    """Open a regular file for reading; return the descriptor. Raises OSError.

    EINVAL for anything else: a FIFO would block a reader for ever, and opening some devices has
    effects (a watchdog reboots the host). So the type is checked before opening.
    """
    found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        mode = os.fstat(found).st_mode
        if not stat.S_ISREG(mode):
            number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(number, "not a regular file" if number == errno.EINVAL else os.strerror(number), str(path))
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(found)


def read_plain(path: Path, most_bytes: int) -> bytes:
    """Read all of a regular file at once, so that changes between two reads have no effect.

    Raises OSError, as `open_plain`; EFBIG where it is longer than `most_bytes`.
    """
    with os.fdopen(open_plain(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, most_bytes) + 1)  # memory is allocated for the whole request
        if len(data) > size:  # it grew, or its size is unknown
            data += file.read(most_bytes + 1 - len(data))
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def read_ours(top: Path, below: Sequence[str], most_bytes: int) -> bytes:
    """Read the file `below` (folders and name) under `top`, if only trusted users could have
    written it.

    The file, `top` and every folder between must belong to trusted users and be writable by nobody
    else. Raises UnsafePlace, OSError, EFBIG as `read_plain`.
    """
    found = _ours(top, below)
    try:
        return read_plain(Path(f"/proc/self/fd/{found}"), most_bytes)
    finally:
        os.close(found)


def why_not_ours(top: Path, below: Sequence[str]) -> str:
    """Say why untrusted users could have written, or put in place, the file `below` under `top`; '' if they could not.

    In that case it also cannot change meanwhile. Raises OSError.
    """
    try:
        os.close(_ours(top, below))
    except UnsafePlace as error:
        return str(error)
    return ""


def _ours(top: Path, below: Sequence[str]) -> int:
    """Open the file or folder `below` (parts of its path) under `top` as an O_PATH descriptor, if it is safe.

    Raises UnsafePlace where a part is a link or other users could change it, OSError.
    """
    with opened_folder(top) as folder:
        here = os.dup(folder)
    try:
        for at, name in enumerate(below, 1):
            there = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            os.close(here)
            here = there
            found = os.fstat(here)
            why = "it is a symbolic link" if stat.S_ISLNK(found.st_mode) else others_can_write(found)
            if why or name == "..":
                raise UnsafePlace(f"{top.joinpath(*below[:at])}: {why or 'it is not below'}")
    except BaseException:
        os.close(here)
        raise
    return here


def take_lock(lock: int) -> bool:
    """Try for LOCK_WAIT_S to lock an open file; return whether it worked.

    Writers hold it for milliseconds; one that is stopped or hangs is not waited for.
    """
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
            return True


def trusted_program(path: str) -> Path:
    """Resolve a program's path, if nobody but root (or ourselves) can change any part of it, links
    included.

    Raises UnsafePlace, OSError.
    """
    if not path.startswith("/"):
        raise UnsafePlace("its path must begin with /")
    owners = frozenset((0, os.geteuid()))
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts, links = deque(Path(path).parts[1:]), 0
    try:
        while parts:
            name = parts.popleft()
            there = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
            found = os.fstat(there)
            if why := _others_can_turn(found, owners):
                os.close(there)
                raise UnsafePlace(f"{_name_of(here) / name}: {why}")
            if stat.S_ISLNK(found.st_mode):
                parts.extendleft(reversed(Path(os.readlink("", dir_fd=there)).parts))
                os.close(there)
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                continue
            os.close(here)
            here = there
        if not stat.S_ISREG(os.fstat(here).st_mode):
            raise UnsafePlace("it is no file")
        return _name_of(here)
    finally:
        os.close(here)


def _others_can_turn(found: os.stat_result, owners: frozenset[int]) -> str:
    """Say why users other than `owners` can replace a part of a path; '' where they cannot."""
    if stat.S_ISLNK(found.st_mode):  # mode bits of a link mean nothing
        return "" if found.st_uid in owners else f"it is a symbolic link of user {found.st_uid}"
    # In a folder with the sticky bit nobody can remove or rename root's files.
    sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX and found.st_uid in owners
    return "" if sticky else others_can_write(found, owners)


def _name_of(descriptor: int) -> Path:
    """Return the path of an open file or folder."""
    return Path(f"/proc/self/fd/{descriptor}").readlink()


def _walk(path: Path, make: bool) -> int:
    """Open the folder `path` as an O_PATH descriptor, following only trusted links.

    `make`: create missing parts. Raises UnsafePlace for a link of another user, OSError.
    """
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts, links = deque(Path(path).absolute().parts[1:]), 0
    try:
        while parts:
            name = parts.popleft()
            try:
                there = _step(here, name, make)
            except NotADirectoryError:
                target = _trusted_link(here, name, path)
                links += 1
                if links > _MAX_LINKS:
                    raise
                parts.extendleft(reversed(Path(target).parts))
                continue
            os.close(here)
            here = there
    except BaseException:
        os.close(here)
        raise
    return here


def _step(here: int, name: str, make: bool) -> int:
    """Open the folder `name` in the open folder `here` as an O_PATH descriptor; `make`: create it if missing.

    `name` is `/` for the root, where an absolute link begins. Raises NotADirectoryError for a link, OSError.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
        with suppress(FileExistsError):  # another process made it meanwhile
            os.mkdir(name, 0o700, dir_fd=here)
        return os.open(name, flags, dir_fd=here)


def _trusted_link(here: int, name: str, path: Path) -> str:
    """Return the target of the link `name` in the open folder `here`; `path`: for messages.

    Raises NotADirectoryError if it is no link, UnsafePlace if another user owns it.
    """
    found = os.stat(name, dir_fd=here, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if found.st_uid not in trusted_owners():
        raise UnsafePlace(f"{path}: {name} is a symbolic link of user {found.st_uid}")
    return os.readlink(name, dir_fd=here)
