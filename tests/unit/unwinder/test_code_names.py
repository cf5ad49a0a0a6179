"""Names, files and lines of code objects in images and in hostile memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import Interpreter, layout

from rankscope.probes.base.text import printable
from rankscope.unwinder.interpreter.offsets import LineTable
from rankscope.unwinder.names import code as code_names
from rankscope.unwinder.names import kept, linetable
from rankscope.unwinder.names.code import (
    NAME_CAP,
    UNKNOWN_NAME,
    Frame,
    Symboliser,
    checksum,
)

MINORS = [8, 9, 10, 11, 12, 13, 14, 15]
every_layout = pytest.mark.parametrize("minor", MINORS)
KNOWN = checksum(2, 1, 3, 7)


@every_layout
@pytest.mark.parametrize("name", ["forward", "Straße", "前向き", "𝒻orward", "<listcomp>", ""])
def test_names_of_every_width_are_read(minor: int, name: str) -> None:
    made = Interpreter(layout(minor))
    code = made.code(name, "/jöb/трейн.py", first_line=7)
    frame = Symboliser(made.image, made.offsets).resolve(code, -1, KNOWN)
    assert frame == Frame(name, "/jöb/трейн.py", 7, None, stale=False)


@every_layout
def test_the_qualified_name_is_taken_where_there_is_one(minor: int) -> None:
    made = Interpreter(layout(minor))
    code = made.code("Model.forward")
    expected = "Model.forward" if minor >= 11 else "forward"
    assert Symboliser(made.image, made.offsets).resolve(code).name == expected


@every_layout
def test_another_object_at_the_same_address_is_stale(minor: int) -> None:
    made = Interpreter(layout(minor))
    code = made.code(first_line=8)
    frame = Symboliser(made.image, made.offsets).resolve(code, 0, KNOWN)
    assert frame == Frame(UNKNOWN_NAME, UNKNOWN_NAME, 0, None, stale=True)


@every_layout
def test_what_was_named_once_stays_named_after_its_object_died(minor: int) -> None:
    made = Interpreter(layout(minor))
    code = made.code("f", first_line=7)
    symbols = Symboliser(made.image, made.offsets)
    before = symbols.resolve(code, -1, KNOWN)
    made.image.bytes.clear()
    assert symbols.resolve(code, -1, KNOWN) == before
    assert symbols.resolve(code + 512, -1, KNOWN).stale


def test_the_line_comes_from_the_table_of_the_version() -> None:
    made = Interpreter(layout(12))
    code = made.code(first_line=7, table=bytes([0x80 | 11 << 3 | 1, 0, 0, 0x80 | 12 << 3, 0, 0]))
    symbols = Symboliser(made.image, made.offsets)
    assert [symbols.resolve(code, lasti).line for lasti in (-1, 0, 1, 2, 3)] == [None, 8, 8, 10, None]


@pytest.mark.parametrize("file", ["<frozen importlib._bootstrap>", "<string>", "<stdin>"])
def test_files_that_are_none_keep_their_name(file: str) -> None:
    made = Interpreter(layout(11))
    assert Symboliser(made.image, made.offsets).resolve(made.code(file=file)).file == file


def test_terminal_escapes_in_a_name_are_escaped() -> None:
    made = Interpreter(layout(11))
    frame = Symboliser(made.image, made.offsets).resolve(made.code("\x1b[31mred\n\u202e", "/a\tb.py"))
    assert (frame.name, frame.file) == ("\\x1b[31mred\\n\\u202e", "/a\\tb.py")


def test_long_names_lose_their_end_and_long_paths_their_beginning() -> None:
    made = Interpreter(layout(11))
    code = made.code("a" * 5000, "/" + "d" * 5000 + "/train.py")
    frame = Symboliser(made.image, made.offsets).resolve(code)
    assert frame.name == "a" * NAME_CAP + "…"
    assert len(frame.file) == NAME_CAP + 1
    assert frame.file.endswith("d/train.py")


def test_a_string_of_absurd_length_is_no_name() -> None:
    made = Interpreter(layout(11))
    code = made.code()
    name = int.from_bytes(made.image.read(code + made.offsets.code_qualname, 8), "little")
    made.image.u64(name + made.offsets.str_length, 1 << 40)
    assert Symboliser(made.image, made.offsets).resolve(code).stale


def test_an_object_of_another_type_is_no_code() -> None:
    made = Interpreter(layout(13))
    code = made.code()
    made.image.u64(code + 8, 0x5000)
    assert not Symboliser(made.image, made.offsets, code_type_address=0x5000).resolve(code).stale
    assert Symboliser(made.image, made.offsets, code_type_address=0x6000).resolve(code).stale


@given(noise=st.binary(min_size=16, max_size=512), minor=st.sampled_from(MINORS), lasti=st.integers(-1, 1 << 20))
def test_any_memory_gives_a_frame(noise: bytes, minor: int, lasti: int) -> None:
    class Noise:
        def read(self, address: int, size: int) -> bytes:
            start = address % len(noise)
            return (noise[start:] + noise * (size // len(noise) + 1))[:size]

    frame = Symboliser(Noise(), layout(minor)).resolve(0x1000, lasti)
    assert len(frame.name) <= 10 * (NAME_CAP + 1)
    assert printable(frame.name) == frame.name or not frame.name.isprintable()


@given(st.text())
def test_printable_text_is_printable_and_stays_so(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_the_line_of_code_that_two_processes_run_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the same function in two processes, at two addresses
    looked: list[bytes] = []

    def look(kind: LineTable, table: bytes, first_line: int, lasti: int) -> int | None:
        looked.append(table)
        return linetable.line_at(kind, table, first_line, lasti)

    monkeypatch.setattr(code_names, "line_at", look)
    frames = []
    for earlier in (0, 3):
        made = Interpreter(layout(11))
        for _ in range(earlier):
            made.code("other")
        code = made.code("forward", "/job/train.py", first_line=6007, table=bytes([0x80 | 11 << 3, 0, 0]))
        frames.append(Symboliser(made.image, made.offsets).resolve(code, 0))
    # THEN
    assert [frame.line for frame in frames] == [6008, 6008]
    assert len(looked) == 1


def test_code_with_long_line_tables_takes_no_more_than_all_processes_may(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN two processes that run as many functions as they like, with tables of 8 KB
    monkeypatch.setattr(kept, "ROOM", kept.Room())
    monkeypatch.setattr(kept, "ALL_BYTES", 100_000)
    monkeypatch.setattr(kept, "LEAST_BYTES", 20_000)
    processes = []
    for _ in range(2):
        made = Interpreter(layout(11))
        codes = [made.code(f"f{number}", table=bytes([0x80 | 11 << 3, 0]) * 4096) for number in range(20)]
        processes.append((made, Symboliser(made.image, made.offsets), codes))
    # WHEN
    for _, symbols, codes in processes:
        assert [symbols.resolve(code, 0).name for code in codes] == [f"f{number}" for number in range(20)]
    # THEN
    assert kept.ROOM.taken <= 100_000 + 20_000
    for made, symbols, codes in processes:
        made.image.bytes.clear()
        assert symbols.resolve(codes[0], 0).stale
        assert symbols.resolve(codes[-1], 0).name == "f19"
    del processes, symbols
    assert kept.ROOM.taken == 0


def test_frames_of_one_function_at_places_without_number_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ROOM", kept.Room())
    monkeypatch.setattr(kept, "ALL_BYTES", 20_000)
    monkeypatch.setattr(kept, "LEAST_BYTES", 10_000)
    made = Interpreter(layout(11))
    code, symbols = made.code(first_line=7), Symboliser(made.image, made.offsets)
    for lasti in range(1000):
        assert symbols.resolve(code, lasti).first_line == 7
        assert kept.ROOM.taken <= 20_000


@pytest.mark.parametrize("field", ["code_argcount", "code_kwonlyargcount", "code_flags", "code_firstlineno"])
def test_a_layout_that_puts_a_number_behind_all_pointers_is_read_as_it_says(field: str) -> None:
    """From 3.13 on it is the target that says it."""
    made = Interpreter(layout(13))
    code = made.code("f", first_line=7)
    made.image.write(code + 2040, bytes(64))
    frame = Symboliser(made.image, replace(made.offsets, **{field: 2048})).resolve(code)  # type: ignore[arg-type]
    assert frame.stale or frame.name == "f"
