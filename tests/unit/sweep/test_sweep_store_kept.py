"""The state folder: what is set aside, begun anew, forgotten, and said where it cannot be used."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_trees import NOW_S, host

from rankscope.diagnose.sweep import store as stores
from rankscope.diagnose.sweep.config import Config
from rankscope.diagnose.sweep.context import Earlier
from rankscope.diagnose.sweep.engine import Sweep, sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.spare import Spare
from rankscope.diagnose.sweep.store import STATE_FILE, SweepRunning, open_store
from rankscope.probes.base.clocks import NEVER_SO_LONG_S

DOWN = Finding("net.link", "critical", "eth0", "/sys", 1.0, "", "up", "down", "plug it in")


def done(root: Path, *findings: Finding, at_s: float = NOW_S) -> Sweep:
    return replace(sweep([], Config(), Earlier(), host(root), at_s), findings=findings)


def rows(folder: Path, words: str) -> Sequence[tuple[object, ...]]:
    with sqlite3.connect(folder / STATE_FILE) as database:
        return database.execute(words).fetchall()


def test_a_file_of_another_shape_is_set_aside_with_what_is_beside_it_and_a_new_one_is_begun(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / STATE_FILE) as other:
        other.execute("CREATE TABLE counters(id TEXT, key TEXT, PRIMARY KEY(id, key)) WITHOUT ROWID")
        other.execute("CREATE TABLE current(id TEXT, instance TEXT, PRIMARY KEY(id, instance)) WITHOUT ROWID")
    other.close()
    for suffix in ("-shm", "-journal"):
        (tmp_path / f"{STATE_FILE}{suffix}").write_bytes(b"")
    with open_store(tmp_path) as store:
        assert "could not be used (table counters has another shape)" in store.notes[0]
        store.save(done(tmp_path / "root", DOWN), ("net.link",), 30.0)
    assert rows(tmp_path, "SELECT id, instance FROM current") == [("net.link", "eth0")]
    assert rows(tmp_path, "PRAGMA user_version") == [(1,)]
    assert (tmp_path / STATE_FILE).stat().st_mode & 0o777 == 0o600
    left = {one.name for one in tmp_path.iterdir()} - {"root"}
    assert len(left) == 3 and not [
        name for name in left if name.endswith(("-shm", "-journal"))
    ]  # ours, the lock, the old one


def test_a_damaged_file_that_cannot_be_set_aside_means_no_memory_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    (tmp_path / STATE_FILE).write_bytes(b"no database" * 100)
    monkeypatch.setattr(Path, "replace", refused)
    with open_store(tmp_path) as store:
        assert len(store.notes) == 1 and "no memory of earlier sweeps" in store.notes[0]
        assert "Read-only file system" in store.notes[0]


def test_a_file_of_another_version_is_closed_and_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []

    class Watched(sqlite3.Connection):
        def close(self) -> None:
            closed.append(True)
            super().close()

    with sqlite3.connect(tmp_path / STATE_FILE) as other:
        other.execute("PRAGMA user_version = 7")
    other.close()
    real = sqlite3.connect
    monkeypatch.setattr(stores.sqlite3, "connect", lambda *words, **more: real(*words, **more, factory=Watched))
    with open_store(tmp_path) as store:
        assert "it is of version 7" in store.notes[0]
    assert len(closed) == 2  # tried twice
    monkeypatch.undo()
    assert rows(tmp_path, "PRAGMA user_version") == [(7,)]


def test_no_sweep_waits_for_the_disk(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        assert store._database is not None
        assert store._database.execute("PRAGMA synchronous").fetchone() == (0,)


def test_who_waits_for_another_sweep_does_not_ask_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(tmp_path):
        pass
    asked: list[int] = []
    flock = fcntl.flock

    def counted(file: int, how: int) -> None:
        asked.append(how)
        flock(file, how)

    with (tmp_path / "lock").open("r+b") as lock:
        flock(lock, fcntl.LOCK_EX)
        monkeypatch.setattr(fcntl, "flock", counted)
        with pytest.raises(SweepRunning), open_store(tmp_path, patience_s=0.4):
            pass
    assert 2 <= len(asked) <= 10


def test_what_comes_back_has_begun_anew(tmp_path: Path) -> None:
    fine = replace(DOWN, state="ok", instance="eth1")
    with open_store(tmp_path / "state") as store:
        for at_s, finding in ((NOW_S, DOWN), (NOW_S + 60, fine), (NOW_S + 120, DOWN)):
            last = store.save(done(tmp_path, finding, at_s=at_s), ("net.link",), 30.0)
    assert [one.since_s for one in last.findings] == [NOW_S + 120]


def test_the_history_is_bounded_in_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_MAX_ROWS", 3)
    with open_store(tmp_path / "state") as store:
        for number in range(7):
            changed = replace(DOWN, value=float(number))
            store.save(done(tmp_path, changed, at_s=NOW_S + 60 * number), ("net.link",), 30.0)
    assert rows(tmp_path / "state", "SELECT value FROM history") == [(4.0,), (5.0,), (6.0,)]
    assert rows(tmp_path / "state", "SELECT count(*) FROM sweeps") == [(3,)]


@pytest.mark.parametrize(
    ("leap_s", "word"), [(3 * NEVER_SO_LONG_S, "3 years later"), (-3 * NEVER_SO_LONG_S, "3 years earlier")]
)
def test_a_leap_of_the_clock_is_told_with_its_direction(tmp_path: Path, leap_s: float, word: str) -> None:
    with open_store(tmp_path / "state") as store:
        store.save(done(tmp_path, DOWN), ("net.link",), 30.0)
        store.save(done(tmp_path, DOWN, at_s=NOW_S + leap_s), ("net.link",), 30.0)
        assert word in store.notes[-1]


def test_a_history_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        assert store._database is not None
        store._database.execute("DROP TABLE history")
        assert store.history(0.0, NOW_S) == ()
        assert "trends cannot be seen" in store.notes[-1]


def test_texts_that_are_too_many_for_the_copy_in_memory_are_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    many = tuple(("fs.stuck", str(number), "x" * 10_000) for number in range(200))
    with open_store(tmp_path / "file/state", Spare(tmp_path / "spare")) as store:
        store.save(replace(done(tmp_path / "root"), words=many), (), 30.0)
        assert "of 200 words for the next sweep were too many" in store.notes[-1]
    assert os.stat(tmp_path / "spare/words.json").st_size <= 1 << 20  # noqa: PTH116
