"""Write files and folders atomically, also on a disk shared by several hosts.

 .partial-<host>-<boot>-<pid>-<random>.lock   present and locked from before the first file until after the last
 .partial-<host>-<boot>-<pid>-<random>/       while it is written
 <name>/                                      final name, once everything in it has reached the disk

All operations use descriptors of folders that nobody else can write; no existing file is ever
opened for writing. Leftovers of a killed writer are removed by the next one of the same host, only
if nobody holds the lock: never those of another host. In a shared folder, where others can choose
any names, only our own single files are removed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from rankscope.probes.base.clocks import is_older
from rankscope.probes.base.errors import OutputFailed
from rankscope.probes.base.folders import create_file, opened_folder
from rankscope.probes.host.namespaces import host_name
from rankscope.probes.host.procfs import read_file

PARTIAL = ".partial-"
_LOCK = ".lock"
_NAME = re.compile(re.escape(PARTIAL) + r"(.{1,64})-([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{8}")
_KEPT_S = 3600.0  # no writer takes that long: a window of a thousand ranks is written in seconds
_MOST_NAMES = 1000
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of FAT, CIFS and FUSE
_NO_REPLACE = 1  # RENAME_NOREPLACE
Writer = Callable[[IO[bytes]], None]


def write_folder(into: Path, name: str, files: Mapping[str, Writer]) -> Path:
    """Write a new folder `name` (or `name.2` and so on if taken) below `into` with these files;
    0700 and 0600.

    `into` is created if missing. Raises OSError, UnsafePlace, with nothing half-written.
    """
    with opened_folder(into, make=True) as place:
        remove_left(place)
        with _locked_name(place) as staging:
            os.mkdir(staging, 0o700, dir_fd=place)
            try:
                _fill(place, staging, files)
                target = _renamed(place, staging, name)
            except BaseException:
                _remove(place, staging)
                raise
        with suppress(OSError):  # it is complete; a disk that cannot confirm safety cannot be helped
            os.fsync(place)
    return into / target


def write_file(path: Path, content: bytes) -> None:
    """Write a new file, 0600, completely or not at all. Raises FileExistsError, OSError,
    UnsafePlace.

    Its folder may be another user's (/tmp): an existing entry of that name is never opened,
    followed or replaced.
    """
    with opened_folder(path.parent, of_others=True) as place:
        remove_left_files(place)
        put_file(place, path.name, lambda file: file.write(content), new=True)


def put_file(
    place: int,
    name: str,
    write: Callable[[IO[bytes]], object],
    *,
    new: bool = False,
    public: bool = False,
    lasting: bool = True,
) -> None:
    """Write a file in an open folder atomically, replacing an existing one; with `new` raise
    FileExistsError instead.

    `public`: others may read it; `lasting`: sync it to disk first. Raises OSError and the errors of
    `write`; nothing is half-written.
    """
    draft = partial_name()
    try:
        with os.fdopen(create_file(place, draft), "wb") as file:
            write(file)
            file.flush()
            if public:
                os.fchmod(file.fileno(), 0o644)
            if lasting:
                os.fsync(file.fileno())
        if new:
            rename_new(place, draft, name)
        else:
            os.rename(draft, name, src_dir_fd=place, dst_dir_fd=place)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft, dir_fd=place)
        raise


def check_writable(into: Path, size_bytes: int) -> None:
    """Create `into` and test that `size_bytes` can be written there. Raises OSError, UnsafePlace."""
    with opened_folder(into, make=True) as place:
        remove_left(place)
        name = partial_name()
        with os.fdopen(create_file(place, name), "wb") as file:
            os.unlink(name, dir_fd=place)
            file.write(bytes(size_bytes))
            file.flush()
            os.fsync(file.fileno())


def partial_name() -> str:
    """Return a new temporary name that identifies its writer: host, boot, pid."""
    return f"{PARTIAL}{_host()}-{_boot()}-{os.getpid()}-{os.urandom(4).hex()}"


def rename_new(place: int, draft: str, name: str) -> None:
    """Rename our temporary file unless the name exists (FileExistsError). Raises OSError.

    Where there are neither links nor such renames (some of FUSE) an empty file reserves the name
    until the complete one replaces it.
    """
    try:
        os.link(draft, name, src_dir_fd=place, dst_dir_fd=place, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        os.unlink(draft, dir_fd=place)
        return
    try:
        _rename_no_replace(place, draft, name)
    except OSError as error:
        if error.errno not in (*_NO_LINKS, errno.EINVAL):
            raise
        os.close(create_file(place, name))
        try:
            os.rename(draft, name, src_dir_fd=place, dst_dir_fd=place)
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=place)
            raise


def _rename_no_replace(place: int, draft: str, name: str) -> None:
    """Call renameat2(2) with RENAME_NOREPLACE. Raises OSError; ENOSYS where the C library has none."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    failed = call(place, os.fsencode(draft), place, os.fsencode(name), _NO_REPLACE) if call is not None else -1
    if failed:
        number = ctypes.get_errno() if call is not None else errno.ENOSYS
        raise OSError(number, os.strerror(number), name)


def tidy(into: Path) -> None:
    """Remove what killed writers of this host left in a folder of ours, if there is such a folder. Never raises."""
    with suppress(OSError, OutputFailed), opened_folder(into) as place:
        remove_left(place)


def remove_left(place: int) -> None:
    """Remove leftovers of this host's killed writers from a folder of ours. Never raises."""
    with suppress(OSError):
        for name, same_boot, pid in _left(place):
            with suppress(OSError):
                _remove_left(place, name, same_boot, pid)


def remove_left_files(place: int) -> None:
    """Remove our leftover files from a folder that may be another user's. Never raises.

    No folders, as the owner may give one of root's such a name, and no files of others.
    """
    with suppress(OSError):
        for name, same_boot, pid in _left(place):
            with suppress(OSError):
                about = os.stat(name, dir_fd=place, follow_symlinks=False)
                ours = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid()
                if ours and (_is_old(place, name, same_boot) or (same_boot and not Path("/proc", pid).exists())):
                    os.unlink(name, dir_fd=place)


def _left(place: int) -> Iterator[tuple[str, bool, str]]:
    """Yield the temporary names of this host's writers: (name, whether of this boot, pid as text). Raises OSError."""
    for name in {entry.removesuffix(_LOCK) for entry in os.listdir(place)}:
        found = _NAME.fullmatch(name)
        if found and found[1] == _host():
            yield name, found[2] == _boot(), found[3]


def _remove_left(place: int, name: str, same_boot: bool, pid: str) -> None:
    """Remove one leftover, if nobody writes it.

    Another host can have our name: of another boot only old ones are removed.
    """
    try:
        lock = os.open(name + _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    except FileNotFoundError:  # a single file has no lock
        is_file = stat.S_ISREG(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
        if _is_old(place, name, same_boot) or (is_file and same_boot and not Path("/proc", pid).exists()):
            _remove(place, name)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if same_boot or _is_old(place, name + _LOCK, same_boot):
            _remove(place, name)
            os.unlink(name + _LOCK, dir_fd=place)
    finally:
        os.close(lock)


def _is_old(place: int, name: str, same_boot: bool) -> bool:
    """Tell whether a leftover was last changed over `_KEPT_S` seconds ago. Raises OSError.

    A time in the future counts as old, but only for one of this boot.
    """
    at_s, now_s = os.stat(name, dir_fd=place, follow_symlinks=False).st_mtime, time.time()
    # A future time comes from our own clock, set back since; or from a host whose clock is ahead,
    # and which may be writing.
    return is_older(at_s, _KEPT_S, now_s) if same_boot else now_s - at_s > _KEPT_S


@contextmanager
def _locked_name(place: int) -> Iterator[str]:
    """Yield a temporary name whose lock is held, so that it does not count as left over."""
    while True:
        name = partial_name()
        lock = create_file(place, name + _LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink == 0:
                continue  # somebody removed it as left over, before it was locked
            try:
                yield name
            finally:
                with suppress(OSError):
                    os.unlink(name + _LOCK, dir_fd=place)
            return
        finally:
            os.close(lock)


def _fill(place: int, staging: str, files: Mapping[str, Writer]) -> None:
    """Write the files into the staging folder and sync them to disk. Raises OSError and the errors of the writers."""
    folder = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    try:
        for name, write in files.items():
            with os.fdopen(create_file(folder, name), "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        os.fsync(folder)
    finally:
        os.close(folder)


def _renamed(place: int, staging: str, name: str) -> str:
    """Rename the staging folder to `name`, or the next free `name.2` …; return the name that it got.

    A rename never replaces a folder with content.
    """
    for attempt in range(1, _MOST_NAMES):
        target = name if attempt == 1 else f"{name}.{attempt}"
        try:
            os.rename(staging, target, src_dir_fd=place, dst_dir_fd=place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            return target
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)


def _remove(place: int, name: str) -> None:
    """Remove a staging folder with its content, or a file. Never raises."""
    with suppress(OSError):
        try:
            folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
        except NotADirectoryError:
            os.unlink(name, dir_fd=place)
            return
        try:
            for entry in os.listdir(folder):  # noqa: PTH208 - by descriptor
                os.unlink(entry, dir_fd=folder)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=place)


def _host() -> str:
    """Return this host's name as in temporary names: safe, at most 40 characters."""
    return safe_name(host_name())[:40] or "host"


def _boot() -> str:
    """Return the first part of the boot id, which differs after a reboot and on other hosts."""
    try:
        return read_file("/proc/sys/kernel/random/boot_id", 64).decode("ascii", "replace")[:8]
    except OSError:
        return "0" * 8


def safe_name(text: str) -> str:
    """Convert a text to a safe part of a file name, of at most 64 characters; '' where nothing is left."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in text).lstrip(".")[:64]
