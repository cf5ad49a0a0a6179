"""Whether a database that SQLite calls damaged is so, or was only not read.

SQLite tells the two apart for the first page alone: of a page further on that the disk did not give it says "malformed". So before a file
is called damaged all of it is read, and SQLite asked once more: it then finds in the page cache what was read. Of damage that leaves every
page in order it says nothing: that shows in the values (`sound`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

from rankscope.probes.host.folders import open_plain

# A damaged file makes sqlite complain in words that are no UTF-8, or ask for as much memory as its numbers say; what does not go into its
# 64 bits is an OverflowError.
FAILURES = (sqlite3.Error, UnicodeError, MemoryError, OverflowError)
BESIDE = ("-wal", "-shm", "-journal")
_PART_BYTES = 1 << 20
_MOST_BYTES = 1 << 30  # the tables are bounded at a tenth of it: the size of a damaged inode keeps no sweep reading
_Found = TypeVar("_Found")


def sound(rows: Iterable[Sequence[Any]], *kinds: type | UnionType) -> Iterator[Sequence[Any]]:
    """Rows whose fields are of these kinds, one after the other. SQLite keeps in a field what it is given, whatever its column is declared
    as: one byte makes a blob of a text."""
    return (row for row in rows if all(map(isinstance, row, kinds)))


def unless_unread(path: Path, use: Callable[[], _Found]) -> _Found:
    """What `use` makes of a database, in a second attempt where the first one meets damage. FAILURES that it raises then are damage, or (as
    OperationalError) the disk's or another process's trouble. OSError where the disk does not give all of the file."""
    try:
        return use()
    except FAILURES:
        _read_through(path)
    return use()


def _read_through(path: Path) -> None:
    """Reads a database and what SQLite keeps beside it. OSError."""
    _read(path)
    for suffix in BESIDE:
        with suppress(FileNotFoundError):
            _read(path.with_name(path.name + suffix))


def _read(path: Path) -> None:
    file = open_plain(path)
    try:
        at = 0
        while at < _MOST_BYTES and (part := os.pread(file, _PART_BYTES, at)):
            at += len(part)
    finally:
        os.close(file)
