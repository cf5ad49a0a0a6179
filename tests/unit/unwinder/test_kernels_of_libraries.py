"""Host functions of kernels: found in what compilers make of the code that registers them, stripped or not."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from fat_binaries import host_library
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.probes.elf.exports import find_addresses
from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import ElfFile, NotElf
from rankscope.unwinder.gpu import files
from rankscope.unwinder.gpu.defined import defined_kernels
from rankscope.unwinder.gpu.files import Kernel, KernelNames, Launched
from rankscope.unwinder.gpu.registered import registered_kernels
from rankscope.unwinder.gpu.short import short
from rankscope.unwinder.gpu.stubs import BY_CODE, BY_SYMBOL, kernel_table, name_of
from rankscope.unwinder.gpu.symbols import kernels_by_symbol
from rankscope.unwinder.gpu.x86 import references

COMPILED = Path(__file__).parents[2] / "data" / "gpu_kernels"
KERNELS = (*(f"_Z7kernel{i}PfS_" for i in range(5)), "_ZN2at6native4gemmIfEEvT_", "plain")


def named(library: Path) -> dict[int, str]:
    """Linked address of each host function and the name of its kernel."""
    elf = ElfFile(LocalFile(library))
    stubs = registered_kernels(elf)
    return {int(address): name_of(elf, int(at)) for address, at in zip(stubs.functions, stubs.names_at, strict=True)}


def truth(library: Path) -> dict[int, str]:
    found = find_addresses(ElfFile(LocalFile(library)), [f"stub_{i}" for i in range(len(KERNELS))])
    return {found[f"stub_{i}"]: name for i, name in enumerate(KERNELS)}


@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2", "-O3", "-Os"])
@pytest.mark.parametrize("flags", [(), ("-fno-plt",), ("-fcf-protection=full", "-Wl,-z,now"), ("-Wl,-Bsymbolic",)])
@pytest.mark.parametrize("static", [False, True])
def test_every_registered_kernel_is_found_by_the_code_alone(
    tmp_path: Path, level: str, flags: tuple[str, ...], static: bool
) -> None:
    library = host_library(tmp_path, KERNELS, level, *flags, static=static)
    expected = truth(library)
    assert len(expected) == len(KERNELS)
    subprocess.run(["strip", library], check=True)
    assert named(library) == expected


def test_a_fat_binary_defines_the_kernels_that_its_host_code_registers(tmp_path: Path) -> None:
    library = host_library(tmp_path, KERNELS, "-O2")
    found = defined_kernels(ElfFile(LocalFile(library)))
    assert (found.kernels, found.containers, found.unread) == (frozenset(KERNELS), 1, {})


@pytest.mark.parametrize("name", ["zstd.so", "lz4.so"])
def test_what_nvidias_compiler_made_has_all_its_kernels_and_stripped_too(name: str) -> None:
    elf = ElfFile(LocalFile(COMPILED / name))
    table = kernel_table(elf)
    symbols = {name_of(elf, int(at)) for at in table.stubs.names_at}
    assert {short(symbol) for symbol in symbols} == {
        "work::apply<Add<float, 3>, float>", "work::apply<Add<double, 5>, double>", "(anonymous)::hidden", "fixed", "plain", "scale",
    }  # fmt: skip
    assert (len(table.stubs.functions), table.how) == (6, BY_CODE)
    found = defined_kernels(elf)
    assert (found.kernels, found.unread) == (symbols, {})


def test_without_registering_code_symbols_name_the_kernels(tmp_path: Path) -> None:
    """Host functions with the names of the kernels, and one more that no fat binary has."""
    library = host_library(tmp_path, KERNELS, "-O2")
    renamed = [f"--redefine-sym=stub_{i}={name}" for i, name in enumerate(KERNELS)]
    subprocess.run(["objcopy", *renamed, "--remove-section=.init_array", library], check=True)
    elf = ElfFile(LocalFile(library))
    table = kernel_table(elf)
    assert table.how == BY_SYMBOL
    assert sorted(name_of(elf, int(at)) for at in table.stubs.names_at) == sorted(KERNELS)
    assert len(kernels_by_symbol(elf, {"_Z5absent"}).functions) == 0


def test_a_library_without_a_fat_binary_has_no_kernels() -> None:
    assert kernel_table(ElfFile(LocalFile(Path("/bin/true")))).how == ""


def test_launches_of_a_process_are_named_by_what_they_pass_and_by_who_passes_it(tmp_path: Path) -> None:
    library = host_library(tmp_path, KERNELS, "-O2", static=True)
    expected = truth(library)
    loaded = ctypes.CDLL(str(library))
    returned = ctypes.c_void_p.in_dll(loaded, "caller")
    passed, handles = {}, {}
    for i, name in enumerate(KERNELS):
        stub = loaded[f"stub_{i}"]
        stub(None)
        passed[Launched(ctypes.cast(stub, ctypes.c_void_p).value or 0)] = name
        handles[Launched(0x5555_0000 + i, returned.value or 0)] = name
    names = KernelNames()
    other = Launched(min(passed).function + 1, min(passed).function - 1)
    found = names.kernels(os.getpid(), [*passed, *handles, other, Launched(16, 17)])
    names.close()
    assert sorted(expected.values()) == sorted(KERNELS)
    assert {one: kernel.symbol for one, kernel in found.items()} == passed | handles
    assert Kernel("at::native::gemm<float>", KERNELS[5], "libhost.so") in found.values()


def test_a_released_file_is_read_again_only_where_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = host_library(tmp_path, KERNELS, "-O2", static=True)
    loaded = ctypes.CDLL(str(library))
    stub = Launched(ctypes.cast(loaded["stub_0"], ctypes.c_void_p).value or 0)
    later = Launched(ctypes.cast(loaded["stub_1"], ctypes.c_void_p).value or 0)
    read: list[str] = []
    monkeypatch.setattr(files, "kernel_table", lambda elf: read.append(elf.name) or kernel_table(elf))  # type: ignore[func-returns-value]
    names = KernelNames()
    assert [names.kernels(os.getpid(), [stub])[stub].symbol for _ in range(2)] == [KERNELS[0]] * 2
    for _ in range(2):
        names.release()
        assert names.kernels(os.getpid(), [later])[later].symbol == KERNELS[1]  # a name that was not asked for before
    assert read == ["libhost.so"]
    names.release()
    os.utime(library)
    assert names.kernels(os.getpid(), [stub])[stub].symbol == KERNELS[0]
    assert read == ["libhost.so"] * 2
    names.close()


def test_a_file_that_has_changed_is_not_dropped_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stubs = {}
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        library = host_library(tmp_path / name, KERNELS, "-O2", static=True)
        stubs[Launched(ctypes.cast(ctypes.CDLL(str(library))["stub_0"], ctypes.c_void_p).value or 0)] = library
    names = KernelNames()
    assert len(names.kernels(os.getpid(), stubs)) == 2
    names.release()
    monkeypatch.setattr(files, "_TABLES_BYTES", 0)  # there is room for one
    longest_unused = min(stubs)
    os.utime(stubs[longest_unused])
    assert names.kernels(os.getpid(), [longest_unused])[longest_unused].symbol == KERNELS[0]
    names.close()


def test_the_file_whose_code_launches_is_known_without_reading_it() -> None:
    names, libc = KernelNames(), ctypes.CDLL("libc.so.6")
    inside = Launched(7, ctypes.cast(libc.getpid, ctypes.c_void_p).value or 0)
    assert names.placed(os.getpid(), [inside, Launched(7, 16)])[1] == {inside: "libc.so.6"}
    assert names.placed(1 << 30, [inside])[1] == {}


@given(st.binary(max_size=300), st.integers(0, 1 << 40), st.integers(-(1 << 31), (1 << 31) - 1), st.booleans())
def test_any_bytes_are_code_with_references_within_them(
    data: bytes, address: int, distance: int, absolute: bool
) -> None:
    planted = b"\x48\x8d\x35" + distance.to_bytes(4, "little", signed=True)
    found = references(data + planted, address, absolute)
    assert address + len(data) + 7 + distance in found.constants[1]
    for at, values in (found.constants, found.loads, found.calls, found.slot_calls):
        assert len(at) == len(values)
        assert np.all(np.diff(at) >= 0)
        assert np.all((at >= 0) & (at < len(data) + 7))


@functools.cache
def sound() -> bytes:
    """A library as compilers make it."""
    with tempfile.TemporaryDirectory() as folder:
        return host_library(Path(folder), KERNELS, "-O2", strip=True).read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20_000), st.binary(min_size=1, max_size=8)), max_size=12))
def test_damaged_libraries_have_fewer_kernels_and_end(patches: list[tuple[int, bytes]]) -> None:
    image = bytearray(sound())
    for at, patch in patches:
        image[at : at + len(patch)] = patch
    with os.fdopen(os.memfd_create("damaged"), "r+b") as file:
        file.write(image)
        file.flush()
        library = LocalFile(Path(f"/proc/self/fd/{file.fileno()}"))
        try:
            elf = ElfFile(library)
            table = kernel_table(elf)
            defined_kernels(elf)
        except (NotElf, OSError, OverflowError):
            return
        assert np.all(np.diff(table.stubs.functions) > 0)
        for at in table.stubs.names_at[:20]:
            name_of(elf, int(at))
