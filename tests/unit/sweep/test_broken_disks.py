"""A disk that is full, read-only or broken keeps no sweep from saying what it found and from calling its hook."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweep_trees import host, ib, killed_as_it_renames, put

from rankscope.diagnose.face.cli.main import run as command_line
from rankscope.diagnose.sweep import damage, owed
from rankscope.diagnose.sweep import spare as spares
from rankscope.diagnose.sweep import store as stores
from rankscope.diagnose.sweep.config import Config
from rankscope.diagnose.sweep.context import Context, Earlier
from rankscope.diagnose.sweep.engine import sweep as run_sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.registry import Check
from rankscope.diagnose.sweep.spare import Spare
from rankscope.diagnose.sweep.store import open_store
from rankscope.diagnose.sweep.trends import trends

# Statements that a disk refuses, by what is lost.
DISK_FAILS = {
    "nothing": (),
    "the sweep": ("INSERT",),
    "the last word": ("DELETE",),
    "both": ("INSERT", "DELETE"),
    "no state folder": (),
}
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")


def shell(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def small_disk(place: Path, size: str = "256k") -> Iterator[Path]:
    """A file system of its own, in memory."""
    place.mkdir()
    shell("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place))
    try:
        yield place
    finally:
        shell("umount", "-l", str(place))


def fill(place: Path) -> None:
    """Until nothing more goes onto it."""
    with (place / "ballast").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


@pytest.fixture
def sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Sweeping]:
    yield Sweeping(tmp_path, capsys)


class Sweeping:
    """A host whose port fails, a hook that tells when it was called, and sweeps of it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.tree = host(folder / "root", ib("mlx5_0"))
        self.hook = folder / "hook"
        self.hook.write_text(f"#!/bin/sh\necho called >> {folder}/called\n")
        self.hook.chmod(0o755)
        (folder / "now.toml").write_text("[sweep]\nconfirm_s = 0\n")

    def fails(self) -> None:
        put(self.tree, ib("mlx5_0", "1: DOWN"))

    def run(self, state: Path, *more: str) -> tuple[int, str]:
        """(exit code, what was said)."""
        arguments = ["sweep", "--root", str(self.tree), "--state", str(state), "--hook", str(self.hook), "--only", "ib.port",
                     "--config", str(self.folder / "now.toml"), *more]  # fmt: skip
        code = command_line(arguments)
        return code, " ".join(self._capsys.readouterr().out.split())

    @property
    def called(self) -> bool:
        return (self.folder / "called").exists()


def checked(state: Path) -> None:
    """The store is whole, and nothing was moved away."""
    assert {path.name for path in state.iterdir()} <= {"lock", "sweep.db", "ballast", "sweep.db-journal"}
    with sqlite3.connect(f"file:{state}/sweep.db?mode=ro", uri=True) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@ROOT_ONLY
def test_a_full_disk_costs_the_memory_of_one_sweep_and_nothing_else(tmp_path: Path, sweep: Sweeping) -> None:
    with small_disk(tmp_path / "disk") as disk:
        # GIVEN a sweep that remembers a port that was up, and a disk that has filled up since
        assert sweep.run(disk / "state")[0] == 0
        fill(disk)
        # WHEN the port fails THEN that is found, said and acted upon
        sweep.fails()
        code, said = sweep.run(disk / "state")
        assert code == 2 and sweep.called and "ib.port mlx5_0/1: DOWN" in said and "could not be remembered" in said
        (disk / "ballast").unlink()
        checked(disk / "state")
        assert sweep.run(disk / "state")[0] == 2


@ROOT_ONLY
def test_a_disk_that_is_full_from_the_first_takes_nobody_s_word(tmp_path: Path, sweep: Sweeping) -> None:
    with small_disk(tmp_path / "disk") as disk:
        fill(disk)
        code, said = sweep.run(disk / "state")
        assert code == 0 and "no memory of earlier sweeps" in said


@ROOT_ONLY
def test_what_a_read_only_disk_remembers_is_used(tmp_path: Path, sweep: Sweeping) -> None:
    # GIVEN a file system that became read-only, as a sick one does
    with small_disk(tmp_path / "disk") as disk:
        assert sweep.run(disk / "state")[0] == 0
        shell("mount", "-o", "remount,ro", str(disk))
        sweep.fails()
        # THEN it is still known that the port was up
        code, said = sweep.run(disk / "state")
        assert code == 2 and sweep.called and "could not be remembered" in said
        checked(disk / "state")


@ROOT_ONLY
@pytest.mark.skipif(
    shutil.which("mkfs.ext4") is None or not Path("/dev/loop-control").exists(), reason="no loop devices, no ext4"
)
def test_a_disk_whose_writes_fail_loses_nothing_but_the_sweep(tmp_path: Path, sweep: Sweeping) -> None:
    # GIVEN a file system on a disk that cannot hold what it promises: what is written beyond fails in the disk
    with small_disk(tmp_path / "backing", "2m") as backing:
        image = backing / "image"
        with image.open("wb") as file:
            file.truncate(16 << 20)
        shell("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0", str(image))
        disk = tmp_path / "disk"
        disk.mkdir()
        shell("mount", "-o", "loop,sync,errors=continue", str(image), str(disk))
        try:
            assert sweep.run(disk / "state")[0] == 0
            shell("sync", "-f", str(disk))
            fill(backing)
            sweep.fails()
            code, said = sweep.run(disk / "state")
            subprocess.run(["sync", "-f", str(disk)], check=False, capture_output=True)
            assert code == 2 and sweep.called and "ib.port mlx5_0/1: DOWN" in said and "could not be remembered" in said
            again, _ = sweep.run(disk / "state")
            assert again == 2 and not list((disk / "state").glob("*.broken-*"))
        finally:
            shell("umount", "-l", str(disk))


def _hangs(tmp_path: Path, state: Path, name: str = "a") -> tuple[str, list[str]]:
    """A sweep that finds a mount hanging: what it knows of the one before, and what is said."""

    def silent(context: Context) -> Iterator[Finding]:
        said = " ".join(sorted(filter(None, map(context.recall, "ab"))))
        context.keep(name, f"{name} hung")
        yield context.warning("statvfs", said, expected="an answer", why="it hangs", action="look")

    with open_store(state, Spare(tmp_path / "run")) as store:
        done = run_sweep([Check("fs.stuck", "", "", {}, silent)], Config(), store.earlier(), host(tmp_path / "tree"))
        (found,) = store.save(done, ("fs.stuck",), 14).findings
        return str(found.value), store.notes


def test_who_keeps_the_disk_full_makes_no_sweep_forget_what_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    assert _hangs(tmp_path, tmp_path / "state") == ("", [])
    # GIVEN a disk that has filled up since THEN each sweep knows what the one before knew, no more and no less
    with monkeypatch.context() as patch:
        patch.setattr(stores, "_write", full)
        assert _hangs(tmp_path, tmp_path / "state", "b")[0] == "a hung"
        assert _hangs(tmp_path, tmp_path / "state", "a")[0] == "b hung"
        left = (tmp_path / "run/words.json").read_bytes()
    # and a copy that is older than what the state folder took is not believed
    assert _hangs(tmp_path, tmp_path / "state", "b")[0] == "a hung"
    assert list((tmp_path / "run").iterdir()) == []
    (tmp_path / "run/words.json").write_bytes(left)
    assert _hangs(tmp_path, tmp_path / "state")[0] == "b hung"


def test_a_state_folder_that_cannot_be_made_keeps_words_none_the_less(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert [_hangs(tmp_path, tmp_path / "file/state")[0] for _ in range(2)] == ["", "a hung"]


@pytest.mark.parametrize("trouble", DISK_FAILS)
def test_a_hook_that_ended_well_is_owed_no_more_whatever_the_disk_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    (tmp_path / "file").write_text("")
    state = tmp_path / ("file/state" if trouble == "no state folder" else "state")

    class Full(sqlite3.Connection):
        def executemany(self, statement: str, *more: Any) -> sqlite3.Cursor:
            if statement.startswith(DISK_FAILS[trouble]):
                raise sqlite3.OperationalError("database or disk is full")
            return super().executemany(statement, *more)

    connect = sqlite3.connect
    ours = (owed.ID, "cpu.mce"), (owed.ID, "mem.ecc"), ("ib.port", "x")
    done = run_sweep([], Config(), Earlier(), host(tmp_path / "tree"))
    done = replace(done, words=tuple((*key, "a word") for key in ours))
    # GIVEN a disk that fails while the sweep is remembered, or after that WHEN the hook ends well
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *arguments, **more: connect(*arguments, **more, factory=Full))
        with open_store(state, Spare(tmp_path / "run")) as store:
            store.earlier()
            store.save(done, (), 14)
            store.paid(["cpu.mce"])
            assert not any("calls it again" in note for note in store.notes)
    # THEN the next sweep owes it this no more, and all else as before
    with open_store(state, Spare(tmp_path / "run")) as store:
        assert set(store.earlier().words) == set(ours[1:])


def test_where_nothing_takes_the_word_that_a_hook_ended_well_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with open_store(tmp_path / "file/state", Spare(tmp_path / "file/run")) as store:
        store.save(run_sweep([], Config(), Earlier(), host(tmp_path / "tree")), (), 14)
        store.paid(["cpu.mce"])
        assert "the next sweep calls it again" in store.notes[-1]


def test_what_a_killed_sweep_left_in_memory_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, word = tmp_path / "run", {("fs.stuck", "a"): "a hung"}
    # GIVEN sweeps that are killed as they write
    for _ in range(2):
        killed_as_it_renames(lambda: Spare(run).write(None, word), monkeypatch)
        assert len(list(run.iterdir())) == 1  # the second one removed what the first left
    Spare(run).write(None, word)
    assert [path.name for path in run.iterdir()] == ["words.json"]


@pytest.mark.parametrize("trouble", ["another's", "damaged", "no folder"])
def test_a_copy_of_words_that_is_not_ours_is_not_read(tmp_path: Path, trouble: str) -> None:
    run = tmp_path / "run"
    if trouble == "no folder":
        run.write_text("")
    else:
        run.mkdir(mode=0o755)
        (run / "words.json").write_text(
            "[null, [[" if trouble == "damaged" else '[null, [["fs.stuck", "a", "a hung"]]]'
        )
        if trouble == "another's":
            run.chmod(0o777)
    value, notes = _hangs(tmp_path, run / "state" if trouble == "no folder" else tmp_path / "state")
    assert value == "" and len(notes) == (trouble == "no folder")


def test_a_crowd_of_words_fills_no_memory_and_takes_no_other_check_s_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "_MOST_BYTES", 1000)
    spare = Spare(tmp_path / "run")
    crowd = {("fs.stuck", f"{number}"): "hung" for number in range(100)}
    assert "of 101 words" in spare.write(1.0, {**crowd, ("ib.port", "x"): "400"})
    kept = spare.read(1.0)
    assert kept is not None and ("ib.port", "x") in kept and 10 < len(kept) < 50
    assert (tmp_path / "run/words.json").stat().st_size < 1200 and (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert spare.write(1.0, {("ib.port", b"\xff"): None}) == ""  # type: ignore[dict-item]  # of a damaged database


@pytest.mark.parametrize(
    "trouble", ["disk I/O error", "database or disk is full", "attempt to write a readonly database"]
)
def test_a_disk_that_fails_at_any_statement_hides_nothing(
    tmp_path: Path, sweep: Sweeping, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    # GIVEN a port that was up, and a disk that fails at the first, second, … statement from then on
    assert sweep.run(tmp_path / "state")[0] == 0
    sweep.fails()
    left, connect = 0, sqlite3.connect

    class Failing(sqlite3.Connection):
        def _count(self) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise sqlite3.OperationalError(trouble)

        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            self._count()
            return super().execute(*arguments)

        def executemany(self, *arguments: Any) -> sqlite3.Cursor:
            self._count()
            return super().executemany(*arguments)

    for statements in range(60):
        left = statements
        (tmp_path / "called").unlink(missing_ok=True)
        with monkeypatch.context() as patch:
            patch.setattr(sqlite3, "connect", lambda *arguments, **more: connect(*arguments, **more, factory=Failing))
            code, said = sweep.run(tmp_path / "state")
        # THEN the port is found down wherever it is known that it was up, and something is said wherever it is not
        assert (code == 2 and sweep.called) or (code == 0 and ("no memory" in said or "could not be read" in said)), (
            statements,
            said,
        )
        checked(tmp_path / "state")
        if left >= 0:
            break
    assert left >= 0 and code == 2


UNREAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int unread(int file, off_t at) {
    char link[64], name[512];
    const char *from = getenv("UNREAD_FROM");
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, name, sizeof name);
    return from && size > 8 && !memcmp(name + size - 8, "sweep.db", 8) && at >= atol(from);
}
#define FAILING(call) \\
    ssize_t call(int file, void *into, size_t size, off_t at) { \\
        static ssize_t (*real)(int, void *, size_t, off_t); \\
        if (!real) real = dlsym(RTLD_NEXT, #call); \\
        if (unread(file, at)) { errno = EIO; return -1; } \\
        return real(file, into, size, at); \\
    }
FAILING(pread)
FAILING(pread64)
"""


def test_a_disk_that_does_not_give_a_page_takes_no_memory_away(tmp_path: Path, sweep: Sweeping) -> None:
    # GIVEN a store, and a disk that fails as a page of it is read
    state = tmp_path / "state"
    assert sweep.run(state)[0] == 0
    before = (state / "sweep.db").read_bytes()
    (tmp_path / "unread.c").write_text(UNREAD)
    shell("gcc", "-shared", "-fPIC", "-o", str(tmp_path / "unread.so"), str(tmp_path / "unread.c"), "-ldl")
    arguments = ["sweep", "--root", str(sweep.tree), "--state", str(state), "--only", "ib.port"]
    code = (
        "import os\nfrom rankscope.diagnose.face.cli.main import run\n"
        f"for page in range(0, {len(before)}, 4096):\n  os.environ['UNREAD_FROM'] = str(page)\n  print(run({arguments!r}))"
    )
    # WHEN sweeps go on meanwhile THEN each says that it has no memory, and the file stays where and what it is
    said = subprocess.run([sys.executable, "-c", code], env={**os.environ, "LD_PRELOAD": str(tmp_path / "unread.so")},
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    pages = len(before) // 4096
    assert pages > 3 and " ".join(said.split()).count("no memory of earlier sweeps") == pages, said
    assert (state / "sweep.db").read_bytes() == before
    checked(state)
    # AND once the disk answers again it is known that the port was up
    sweep.fails()
    assert sweep.run(state)[0] == 2 and sweep.called


def test_what_is_damaged_and_can_all_be_read_is_kept_aside(tmp_path: Path, sweep: Sweeping) -> None:
    state = tmp_path / "state"
    assert sweep.run(state)[0] == 0
    whole = (state / "sweep.db").read_bytes()
    (state / "sweep.db").write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    code, said = sweep.run(state)
    assert code == 0 and "a new one is begun" in said and len(list(state.glob("sweep.db.broken-*"))) == 1


def test_values_that_damage_left_are_not_believed_and_those_beside_them_are(tmp_path: Path, sweep: Sweeping) -> None:
    state = tmp_path / "state"
    assert sweep.run(state)[0] == 0
    day = 86_400.0
    with closing(sqlite3.connect(state / "sweep.db")) as database, database:
        rows = [
            (at * day, "mem.ecc", name, "ok", 50.0, unit)
            for at in range(1, 9)
            for name, unit in (("a", "°C"), ("b", b"/h"))
        ]
        database.executemany("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.execute(
            "INSERT INTO counters VALUES ('x', 'sound', 1.0, 2.0, 3.0, 'b'), ('x', 'other', 'many', 2.0, 3.0, 'b')"
        )
        database.execute("INSERT INTO words VALUES ('x', 'sound', 'w'), ('x', 'other', x'ff')")
        database.execute("UPDATE current SET since = 'long ago'")
    with open_store(state) as store:
        earlier = store.earlier()
        assert {key for key in (*earlier.counters, *earlier.words) if key[0] == "x"} == {("x", "sound")}
        points = store.history(0.0, 10 * day)
        assert {point.instance for point in points} == {"a"}
        assert trends(points, 9 * day) == ()
    assert sweep.run(state)[0] == 0


@pytest.mark.parametrize("unread", [True, False], ids=["not read", "damaged"])
def test_a_sweep_is_not_written_over_an_earlier_one_that_the_disk_did_not_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread: bool
) -> None:
    connect = sqlite3.connect

    class Failing(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            if arguments[0].startswith("SELECT id, key, word"):
                raise sqlite3.DatabaseError("database disk image is malformed")
            return super().execute(*arguments)

    def not_given(_: Path) -> None:
        raise OSError(5, "Input/output error")

    def swept() -> tuple[str, list[str]]:
        return _hangs(tmp_path, tmp_path / "state", "a")

    assert swept() == ("", [])
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *arguments, **more: connect(*arguments, **more, factory=Failing))
        if unread:
            patch.setattr(damage, "_read_through", not_given)
        value, notes = _hangs(tmp_path, tmp_path / "state", "b")
        assert value == "" and ("input/output error" in notes[0]) == unread
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert swept()[0] == ("a hung" if unread else "b hung")


def test_a_store_of_another_version_is_left_as_it_is(tmp_path: Path, sweep: Sweeping) -> None:
    assert sweep.run(tmp_path / "state")[0] == 0
    with sqlite3.connect(tmp_path / "state/sweep.db") as database:
        database.execute("PRAGMA user_version = 7")
    before = (tmp_path / "state/sweep.db").read_bytes()
    code, said = sweep.run(tmp_path / "state")
    assert code == 0 and "version 7" in said and (tmp_path / "state/sweep.db").read_bytes() == before
    assert {path.name for path in (tmp_path / "state").iterdir()} == {"lock", "sweep.db"}


def test_a_store_that_somebody_holds_is_not_moved_away(tmp_path: Path, sweep: Sweeping) -> None:
    assert sweep.run(tmp_path / "state")[0] == 0
    with sqlite3.connect(tmp_path / "state/sweep.db", isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        sweep.fails()
        code, said = sweep.run(tmp_path / "state")
    assert code == 0 and "no memory" in said
    checked(tmp_path / "state")


def test_metrics_that_cannot_be_written_do_not_hide_a_critical_host(tmp_path: Path, sweep: Sweeping) -> None:
    state = tmp_path / "state"
    assert sweep.run(state, "--textfile", str(tmp_path / "none/x.prom"))[0] == 69
    sweep.fails()
    code, said = sweep.run(state, "--textfile", str(tmp_path / "none/x.prom"))
    assert code == 2 and sweep.called and "no metrics were written" in said and "ib.port mlx5_0/1: DOWN" in said


@ROOT_ONLY
def test_metrics_on_a_full_disk_stay_as_they_were(tmp_path: Path, sweep: Sweeping) -> None:
    with small_disk(tmp_path / "disk") as disk:
        target = disk / "x.prom"
        assert sweep.run(tmp_path / "state", "--textfile", str(target))[0] == 0
        whole = target.read_bytes()
        fill(disk)
        assert sweep.run(tmp_path / "state", "--textfile", str(target))[0] == 69
        assert target.read_bytes() == whole and {path.name for path in disk.iterdir()} == {"ballast", "x.prom"}


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_output_onto_a_full_disk_does_not_hide_a_critical_host(
    tmp_path: Path, sweep: Sweeping, json: list[str]
) -> None:
    assert sweep.run(tmp_path / "state")[0] == 0
    sweep.fails()
    command = [sys.executable, "-m", "rankscope.diagnose.face.cli.start", "sweep", "--root", str(sweep.tree), "--state",
               str(tmp_path / "state"), "--config", str(tmp_path / "now.toml"), "--hook", str(sweep.hook), *json]  # fmt: skip
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (
        said.returncode == 2
        and sweep.called
        and "could not be printed" in said.stderr
        and "Traceback" not in said.stderr
    )


@ROOT_ONLY
@pytest.mark.parametrize("trouble", ["another's", "open to others", "behind another's link"])
def test_a_state_folder_that_others_can_write_is_not_used(tmp_path: Path, trouble: str) -> None:
    state = tmp_path / "state"
    with open_store(state) as store:
        assert store.folder
    place = state
    if trouble == "another's":
        os.chown(state, 65534, 65534)
    elif trouble == "open to others":
        state.chmod(0o777)
    else:
        place = tmp_path / "link"
        place.symlink_to(state)
        os.chown(place, 65534, 65534, follow_symlinks=False)
    with open_store(place) as store:
        assert store.folder is None and "no memory" in store.notes[0]


def test_a_sweep_that_is_killed_at_any_moment_leaves_a_whole_store(tmp_path: Path, sweep: Sweeping) -> None:
    assert sweep.run(tmp_path / "state")[0] == 0
    code = (
        "from rankscope.diagnose.face.cli.main import run\nwhile True:\n"
        f"  run(['sweep', '--root', {str(sweep.tree)!r}, '--state', {str(tmp_path / 'state')!r}, '--only', 'ib'])"
    )
    chance = random.Random(7)
    for _ in range(4):
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline()
        time.sleep(0.1 * chance.random())
        child.kill()
        child.wait()
        child.stdout.close()
        sweep.fails()
        assert sweep.run(tmp_path / "state")[0] == 2  # what was seen before the kill is known
        put(sweep.tree, ib("mlx5_0"))
    checked(tmp_path / "state")


def test_a_state_folder_that_becomes_a_link_while_it_is_opened_makes_nothing_where_that_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN the worst moment: the folder was checked and locked, and its file is opened next
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    opened = stores._open

    def bent_before(path: Path, notes: list[str]) -> sqlite3.Connection | None:
        state.rename(tmp_path / "moved")
        state.symlink_to(elsewhere)
        return opened(path, notes)

    monkeypatch.setattr(stores, "_open", bent_before)
    with open_store(state) as found:
        assert found.earlier().counters == {}
        assert any("no memory of earlier sweeps" in note for note in found.notes)
    assert list(elsewhere.iterdir()) == []
