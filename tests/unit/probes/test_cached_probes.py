"""Compiled probes are kept for the next start, and only what nobody else can have written is believed."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.probes.bpf import cache, loader, programs
from rankscope.probes.bpf.cache import CacheRefused
from rankscope.probes.bpf.compiler import compiled
from rankscope.probes.bpf.compiler.compiled import Compiled, LibraryStamp, MapShape, NotCompiled, ProgramCode

KEY = "5f"
LIBRARY_BYTES = b"a compiler"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    (tmp_path / "var/cache").mkdir(parents=True, mode=0o755)
    return tmp_path


def _file(root: Path) -> Path:
    return root / cache.FOLDER / f"probes-{KEY}"


def _made(tmp_path: Path) -> Compiled:
    library = tmp_path / "libbcc.so"
    library.write_bytes(LIBRARY_BYTES)
    status = library.stat()
    shape = MapShape("rs_one", 1, 4, 8, 16, 0, "unsigned int", ["one", [["a", "unsigned int", [2]]], "struct"])
    stamp = LibraryStamp(str(library), status.st_size, status.st_mtime_ns)
    return Compiled((shape,), (ProgramCode("rs_program", bytes(range(16))),), "GPL", (stamp,))


def test_what_was_kept_is_read_again_and_is_open_to_nobody_else(root: Path) -> None:
    assert cache.read(KEY, root) is None
    cache.write(KEY, b"programs\n", root)
    assert cache.read(KEY, root) == b"programs\n"
    assert cache.read("other", root) is None
    assert (root / cache.FOLDER).stat().st_mode & 0o777 == 0o700
    assert _file(root).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (root / cache.FOLDER).iterdir()] == [f"probes-{KEY}"]


def _link(path: Path) -> None:
    real = path.with_name(path.name + "-real")
    path.rename(real)
    path.symlink_to(real)


def _second_name(path: Path) -> None:
    (path.parent / "second-name").hardlink_to(path)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _another_key(path: Path) -> None:
    head, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(b"rankscope-probes 1 " + b"0" * 64 + b"\n" + rest)
    assert len(head) == len(b"rankscope-probes 1 ") + 64


@pytest.mark.parametrize(
    ("what", "harm"),
    [
        ("file", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("file", lambda path: path.write_bytes(b"")),
        ("file", lambda path: path.write_bytes(path.read_bytes().replace(b"programs", b"prograns"))),
        ("file", _another_key),
        ("file", lambda path: path.chmod(0o640)),
        ("file", lambda path: path.chmod(0o602)),
        ("file", _link),
        ("file", _second_name),
        ("file", _fifo),
        ("folder", lambda path: path.chmod(0o755)),
        ("folder", lambda path: path.chmod(0o770)),
        ("folder", _link),
        ("above", lambda path: path.chmod(0o775)),
        ("above", _link),
        ("cache", lambda path: path.chmod(0o777)),
        ("cache", lambda path: path.chmod(0o1777)),
    ],
)
def test_what_others_could_have_written_is_refused(root: Path, what: str, harm: Callable[[Path], None]) -> None:
    cache.write(KEY, b"programs\n", root)
    places = {
        "file": _file(root),
        "folder": _file(root).parent,
        "above": _file(root).parents[1],
        "cache": root / "var/cache",
    }
    harm(places[what])
    with pytest.raises(CacheRefused):
        cache.read(KEY, root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("level", range(3))
def test_what_belongs_to_another_user_is_refused(root: Path, level: int) -> None:
    cache.write(KEY, b"programs\n", root)
    os.chown([_file(root), *_file(root).parents][level], 65534, 65534)
    with pytest.raises(CacheRefused, match="belongs to user 65534"):
        cache.read(KEY, root)
    if level:
        with pytest.raises(CacheRefused, match="belongs to user 65534"):
            cache.write(KEY, b"other\n", root)


def test_a_link_that_root_made_for_var_is_followed(root: Path) -> None:
    (root / "var").rename(root / "data")
    (root / "var").symlink_to(root / "data")
    cache.write(KEY, b"programs\n", root)
    assert cache.read(KEY, root) == b"programs\n"
    assert (root / "data/cache/rankscope/probes" / f"probes-{KEY}").exists()


def test_where_nothing_can_be_kept_that_is_said(root: Path) -> None:
    (root / "var/cache").rmdir()
    (root / "var/cache").write_text("no folder\n")
    with pytest.raises(CacheRefused):
        cache.write(KEY, b"programs\n", root)


def test_a_damaged_file_is_replaced_and_a_linked_one_does_not_lead_elsewhere(root: Path) -> None:
    cache.write(KEY, b"programs\n", root)
    elsewhere = root / "precious"
    elsewhere.write_text("precious\n")
    _file(root).unlink()
    _file(root).symlink_to(elsewhere)
    cache.write(KEY, b"anew\n", root)
    assert cache.read(KEY, root) == b"anew\n"
    assert elsewhere.read_text() == "precious\n"


def test_the_least_recently_used_go_and_what_a_killed_writer_left(root: Path) -> None:
    for number in range(14):
        cache.write(f"{number:x}", b"x", root)
        os.utime(root / cache.FOLDER / f"probes-{number:x}", (number, number))
    abandoned = root / cache.FOLDER / ".writing-1-1"
    abandoned.write_bytes(b"half")
    os.utime(abandoned, (0, time.time() - 7200))
    assert cache.read("5", root) == b"x"  # used now
    cache.write("last", b"x", root)
    kept = {path.name for path in (root / cache.FOLDER).iterdir()}
    assert len(kept) == 12
    assert {"probes-5", "probes-last", "probes-d"} <= kept
    assert not {"probes-2", ".writing-1-1"} & kept


def test_what_a_clock_that_was_ahead_left_makes_no_room_of_what_is_used_now(root: Path) -> None:
    ahead = time.time() + 86400
    for number in range(12):
        cache.write(f"{number:x}", b"x", root)
        os.utime(root / cache.FOLDER / f"probes-{number:x}", (ahead + number, ahead + number))
    abandoned = root / cache.FOLDER / ".writing-1-1"
    abandoned.write_bytes(b"half")
    os.utime(abandoned, (0, ahead))
    for number in range(3):
        cache.write(f"now-{number}", b"x", root)
    kept = {path.name for path in (root / cache.FOLDER).iterdir()}
    assert len(kept) == 12
    assert {"probes-now-0", "probes-now-1", "probes-now-2", "probes-b"} <= kept
    assert not {"probes-0", ".writing-1-1"} & kept


def test_compiled_probes_survive_writing_and_reading(tmp_path: Path) -> None:
    made = _made(tmp_path)
    assert compiled.from_bytes(compiled.to_bytes(made)) == made


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"maps": 1, "programs": [], "license": "GPL", "compiler": []}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_other_bytes_are_not_taken_for_compiled_probes(blob: bytes) -> None:
    with pytest.raises(NotCompiled):
        compiled.from_bytes(blob)


def test_another_compiler_is_noticed(tmp_path: Path) -> None:
    made = _made(tmp_path)
    assert compiled.is_of_this_compiler(made)
    os.utime(tmp_path / "libbcc.so", ns=(0, 1))
    assert not compiled.is_of_this_compiler(made)
    (tmp_path / "libbcc.so").unlink()
    assert not compiled.is_of_this_compiler(made)


def test_instructions_get_the_descriptors_of_their_maps() -> None:
    wide = struct.pack("<BBhiBBhi", 0x18, 0x12, 0, 1, 0, 0, 0, 0)  # r2 = map number 1
    constant = struct.pack("<BBhiBBhi", 0x18, 0x02, 0, 1, 0, 0, 0, 0)  # r2 = 1
    code = wide + constant + struct.pack("<BBhi", 0x95, 0, 0, 0)
    changed = programs.with_maps(code, [7, 9])
    assert struct.unpack_from("<BBhi", changed) == (0x18, 0x12, 0, 9)
    assert changed[8:] == code[8:]


def test_another_text_flag_machine_or_compiler_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        loader.key_of(text, loader.flags_of(machine, {"A": value}))
        for text, machine, value in (
            ("int one;", "x86_64", 1), ("int two;", "x86_64", 1), ("int one;", "aarch64", 1), ("int one;", "x86_64", 2)
        )
    ]  # fmt: skip
    assert keys[0] == loader.key_of("int one;", ["-DA=1"])
    monkeypatch.setattr(compiled, "maker", lambda: "another")
    assert len({*keys, loader.key_of("int one;", ["-DA=1"])}) == 5


# A stand-in for the kernel's side: what the loader does when it has no use for what was kept.
def test_the_compiler_runs_once_and_again_after_damage(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, compilations = _made(root), []

    def compile_text(*_: object, **__: object) -> Compiled:
        compilations.append(1)
        return made

    monkeypatch.setattr(compiled, "compile_text", compile_text)

    def start() -> list[str]:
        remarks: list[str] = []
        assert loader.ready("int one;", [], root, remarks, False) == made
        return remarks

    assert (start(), len(compilations)) == ([], 1)
    assert (start(), len(compilations)) == ([], 1)
    (kept,) = (root / cache.FOLDER).iterdir()
    kept.write_bytes(kept.read_bytes()[:-3])
    assert start() == ["the cached probes are not used: they are damaged"]
    assert (start(), len(compilations)) == ([], 2)
    (root / "libbcc.so").write_bytes(b"a newer compiler")
    assert (start(), len(compilations)) == ([], 3)
    (root / cache.FOLDER).chmod(0o777)
    assert [remark.partition(":")[0] for remark in start()] == [
        "the cached probes are not used",
        "the next start compiles again, as the probes cannot be cached",
    ]
    assert len(compilations) == 4
