r"""Disk cache of compiled probes and BTF offsets: only the first start on a host computes them.

What is read here is loaded into the kernel by root. So the folder, every folder above it and the
file must belong to root (that is: to the observing user) and be writable by nobody else, and none
may be a link; a truncated or changed file does not match its digest. If any check fails, the probes
are compiled again.

/var/cache/rankscope/probes/probes-<key>   "rankscope-probes 1 <sha256 of key and rest>\n",
                                           then what compiled.py or btf.py wrote
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from rankscope.probes.base.clocks import age_order, is_older
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.host.procfs import ROOT, read_file

FOLDER = Path("var/cache/rankscope/probes")
_OWN_LEVELS = 2  # levels of FOLDER that we create ourselves
_PREFIX, _STAGING = "probes-", ".writing-"
_MAGIC = b"rankscope-probes 1"
_MOST_BYTES = 16 << 20  # all probes together are 0.6 MB
# two for each version and call table (programs), three for each kernel (offsets): a host has one or
# two in use
_MOST_KEPT = 12
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ABANDONED_S = 3600.0  # a write takes milliseconds
_KERNEL_NOTES = Path("sys/kernel/notes")


class CacheRefused(RankscopeError):
    """The cached file is not to be trusted, or nothing can be cached."""


def kernel_identity(root: Path = ROOT) -> tuple[str, ...]:
    """Return words that differ between any two builds of a kernel: release, version, machine, ELF notes in hex."""
    kernel, notes = os.uname(), b""
    with contextlib.suppress(OSError):
        notes = read_file(str(root / _KERNEL_NOTES), 65536)  # contains the build id
    return kernel.release, kernel.version, kernel.machine, notes.hex()


def read(key: str, root: Path = Path("/")) -> bytes | None:
    """Read what `write` stored under `key`; None where there is nothing.

    Raises CacheRefused where it cannot be trusted.
    """
    try:
        with own_folder(FOLDER, root, make=False) as folder:
            blob = _trusted_file(_PREFIX + key, folder)
            # the least recently used ones are deleted first
            os.utime(_PREFIX + key, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CacheRefused(f"{error.strerror}") from error
    head, _, payload = blob.partition(b"\n")
    if head != _head(key, payload):
        raise CacheRefused("they are damaged")
    return payload


def write(key: str, payload: bytes, root: Path = Path("/")) -> None:
    """Store `payload` under `key`, whole or not at all. Raises CacheRefused."""
    try:
        with own_folder(FOLDER, root, make=True) as folder:
            _write(_PREFIX + key, _head(key, payload) + b"\n" + payload, folder)
            _forget_the_oldest(folder)
    except OSError as error:
        raise CacheRefused(f"{error.strerror}") from error


def _head(key: str, payload: bytes) -> bytes:
    """Return the first line of a cached file, without the newline: a magic word and the digest of key and payload."""
    return _MAGIC + b" " + hashlib.sha256(key.encode() + b"\n" + payload).hexdigest().encode()


@contextlib.contextmanager
def own_folder(wanted: Path, root: Path, *, make: bool) -> Iterator[int]:
    """Open the folder `wanted` below `root` if nobody else can have written to it; yield its descriptor.

    Its last two levels must not be links. Raises CacheRefused where anybody else could have written into it
    or a folder above, OSError. With `make`, these two levels are created; the last is readable by its owner
    only.
    """
    base = root.resolve()
    above = (base / Path(*wanted.parts[:-_OWN_LEVELS])).resolve()  # /var may be a link that root made
    if not above.is_relative_to(base):
        raise CacheRefused(f"{above} is not below {base}")
    place, opened = base, os.open(base, _OPEN_FOLDER)
    try:
        _check(opened, place)
        for name in (*above.relative_to(base).parts, *wanted.parts[-_OWN_LEVELS:]):
            place = place / name
            if make and not above.is_relative_to(place):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700 if name == wanted.name else 0o755, dir_fd=opened)
            try:
                inner = os.open(name, _OPEN_FOLDER, dir_fd=opened)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP):
                    raise CacheRefused(f"{place} is a link or no folder") from None
                raise
            os.close(opened)
            opened = inner
            _check(opened, place)
        if os.fstat(opened).st_mode & 0o077:
            raise CacheRefused(f"{place} is open to others")
        yield opened
    finally:
        os.close(opened)


def _check(descriptor: int, place: Path) -> None:
    """Raise CacheRefused where an open folder belongs to a user other than root and us, or others can write to it.

    `place`: its path, for the message.
    """
    status = os.fstat(descriptor)
    if status.st_uid not in (0, os.geteuid()):
        raise CacheRefused(f"{place} belongs to user {status.st_uid}")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheRefused(f"others can write to {place}")


def _trusted_file(name: str, folder: int) -> bytes:
    """Read a file of an open folder. Raises CacheRefused where it is not a regular file of ours alone, OSError.

    Also refused: a second name (hard link), any right of others, more than `_MOST_BYTES`.
    """
    try:
        descriptor = os.open(name, _OPEN_FILE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CacheRefused("the file is a link") from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise CacheRefused("the file has a second name or is none")
        if status.st_uid != os.geteuid():
            raise CacheRefused(f"the file belongs to user {status.st_uid}")
        if status.st_mode & 0o077:
            raise CacheRefused("the file is open to others")
        if status.st_size > _MOST_BYTES:
            raise CacheRefused(f"the file has {status.st_size} bytes")
        return file.read(_MOST_BYTES)


def _write(name: str, content: bytes, folder: int) -> None:
    """Write a file of an open folder under a temporary name, then rename it to `name`. Raises OSError."""
    staging = f"{_STAGING}{os.getpid()}-{time.monotonic_ns()}"
    descriptor = os.open(staging, _CREATE, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.rename(staging, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staging, dir_fd=folder)
        raise


def _forget_the_oldest(folder: int) -> None:
    """Delete all but the `_MOST_KEPT` most recently used entries of an open folder, and leftovers of killed writers."""
    now_s = time.time()
    used = {name: os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime for name in os.listdir(folder)}
    kept = sorted(
        (name for name in used if name.startswith(_PREFIX)), key=lambda name: age_order(used[name], now_s), reverse=True
    )
    abandoned = (name for name, at in used.items() if name.startswith(_STAGING) and is_older(at, _ABANDONED_S, now_s))
    for name in (*kept[_MOST_KEPT:], *abandoned):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
