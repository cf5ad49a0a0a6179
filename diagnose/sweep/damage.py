"""Tell a damaged SQLite database from one that could not be read.

SQLite distinguishes them only for the first page; for an unreadable later page it says "malformed"
too. So the whole file is read before it is called damaged, and SQLite is tried again, which then
finds it in the page cache. Damage that leaves pages in order shows only in the values (`sound`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

from rankscope.probes.base.folders import open_plain

# On a damaged file sqlite may produce invalid UTF-8 or huge allocations; numbers beyond 64 bits
# raise OverflowError.
FAILURES = (sqlite3.Error, UnicodeError, MemoryError, OverflowError)
BESIDE = ("-wal", "-shm", "-journal")
_PART_BYTES = 1 << 20
_MOST_BYTES = 1 << 30  # ten times the largest store: a damaged inode's size must not keep a sweep reading
_Found = TypeVar("_Found")


def sound(rows: Iterable[Sequence[Any]], *kinds: type | UnionType) -> Iterator[Sequence[Any]]:
    """Yield the rows whose fields have these types: SQLite stores any type in any column, damage included."""
    return (row for row in rows if all(map(isinstance, row, kinds)))


def unless_unread(path: Path, use: Callable[[], _Found]) -> _Found:
    """Call `use` on a database; if it fails, read the whole file and try once more.

    A FAILURE in the second attempt means damage, or (OperationalError) a disk or lock problem.
    OSError if the disk cannot read the file.
    """
    try:
        return use()
    except FAILURES:
        _read_through(path)
    return use()


def _read_through(path: Path) -> None:
    """Read a database and SQLite's files next to it into the page cache. Raises OSError."""
    _read(path)
    for suffix in BESIDE:
        with suppress(FileNotFoundError):
            _read(path.with_name(path.name + suffix))


def _read(path: Path) -> None:
    """Read a file to its end, at most 1 GiB, so that it is in the page cache. Raises OSError."""
    file = open_plain(path)
    try:
        at = 0
        while at < _MOST_BYTES and (part := os.pread(file, _PART_BYTES, at)):
            at += len(part)
    finally:
        os.close(file)
