"""The ELF reader: what binutils say is what it reads, and damaged bytes are refused, never more."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
from pathlib import Path

import pytest
from forged_elf import ADDRESS, SPAN, forged
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.probes.elf import exports
from rankscope.probes.elf.exports import find_addresses, find_functions, find_names
from rankscope.probes.elf.functions import FunctionTable
from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import DYNSYM, GNU_EH_FRAME, MAX_LOADS, MAX_TABLES, SYMTAB, ElfFile, NotElf


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elf")
    (folder / "a.c").write_text(
        "int rs_number = 17;\nint rs_nothing[1000];\n"
        "static __attribute__((noinline)) int rs_hidden(int a) { return a * 19 + rs_number; }\n"
        "int rs_shown(int a) { return rs_hidden(a) + rs_nothing[a]; }\n"
    )
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", folder / "a.so", folder / "a.c"], check=True)
    return folder / "a.so"


def said(library: Path) -> dict[str, tuple[int, int]]:
    """(address, size) of each symbol, by nm."""
    text = subprocess.run(["nm", "-S", library], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in text.splitlines()]
    return {row[3]: (int(row[0], 16), int(row[1], 16)) for row in rows if len(row) == 4}


def test_symbols_of_both_tables_are_where_nm_says_those_without_bytes_in_the_file_too(library: Path) -> None:
    truth = said(library)
    found = find_addresses(ElfFile(LocalFile(library)), ["rs_number", "rs_nothing", "rs_hidden", "rs_absent"])
    assert found == {name: truth[name][0] for name in ("rs_number", "rs_nothing", "rs_hidden")}


def test_functions_without_a_symbol_are_as_long_as_nm_says(library: Path, tmp_path: Path) -> None:
    truth = said(library)
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-o", stripped, library], check=True)
    table = FunctionTable(ElfFile(LocalFile(stripped)))
    for name in ("rs_hidden", "rs_shown"):
        address, size = truth[name]
        assert table.size(address) == size
        assert table.size(address + 1) == 0


def test_only_what_is_asked_for_is_read(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with 64 MB of code and data: its exports come from a few kilobytes."""
    large = tmp_path / "large.so"
    large.write_bytes(library.read_bytes())
    data = tmp_path / "data"
    with data.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["objcopy", "--add-section", f".large={data}", large], check=True)
    read = 0
    pread = os.pread

    def counted(descriptor: int, size: int, at: int) -> bytes:
        nonlocal read
        content = pread(descriptor, size, at)
        read += len(content)
        return content

    monkeypatch.setattr(os, "pread", counted)
    assert len(find_functions(LocalFile(large), ["rs_shown"])["rs_shown"]) == 1
    assert large.stat().st_size > 64 << 20
    assert read < 64 << 10


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_files_are_refused_or_read(library: Path, data: st.DataObject) -> None:
    image = bytearray(library.read_bytes())
    for _ in range(data.draw(st.integers(0, 12))):
        patch = data.draw(st.binary(min_size=1, max_size=8))
        # Half of the damage goes to the header and the program headers, on which all else hangs.
        at = data.draw(st.one_of(st.integers(0, 700), st.integers(0, len(image) - 9)))
        image[at : at + len(patch)] = patch
    with os.fdopen(os.memfd_create("damaged"), "r+b") as file:
        file.write(image[: data.draw(st.integers(0, len(image)))])
        file.flush()
        with contextlib.suppress(NotElf):
            elf = ElfFile(LocalFile(Path(f"/proc/self/fd/{file.fileno()}")))
            for read in (lambda: elf.segments, lambda: elf.section(".text"), lambda: elf.file_offset(4096)):
                with contextlib.suppress(NotElf):
                    read()
            with contextlib.suppress(NotElf):
                find_addresses(elf, ["rs_shown", "rs_hidden"])
            with contextlib.suppress(NotElf):
                table = FunctionTable(elf)
                for start in table.starts[:8]:
                    table.size(int(start))
            for kind in (DYNSYM, SYMTAB):
                for section in elf.symbol_sections(kind):
                    elf.symbols(section, 1, 3)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_program_are_refused(data: bytes) -> None:
    with os.fdopen(os.memfd_create("noise"), "r+b") as file:
        file.write(data)
        file.flush()
        with pytest.raises(NotElf):
            ElfFile(LocalFile(Path(f"/proc/self/fd/{file.fileno()}")))


def test_unwind_tables_at_an_absurd_address_are_refused(library: Path, tmp_path: Path) -> None:
    content = bytearray(library.read_bytes())
    segments_at, count = struct.unpack_from("<Q", content, 32)[0], struct.unpack_from("<H", content, 56)[0]
    for at in range(segments_at, segments_at + count * 56, 56):
        if struct.unpack_from("<I", content, at)[0] == GNU_EH_FRAME:
            struct.pack_into("<Q", content, at + 16, (1 << 64) - 4096)
    path = tmp_path / "absurd.so"
    path.write_bytes(content)
    with pytest.raises(NotElf):
        FunctionTable(ElfFile(LocalFile(path)))


def local(tmp_path: Path, content: bytes) -> LocalFile:
    path = tmp_path / "forged.so"
    path.write_bytes(content)
    return LocalFile(path)


def test_of_a_name_that_thousands_of_functions_bear_a_few_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is looked for in all loaded parts, and its name is read."""
    asked: list[int] = []
    place = ElfFile.file_offset

    def counted(elf: ElfFile, address: int) -> int | None:
        asked.append(address)
        return place(elf, address)

    monkeypatch.setattr(ElfFile, "file_offset", counted)
    found = find_names(local(tmp_path, forged(loads=MAX_LOADS, rows=5000)), ["rs_wanted", "rs_absent"])
    assert 1 <= len(found["rs_wanted"]) == len(asked) <= exports._MAX_HITS
    assert found["rs_wanted"][0].address == ADDRESS + SPAN * (MAX_LOADS - 1)
    assert found["rs_absent"] == ()


def test_a_file_of_symbols_of_one_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "_MAX_ROWS", 1000)
    monkeypatch.setattr(exports, "_PIECE_SYMBOLS", 100)
    with pytest.raises(NotElf, match="more than 1000 symbols"):
        find_functions(local(tmp_path, forged(rows=5000)), ["rs_"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (forged(loads=MAX_LOADS + 1), f"{MAX_LOADS + 1} loaded parts"),
        (forged(tables=MAX_TABLES + 1), f"{MAX_TABLES + 1} symbol tables"),
    ],
)
def test_more_parts_and_tables_than_any_linker_writes_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(NotElf, match=words):
        find_names(local(tmp_path, content), ["rs_wanted"])
