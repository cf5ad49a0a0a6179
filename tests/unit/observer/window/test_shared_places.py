"""Folders that others can write: what lies there keeps nobody waiting, is read once, and bends no path of ours."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from installed import RANKSCOPE

from rankscope.diagnose.infer.fleet.sources import load
from rankscope.diagnose.sweep.peers import read_sweeps
from rankscope.observer.window import tables
from rankscope.observer.window.bundle import is_bundle
from rankscope.observer.window.folder import Window, read_window, write_window
from rankscope.observer.window.manifest import WINDOW_SCHEMA, Manifest
from rankscope.observer.window.schema import TABLES
from rankscope.observer.window.store import objects, tidy
from rankscope.observer.window.store.age import Clocks
from rankscope.observer.window.store.container import decode, encode
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import open_store
from rankscope.probes.base.errors import BadData, OutputFailed
from rankscope.probes.base.folders import read_plain

SOMEBODY = 65534


def window() -> Window:
    manifest = Manifest(WINDOW_SCHEMA, "host", 1.0e9, 2.0, ("job",), "0")
    return Window(manifest, **{name: schema.empty_table() for name, schema in TABLES.items()})


def within_seconds(work: Callable[[], object]) -> BaseException | None:
    """What it raised; fails where it does not come back."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it waits"
    return raised[0] if raised else None


@pytest.mark.parametrize("name", ["steps.parquet", "window.json"])
def test_a_fifo_in_a_window_is_bad_data(name: str, tmp_path: Path) -> None:
    folder = write_window(window(), tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    error = within_seconds(lambda: read_window(folder))
    assert isinstance(error, BadData) and "not a regular file" in str(error)


def test_a_fifo_among_sweeps_of_other_hosts_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    done = subprocess.run([RANKSCOPE, "sweep", tmp_path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 65 and "not a regular file" in done.stderr
    assert isinstance(within_seconds(lambda: read_sweeps([tmp_path])), BadData)


def test_a_fifo_in_a_store_is_bad_data(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    os.mkfifo(tmp_path / "x.parquet")
    assert isinstance(within_seconds(lambda: objects.get(store, str(tmp_path / "x.parquet"))), BadData)


def test_what_was_checked_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is another one after its footer was looked at."""
    of = pa.schema([("rank", pa.int32())])
    path, other = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"rank": pa.array([1], pa.int32())}), path)
    pq.write_table(pa.table({"rank": pa.array(range(1000), pa.int32())}), other)
    check_pages = tables.check_pages

    def then_swap(*told: object) -> None:
        check_pages(*told)  # type: ignore[arg-type]
        other.replace(path)

    monkeypatch.setattr(tables, "check_pages", then_swap)
    assert tables.read_table(path, of).num_rows == 1


def test_what_is_no_file_is_not_even_opened(tmp_path: Path) -> None:
    """To be opened is enough for some devices to act. Who writes into a FIFO is let in as soon as anybody opens it to read."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "steps.parquet").symlink_to(tmp_path / "fifo")
    opened: list[int] = []
    writer = threading.Thread(target=lambda: opened.append(os.open(tmp_path / "fifo", os.O_WRONLY)), daemon=True)
    writer.start()
    for _ in range(20):
        with pytest.raises(OSError, match="not a regular file"):
            read_plain(tmp_path / "steps.parquet", 100)
        time.sleep(0.01)
    assert not opened
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer.join(10)
    for descriptor in (reader, *opened):
        os.close(descriptor)


def test_a_file_is_no_longer_than_may_be(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    assert len(read_plain(tmp_path / "a", 100)) == 100
    with pytest.raises(OSError, match="too large"):
        read_plain(tmp_path / "a", 99)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of somebody else's")
def test_old_windows_are_removed_from_no_place_that_somebody_bent(tmp_path: Path) -> None:
    # GIVEN a store that others can write, and somebody's Parquet files elsewhere
    home, elsewhere = tmp_path / "store", tmp_path / "data"
    home.mkdir(mode=0o777)
    elsewhere.mkdir()
    theirs = elsewhere / "train-00000.parquet"
    theirs.write_bytes(b"PAR1")
    key = key_of(window().manifest)
    old = home / key
    old.parent.mkdir(parents=True)
    old.write_bytes(encode([window()]))
    # WHEN a part of the path of an old window leads there, by a link that is not root's
    bent = home / "job=a/window=20010101T000000Z/shard=00"
    bent.parent.mkdir(parents=True)
    bent.symlink_to(elsewhere)
    os.lchown(bent, SOMEBODY, SOMEBODY)
    store = open_store(f"file://{home}")
    assert tidy.prune(store, 86_400, Clocks(2.0e9), clock_is_right=True).removed == 1
    # THEN what lies there stays, also where the path is bent after it was listed
    assert theirs.exists() and not old.exists()
    with pytest.raises(OutputFailed, match="symbolic link of user"):
        objects.remove(store, str(bent / theirs.name))
    assert theirs.exists()


@pytest.fixture
def as_somebody() -> Iterator[None]:
    """Who may not look into what others closed, as root may not where a mount or a file server says so."""
    if os.geteuid():
        yield
        return
    os.seteuid(SOMEBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def store_of_many() -> Iterator[Path]:
    """A store with an old and a young window, in which two others have closed a folder and an object of theirs."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for start in (1.0e9, 1.7e9):
            one = replace(window(), manifest=replace(window().manifest, start=start))
            objects.put(open_store(f"file://{place}"), key_of(one.manifest), encode([one]))
            os.utime(place / key_of(one.manifest), (start, start))
        (place / "job=closed").mkdir(mode=0)
        key = key_of(replace(window().manifest, start=1.7e9, host="other"))
        (place / key).parent.mkdir(parents=True, exist_ok=True)
        (place / key).write_bytes(encode([window()]))
        if not os.geteuid():
            for path in (place, *place.rglob("*")):
                os.chown(path, SOMEBODY, SOMEBODY)
        (place / key).chmod(0)
        yield place
        (place / "job=closed").chmod(0o700)


def test_what_others_closed_hides_nothing_else_in_a_store(store_of_many: Path, as_somebody: None) -> None:
    # WHEN a part of the store lets nobody in
    loaded = load([store_of_many], every_moment=True)
    # THEN all else is read, and what is missing is said
    assert [one.manifest.start for one in loaded.windows] == [1.0e9, 1.7e9]
    said = " ".join(note.text for note in loaded.notes)
    assert "job=closed" in said and "other" in said


def test_what_others_closed_keeps_no_old_window_from_going(store_of_many: Path, as_somebody: None) -> None:
    done = tidy.prune(open_store(f"file://{store_of_many}"), 86_400, Clocks(1.7e9), clock_is_right=True)
    assert done.removed == 1
    assert [path.rpartition("/")[2] for path in done.unreadable] == ["job=closed"]


def test_an_old_window_that_cannot_be_removed_keeps_no_other_from_going(store_of_many: Path, as_somebody: None) -> None:
    # GIVEN an old window in a folder that we may not write
    store = open_store(f"file://{store_of_many}")
    first, *rest = (Path(found.path) for found in objects.listing(store).objects)
    first.parent.chmod(0o500)
    # WHEN all are old
    done = tidy.prune(store, 86_400, Clocks(3.0e9), clock_is_right=True)
    first.parent.chmod(0o700)
    # THEN the others go, and it is told
    assert done.removed == len(rest) and first.exists()
    assert any(first.name in path for path in done.unreadable)


def test_links_in_a_store_make_no_tree_without_end(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"job={number}").symlink_to(tmp_path)
    key = key_of(window().manifest)
    objects.put(open_store(f"file://{tmp_path}"), key, encode([window()]))
    assert within_seconds(lambda: objects.listing(open_store(f"file://{tmp_path}"))) is None
    assert [found.path for found in objects.listing(open_store(f"file://{tmp_path}")).objects] == [str(tmp_path / key)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
def test_what_others_wrote_does_not_become_ours_by_being_put_together(tmp_path: Path) -> None:
    """A service believes what is root's; a window of somebody else's among ours must not become one of ours."""
    tmp_path.chmod(0o700)
    store = open_store((tmp_path / "store").as_uri())
    for start in range(3):
        about = replace(window().manifest, host="host", start=1.0e9, machine=f"m{start}")
        objects.put(store, key_of(about), encode([replace(window(), manifest=about)]))
    theirs = Path(store.path) / key_of(replace(window().manifest, machine="m1"))
    os.chown(theirs, SOMEBODY, SOMEBODY)
    done = tidy.compact(store, 2.0e9)
    assert (done.made, done.removed, done.unreadable) == (1, 2, (f"file://{theirs}",))
    [made] = [found for found in objects.listing(store).objects if found.key.hosts > 1]
    assert {one.manifest.machine for one in decode(objects.get(store, made.path))} == {"m0", "m2"}
    assert theirs.stat().st_uid == SOMEBODY


def test_a_bundle_is_asked_of_no_fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that took a file's place since it was looked at."""
    os.mkfifo(tmp_path / "file")
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    found: list[bool] = []
    assert within_seconds(lambda: found.append(is_bundle(tmp_path / "file"))) is None
    assert found == [False]
