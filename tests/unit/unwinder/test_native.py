"""Native names: right where a symbol reaches, honest where none does, never fatal."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from forged_elf import SPAN, forged
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import MAX_LOADS, MAX_TABLES, ElfFile, SymbolRows, SymbolSection
from rankscope.probes.host.maps import read_maps
from rankscope.unwinder.names import native
from rankscope.unwinder.names.demangle import NAME_CAP, readable
from rankscope.unwinder.names.native import KERNEL, NativeNames, function_columns, read_symbols


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("memcpy@@GLIBC_2.14", "memcpy"),
        ("gc_collect_main.constprop.0", "gc_collect_main"),
        ("_ZN2at6native3addERKNS_6TensorE", "at::native::add"),
        ("_ZNSA_1aI3barE4callEv", "a::call"),
        ("_Z²foo", "_Z²foo"),
        ("_ZNK2at6Tensor3dimEv", "at::Tensor::dim"),
        ("_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EE", "torch::autograd::Engine::execute"),
        ("_ZN2at6native12_GLOBAL__N_110add_kernelEv", "at::native::(anonymous)::add_kernel"),
        ("_ZNSt6vectorIiSaIiEE9push_backEOi", "std::vector::push_back"),
        ("_ZN8pybind116handleC1Ev", "pybind11::handle::handle"),
        ("_ZN8pybind116handleD2Ev", "pybind11::handle::~handle"),
        ("_ZNKSt8functionIFvvEEclEv", "std::function::operator()"),
        ("_ZN1a1bILi3ELb1ENS_1cIdEEE3runEv", "a::b::run"),
        ("_ZN1a1bIfLin2ELb1EEEvT_", "a::b"),
        ("_Z3foov", "foo"),
        ("_ZL6hiddenv", "hidden"),
        ("_ZZN2at6native3addEvENKUlvE_clEv", "at::native::add"),
        ("_ZTVN2at6TensorE", "vtable"),
        ("_Z", "_Z"),
        ("", ""),
    ],
)
def test_symbols_become_readable(symbol: str, name: str) -> None:
    assert readable(symbol) == name


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(st.text(max_size=300), st.text(alphabet="_ZNKSLIEDCXJFTt0123456789abv", max_size=300).map("_ZN".__add__))
)
def test_any_text_is_shortened_and_printable(symbol: str) -> None:
    found = readable(symbol)
    assert len(found) <= NAME_CAP
    assert found.isprintable()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "a.c").write_text(
        "static __attribute__((noinline)) int rs_hidden(int a) { return a * 17 + (a << 3); }\n"
        "int rs_one(int a) { return rs_hidden(a) + 1; }\nint rs_two(int a) { return a * 19; }\n"
    )
    subprocess.run(["gcc", "-O1", "-s", "-shared", "-fPIC", "-o", tmp_path / "liba.so", tmp_path / "a.c"], check=True)
    return tmp_path / "liba.so"


def test_a_loaded_library_is_named_by_symbol_where_one_reaches_and_by_file_elsewhere(library: Path) -> None:
    loaded = ctypes.CDLL(str(library))
    one, two = (ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0 for name in ("rs_one", "rs_two"))
    pointers = np.array([one, one + 3, two + 1, one - 1, 0xFFFF_FFFF_8100_0000, 16], dtype=np.uint64)
    names = NativeNames()
    found = names.names(os.getpid(), pointers)
    names.close()
    assert (found[one], found[one + 3], found[two + 1]) == ("rs_one", "rs_one", "rs_two")
    assert found[one - 1] == "liba.so"
    assert found[0xFFFF_FFFF_8100_0000] == KERNEL
    assert 16 not in found


def test_a_process_that_is_gone_has_no_names() -> None:
    assert NativeNames().names(2**22 + 5, np.array([4096], dtype=np.uint64)) == {}


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=400), st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=8)), max_size=12)
)
def test_damaged_libraries_give_the_files_name(tail: bytes, patches: list[tuple[int, bytes]]) -> None:
    image = bytearray(Path("/bin/true").read_bytes()[:4096] + tail)
    for at, patch in patches:
        image[at : at + len(patch)] = patch
    with os.fdopen(os.memfd_create("damaged"), "r+b") as file:
        file.write(image)
        file.flush()
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
            (mapping,) = read_maps(os.getpid(), wanted=lambda path: path == "/memfd:damaged")
            table = read_symbols(os.getpid(), mapping)
    assert len(table.names(np.array([0, 64, 2**63], dtype=np.uint64))) == 3
    table.close()


def test_all_symbol_tables_of_a_file_have_as_many_symbols_as_one_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_SYMBOLS_CAP", 1000)
    monkeypatch.setattr(native, "_SLICE", 300)
    (tmp_path / "forged.so").write_bytes(forged(tables=MAX_TABLES, rows=700))
    (starts, sizes, texts), looked = function_columns(ElfFile(LocalFile(tmp_path / "forged.so")))
    assert len(starts) == len(sizes) == len(texts) == looked == 1000


@contextlib.contextmanager
def mapped_files(tmp_path: Path, count: int, rows: int) -> Iterator[tuple[int, ...]]:
    """A pointer into the first function of each of these files, as this process has them mapped."""
    with contextlib.ExitStack() as held:
        for number in range(count):
            path = tmp_path / f"lib{number}.so"
            path.write_bytes(forged(rows=rows, name=f"rs_{number}"))
            file = held.enter_context(path.open("rb"))
            held.enter_context(mmap.mmap(file.fileno(), SPAN, prot=mmap.PROT_READ))
        found = {one.path: one.start for one in read_maps(os.getpid()) if one.path.startswith(str(tmp_path))}
        yield tuple(found[str(tmp_path / f"lib{number}.so")] for number in range(count))


def test_symbols_of_many_files_take_no_more_memory_than_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 400
    monkeypatch.setattr(native, "_TABLES_BYTES", 3 * 24 * rows)
    names = NativeNames()
    with mapped_files(tmp_path, 8, rows) as pointers:
        for _ in range(2):
            found = names.names(os.getpid(), np.array(pointers, dtype=np.uint64))
            assert [found[pointer] for pointer in pointers] == [f"rs_{number}" for number in range(8)]
            assert sum(table.nbytes for table in names._tables.values()) <= 3 * 24 * rows
    names.close()


def test_who_has_symbols_without_number_gets_the_names_of_his_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 400
    monkeypatch.setattr(native, "_PER_FILE", 0)
    monkeypatch.setattr(native, "_FREELY", 2 * rows)
    monkeypatch.setattr(native, "_EACH", rows)
    monkeypatch.setattr(native, "whose", lambda pid, root: "user 1000")
    names = NativeNames()
    with mapped_files(tmp_path, 6, rows) as pointers:
        found = [names.names(os.getpid(), np.array([pointer], dtype=np.uint64))[pointer] for pointer in pointers]
    names.close()
    assert found[:2] == ["rs_0", "rs_1"]
    assert found[2:] == [f"lib{number}.so" for number in range(2, 6)]


def test_symbols_of_files_that_break_at_their_end_were_looked_through_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, most = 400, 300
    monkeypatch.setattr(native, "_PER_FILE", 0)
    monkeypatch.setattr(native, "_SLICE", most)
    monkeypatch.setattr(native, "_FREELY", 2 * most)
    monkeypatch.setattr(native, "_EACH", most)
    monkeypatch.setattr(native, "whose", lambda pid, root: "user 1000")
    asked: list[int] = []
    symbols = ElfFile.symbols

    def broken(elf: ElfFile, table: SymbolSection, first: int = 0, count: int | None = None) -> SymbolRows:
        asked.append(first)
        if first:
            raise OSError
        return symbols(elf, table, first, count)

    monkeypatch.setattr(ElfFile, "symbols", broken)
    names = NativeNames()
    with mapped_files(tmp_path, 6, rows) as pointers:
        found = [names.names(os.getpid(), np.array([pointer], dtype=np.uint64))[pointer] for pointer in pointers]
    names.close()
    assert found == [f"lib{number}.so" for number in range(6)]
    assert asked == [0, most] * 2


def test_headers_without_number_were_looked_through_too(tmp_path: Path) -> None:
    path = tmp_path / "headers.so"
    path.write_bytes(forged(loads=MAX_LOADS + 1))
    with path.open("rb") as file, mmap.mmap(file.fileno(), SPAN, prot=mmap.PROT_READ):
        (mapping,) = read_maps(os.getpid(), wanted=lambda name: name == str(path))
        table = read_symbols(os.getpid(), mapping)
    assert not len(table.starts) and table.rows > MAX_LOADS
