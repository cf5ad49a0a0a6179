"""A database that fails is read whole and tried once more: only what fails again is damaged."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from rankscope.diagnose.sweep import damage

FAILURES = (
    sqlite3.DatabaseError("malformed"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    MemoryError(),
    OverflowError("too large"),
)


class Failing:
    """Fails so many times, then gives 7."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.left, self.calls = error, times, 0

    def __call__(self) -> int:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return 7


@pytest.mark.parametrize("error", FAILURES, ids=lambda one: type(one).__name__)
def test_what_fails_once_is_tried_again_and_what_fails_twice_is_damaged(tmp_path: Path, error: Exception) -> None:
    (tmp_path / "sweep.db").write_bytes(b"x" * 3_000_000)
    assert damage.unless_unread(tmp_path / "sweep.db", Failing(error, 1)) == 7
    twice = Failing(error, 2)
    with pytest.raises(type(error)):
        damage.unless_unread(tmp_path / "sweep.db", twice)
    assert twice.calls == 2


def test_another_error_is_not_tried_again(tmp_path: Path) -> None:
    odd = Failing(ZeroDivisionError(), 1)
    with pytest.raises(ZeroDivisionError):
        damage.unless_unread(tmp_path / "sweep.db", odd)
    assert odd.calls == 1


def test_all_of_the_database_and_what_lies_beside_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, int]] = []
    real = damage.os.pread

    def pread(file: int, size: int, at: int) -> bytes:
        data = real(file, size, at)
        read.append((Path(f"/proc/self/fd/{file}").readlink().name, len(data)))
        return data

    monkeypatch.setattr(damage.os, "pread", pread)
    for name, size in (("sweep.db", 2_500_000), ("sweep.db-wal", 10), ("sweep.db-shm", 20), ("sweep.db-journal", 30)):
        (tmp_path / name).write_bytes(b"x" * size)
    held = os.listdir("/proc/self/fd")  # noqa: PTH208
    assert damage.unless_unread(tmp_path / "sweep.db", Failing(MemoryError(), 1)) == 7
    assert os.listdir("/proc/self/fd") == held  # noqa: PTH208
    sizes = {name: sum(size for one, size in read if one == name) for name, _ in read}
    assert sizes == {"sweep.db": 2_500_000, "sweep.db-wal": 10, "sweep.db-shm": 20, "sweep.db-journal": 30}


def test_a_database_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        damage.unless_unread(tmp_path / "sweep.db", Failing(MemoryError(), 1))
