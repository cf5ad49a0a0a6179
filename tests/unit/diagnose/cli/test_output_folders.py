"""Where windows are written: nobody else's folder, nobody else's files, whole or not at all on any disk."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import random
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from builders import Job, build

from rankscope.diagnose.infer.past import history as kept
from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window import staging
from rankscope.observer.window.folder import (
    Window,
    find_windows,
    prepare_folder,
    read_manifest,
    read_window,
    write_window,
)
from rankscope.observer.window.manifest import Manifest
from rankscope.observer.window.store import objects
from rankscope.observer.window.store.place import open_store
from rankscope.probes.base.errors import OutputFailed
from rankscope.probes.base.folders import UnsafePlace

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount and to give files away")
NOBODY = 65534


def small(host: str = "node-0", start: float = 1_760_000_000.0) -> Window:
    window = build(Job(ranks=2, steps=13, start=start))[0]
    return replace(window, manifest=replace(window.manifest, host=host))


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


# --- whose folder it is


@ROOT_ONLY
@pytest.mark.parametrize("trouble", ["another's", "open to others", "open to its group", "behind another's link"])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, trouble: str) -> None:
    out = tmp_path / "out"
    out.mkdir(mode=0o700)
    place = out
    if trouble == "another's":
        os.chown(out, NOBODY, NOBODY)
    elif trouble == "behind another's link":
        home = tmp_path / "home"
        home.mkdir()
        os.chown(home, NOBODY, NOBODY)
        (home / "link").symlink_to(out)
        os.chown(home / "link", NOBODY, NOBODY, follow_symlinks=False)
        place = home / "link"
    else:
        out.chmod(0o777 if trouble == "open to others" else 0o770)
    for attempt in (
        lambda: prepare_folder(place),
        lambda: write_window(small(), place),
        lambda: History(place).prepare(),
    ):
        with pytest.raises(UnsafePlace):
            attempt()
    assert list(out.iterdir()) == []


@ROOT_ONLY
def test_a_folder_of_our_own_in_another_s_home_is_fine(tmp_path: Path) -> None:
    # As after `sudo rankscope record --out ~/windows`.
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    folder = write_window(small(), home / "new" / "windows")
    assert folder.stat().st_uid == 0 and (home / "new").stat().st_uid == 0


@ROOT_ONLY
def test_who_called_sudo_may_have_made_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert write_window(small(), tmp_path).exists()


def test_a_link_of_ours_on_the_way_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "scratch").symlink_to("disk")
    (tmp_path / "absolute").symlink_to(tmp_path / "scratch")
    folder = write_window(small(), tmp_path / "absolute" / "deep" / ".." / "windows")
    assert read_window(folder).manifest.host == "node-0" and (tmp_path / "disk/windows").is_dir()


def test_what_lies_there_under_its_name_is_neither_followed_nor_replaced(tmp_path: Path) -> None:
    first = write_window(small(), tmp_path / "first")
    out = tmp_path / "out"
    out.mkdir(mode=0o700)
    (out / first.name).symlink_to(tmp_path / "elsewhere")
    (out / f"{first.name}.2").write_text("mine")
    folder = write_window(small(), out)
    assert folder.name == f"{first.name}.3" and (out / f"{first.name}.2").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_files_are_for_root_alone_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        folder = write_window(small(), tmp_path / "a" / "b")
    finally:
        os.umask(old)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", tmp_path / "a/b", folder)} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


# --- what killed writers left


def left(place: Path, host: str = "", boot: str = "", age_s: float = 0.0, lock: bool = True) -> Path:
    """What a killed writer leaves."""
    name = staging.partial_name()
    mine, its_boot, pid, number = name.removeprefix(".partial-").rsplit("-", 3)
    folder = place / f".partial-{host or mine}-{boot or its_boot}-{pid}-{number}"
    folder.mkdir(parents=True)
    (folder / "ranks.parquet").write_bytes(b"half")
    if lock:
        lock_of(folder).touch(mode=0o600)
        os.utime(lock_of(folder), (time.time() - age_s,) * 2)
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


def lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def test_what_a_killed_writer_of_this_host_left_is_removed(tmp_path: Path) -> None:
    folder = left(tmp_path)
    write_window(small(), tmp_path)
    assert not folder.exists() and len(list(tmp_path.iterdir())) == 1  # nor its lock


def test_what_another_host_made_is_never_removed(tmp_path: Path) -> None:
    # GIVEN a folder that hosts share: others write there, one of them bears our name (another boot), and there are other things
    theirs = [left(tmp_path, host="node-9", age_s=1e6), left(tmp_path, host="node-9"), left(tmp_path, boot="0a1b2c3d")]
    theirs += [left(tmp_path, host="localhost-x"), tmp_path / ".partial-notes"]
    theirs[-1].mkdir()
    write_window(small(), tmp_path)
    prepare_folder(tmp_path)
    assert all(folder.exists() for folder in theirs)


def test_what_is_being_written_is_left_alone(tmp_path: Path) -> None:
    folder = left(tmp_path)
    with lock_of(folder).open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_window(small(), tmp_path)
        assert folder.exists()
    write_window(small(), tmp_path)
    assert not folder.exists() and not lock_of(folder).exists()
    # What has no lock was not written by us as we are; it may go when nobody can be writing it any more.
    young, old = left(tmp_path, lock=False), left(tmp_path, lock=False, age_s=1e6)
    write_window(small(), tmp_path)
    assert young.exists() and not old.exists()
    # Nor what a clock of ours wrote that was ahead; of another host's it says nothing.
    ours, theirs = left(tmp_path, lock=False, age_s=-1e6), left(tmp_path, boot="0a1b2c3d", lock=False, age_s=-1e6)
    write_window(small(), tmp_path)
    assert theirs.exists() and not ours.exists()


def left_file(place: Path, pid: int, age_s: float = 0.0) -> Path:
    """What a writer of a single file has there, or left."""
    mine, its_boot, _, number = staging.partial_name().removeprefix(".partial-").rsplit("-", 3)
    file = place / f".partial-{mine}-{its_boot}-{pid}-{number}"
    file.write_bytes(b"half")
    os.utime(file, (time.time() - age_s,) * 2)
    return file


def ended() -> int:
    """The id of a process that is no more."""
    with subprocess.Popen(["true"]) as one:
        pass
    return one.pid


def test_a_single_file_removes_only_single_files_that_we_left(tmp_path: Path) -> None:
    # GIVEN a folder of others, who call root's folders and their own as what a killed writer leaves
    stays = [left(tmp_path), left(tmp_path, lock=False, age_s=1e6), left_file(tmp_path, os.getpid())]
    if not os.geteuid():
        stays.append(left_file(tmp_path, ended()))
        os.chown(stays[-1], NOBODY, NOBODY)
    link = tmp_path / f"{stays[0].name[:-8]}{'0' * 8}"
    link.symlink_to(tmp_path)
    goes = [left_file(tmp_path, ended()), left_file(tmp_path, os.getpid(), age_s=1e6)]
    # WHEN
    staging.write_file(tmp_path / "page.html", b"whole")
    # THEN
    assert all(path.exists() for path in (*stays, link, stays[0] / "ranks.parquet", lock_of(stays[0])))
    assert not any(path.exists() for path in goes)
    assert (tmp_path / "page.html").read_bytes() == b"whole"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
@pytest.mark.parametrize("renames", [True, False])
def test_a_single_file_is_written_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, renames: bool
) -> None:
    def none(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", none)
    if not renames:
        monkeypatch.setattr(staging, "_rename_no_replace", none)
    staging.write_file(tmp_path / "page.html", b"whole")
    with pytest.raises(FileExistsError):
        staging.write_file(tmp_path / "page.html", b"another")
    store = open_store((tmp_path / "store").as_uri())
    assert [objects.put_new(store, "job=a/turn", content) for content in (b"first", b"second")] == [True, False]
    assert (tmp_path / "page.html").read_bytes() == b"whole"
    assert (tmp_path / "store/job=a/turn").read_bytes() == b"first"
    assert not list(tmp_path.rglob(".partial-*"))


def _write_for_ever(place: Path) -> None:
    window = small()
    while True:
        write_window(window, place)


def test_a_writer_that_is_killed_at_any_moment_leaves_whole_windows(tmp_path: Path) -> None:
    chance = random.Random(7)
    for _ in range(12):
        writer = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(tmp_path,))
        writer.start()
        time.sleep(0.02 + 0.2 * chance.random())
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    write_window(small(), tmp_path)
    windows = find_windows(tmp_path)
    assert [read_window(folder).manifest.host for folder in windows] == ["node-0"] * len(windows)
    assert {path.name for path in tmp_path.iterdir()} == {folder.name for folder in windows}


# --- disks


@ROOT_ONLY
@pytest.mark.parametrize("size", ["8k", "16k", "24k", "32k", "40k", "48k"])
def test_on_a_full_disk_a_window_is_absent_and_nothing_is_left(tmp_path: Path, size: str) -> None:
    with small_disk(tmp_path / "disk", size) as disk:
        try:
            folder = write_window(small(), disk / "out")
        except OutputFailed as error:
            assert "No space left" in str(error)
            assert not (disk / "out").exists() or list((disk / "out").iterdir()) == []
        else:
            assert read_window(folder).manifest.host == "node-0"


@ROOT_ONLY
def test_a_full_disk_is_said_before_the_window(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk, pytest.raises(OutputFailed, match="No space left"):
        prepare_folder(disk / "out")


@ROOT_ONLY
def test_a_read_only_disk_is_said_in_one_line(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for attempt in (
            lambda: prepare_folder(disk),
            lambda: write_window(small(), disk),
            lambda: History(disk).prepare(),
        ):
            with pytest.raises(OutputFailed, match="Read-only file system"):
                attempt()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize("call", ["fsync", "rename", "open", "unlink"])
def test_a_disk_that_fails_at_any_call_leaves_no_half_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    window, real, count = small(), getattr(os, call), 0
    for nth in range(1, 40):
        count = 0

        def fails(*arguments: object, **more: object) -> object:
            nonlocal count
            count += 1
            if count == nth:  # noqa: B023 - within this turn of the loop
                raise OSError(number, os.strerror(number))
            return real(*arguments, **more)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fails)
            with suppress(OutputFailed):
                write_window(window, tmp_path)
        if count < nth:
            break
    assert count < nth
    assert all(read_window(folder).manifest.host == "node-0" for folder in find_windows(tmp_path))


# --- the history on a shared folder, and on a sick disk


def test_a_host_removes_its_own_windows_only(tmp_path: Path) -> None:
    windows = [small(host, 1_760_000_000.0 + 100 * number) for number in range(4) for host in ("node-1", "node-2")]
    size = History(tmp_path / "one").add(windows[0], diagnose([windows[0]])).bytes
    history = History(tmp_path / "shared", cap_bytes=int(2.5 * size))
    for window in windows[:-1]:
        History(tmp_path / "shared", cap_bytes=1 << 30).add(window, diagnose([window]))
    history.add(windows[-1], diagnose([windows[-1]]))
    assert [entry.start for entry in history.entries(host="node-2")] == [1_760_000_200.0, 1_760_000_300.0]
    assert len(history.entries(host="node-1")) == 4


def test_a_host_removes_no_windows_of_another_that_is_called_as_it_is(tmp_path: Path) -> None:
    mine, theirs = (
        [
            replace(window, manifest=replace(window.manifest, machine=machine))
            for window in (small("localhost", 1_760_000_000.0 + 100 * number) for number in range(at, 6, 2))
        ]
        for at, machine in enumerate(("3f2a77", "91bc00"))
    )
    size = History(tmp_path / "one").add(mine[0], diagnose([mine[0]])).bytes
    for window in (*theirs, *mine[:-1]):
        History(tmp_path / "shared", cap_bytes=1 << 30).add(window, diagnose([window]))
    (tmp_path / "shared/index.parquet").unlink()
    History(tmp_path / "shared", cap_bytes=int(1.5 * size)).add(mine[-1], diagnose([mine[-1]]))
    kept = History(tmp_path / "shared").entries()
    assert [(entry.machine, entry.start) for entry in kept] == [
        (each.manifest.machine, each.manifest.start)
        for each in sorted([*theirs, mine[-1]], key=lambda each: each.manifest.start)
    ]


def test_an_index_that_names_no_machine_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older version wrote it last: whoever reads it reads no window for that; who adds asks some manifests of its host's name."""
    windows = [small("localhost", 1_760_000_000.0 + 100 * number) for number in range(6)]
    for at, window in enumerate(windows):
        windows[at] = replace(window, manifest=replace(window.manifest, machine=("3f2a77", "91bc00")[at % 2]))
        entry = History(tmp_path).add(windows[at], diagnose([windows[at]]))
    index = tmp_path / "index.parquet"
    pq.write_table(pq.read_table(index).drop_columns(["machine"]), index)
    asked: list[Path] = []

    def counted(path: Path) -> tuple[Manifest, dict[str, int]]:
        asked.append(path)
        return read_manifest(path)

    def never(folder: Path) -> Window:
        raise AssertionError(folder)

    monkeypatch.setattr(kept, "read_manifest", counted)
    monkeypatch.setattr(kept, "read_window", never)
    monkeypatch.setattr(kept, "_ASKED_MOST", 4)
    assert len(History(tmp_path).entries()) == 6 and not asked
    machines = []
    for number in range(2):
        another = small("localhost", 1_760_001_000.0 + number)
        another = replace(another, manifest=replace(another.manifest, machine="3f2a77"))
        History(tmp_path, cap_bytes=int(2.5 * entry.bytes)).add(another, diagnose([another]))
        machines.append([each.machine for each in History(tmp_path).entries()])
    assert machines == [
        ["91bc00", "3f2a77", "91bc00", None, None, "3f2a77"],
        ["91bc00", "91bc00", "91bc00", "3f2a77", "3f2a77"],
    ]
    assert len(asked) == 6


def test_a_window_that_cannot_be_read_is_not_thrown_away(tmp_path: Path) -> None:
    history = History(tmp_path)
    entry = history.add(small(), diagnose([small()]))
    # GIVEN a window that a newer version wrote, and one that the disk does not give now
    manifest = tmp_path / "windows" / entry.name / "window.json"
    manifest.write_text(manifest.read_text().replace("rankscope.window/", "rankscope.window/9"))
    (tmp_path / "index.parquet").unlink()
    later = small(start=1_760_000_100.0)
    history.add(later, diagnose([later]))
    assert manifest.exists() and len(history.entries()) == 1
