"""Native names: right where a symbol reaches, honest where none does, never fatal."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.probes.host.maps import read_maps
from rankscope.unwinder.names.demangle import NAME_CAP, readable
from rankscope.unwinder.names.native import KERNEL, NativeNames, read_symbols


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("memcpy@@GLIBC_2.14", "memcpy"),
        ("gc_collect_main.constprop.0", "gc_collect_main"),
        ("_ZN2at6native3addERKNS_6TensorE", "at::native::add"),
        ("_ZNK2at6Tensor3dimEv", "at::Tensor::dim"),
        ("_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EE", "torch::autograd::Engine::execute"),
        ("_ZN2at6native12_GLOBAL__N_110add_kernelEv", "at::native::(anonymous)::add_kernel"),
        ("_ZNSt6vectorIiSaIiEE9push_backEOi", "std::vector::push_back"),
        ("_ZN8pybind116handleC1Ev", "pybind11::handle::handle"),
        ("_ZN8pybind116handleD2Ev", "pybind11::handle::~handle"),
        ("_ZNKSt8functionIFvvEEclEv", "std::function::operator()"),
        ("_ZN1a1bILi3ELb1ENS_1cIdEEE3runEv", "a::b::run"),
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
