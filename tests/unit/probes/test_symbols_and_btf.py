"""Exported functions and kernel offsets are found in real files, and broken ones are refused."""

from __future__ import annotations

import contextlib
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.bpf import btf, cache
from rankscope.probes.bpf.btf import Btf, NoBtf
from rankscope.probes.elf import exports
from rankscope.probes.elf.exports import file_offsets, find_functions, find_names
from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import NotElf


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lib")
    (folder / "a.c").write_text(
        "int rs_known_function(int a) { return a * 17; }\nint rs_known_other(void) { return 19; }\nint data = 3;\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "liba.so", folder / "a.c"], check=True)
    return folder / "liba.so"


def test_functions_are_found_by_prefix_at_the_offset_that_nm_says(library: Path) -> None:
    said = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    addresses = {line.split()[2]: int(line.split()[0], 16) for line in said.splitlines()}
    found = find_functions(LocalFile(library), ["rs_known_function", "rs_known_", "data", "absent"])
    assert [s.address for s in found["rs_known_function"]] == [addresses["rs_known_function"]]
    assert {s.name for s in found["rs_known_"]} == {"rs_known_function", "rs_known_other"}
    assert found["data"] == () and found["absent"] == ()
    symbols = found["rs_known_"]
    assert file_offsets(LocalFile(library), [s.address for s in symbols]) == tuple(s.offset for s in symbols)
    assert file_offsets(LocalFile(library), [1 << 40]) == ()


def test_a_whole_name_is_found_inside_a_longer_one(tmp_path: Path) -> None:
    """ncclSend is kept as the tail of pncclSend; and cudaMemcpy is not cudaMemcpyAsync."""
    (tmp_path / "a.c").write_text(
        "int prs_send(void) { return 3; }\nint rs_send(void) { return 5; }\nint rs_send_later(void) { return 7; }\n"
        "static int rs_local(void) { return 9; }\nint rs_user(void) { return rs_local(); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-O2", "-o", tmp_path / "liba.so", tmp_path / "a.c"], check=True)
    assert b"\0rs_send\0" not in (tmp_path / "liba.so").read_bytes().split(b".symtab")[0].split(b"GCC:")[0]
    found = find_names(LocalFile(tmp_path / "liba.so"), ["rs_send", "prs_send", "send", "rs_sen"])
    assert [symbol.name for symbol in found["rs_send"]] == ["rs_send"]
    assert found["rs_send"][0].address != found["prs_send"][0].address
    assert found["send"] == found["rs_sen"] == ()


def test_what_is_not_a_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("#!/bin/sh\n")
    (tmp_path / "empty").write_text("")
    for name in ("text", "empty"):
        with pytest.raises(NotElf):
            find_functions(LocalFile(tmp_path / name), ["f"])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_library_never_does_worse_than_refuse(
    library: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    image = bytearray(library.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(image) - 1), max_size=12)):
        image[at] = data.draw(st.integers(0, 255))
    broken = tmp_path_factory.mktemp("broken") / "liba.so"
    broken.write_bytes(image[: data.draw(st.integers(0, len(image)))])
    with contextlib.suppress(RankscopeError):
        find_functions(LocalFile(broken), ["rs_known_"])


def a_btf(members: list[tuple[str, int, int]]) -> bytes:
    """struct outer {members}, where type 2 is an anonymous struct that holds `inner` at 64 bits. Offsets in bits."""
    text = bytearray(b"\0")

    def name(word: str) -> int:
        text.extend(word.encode() + b"\0")
        return len(text) - len(word) - 1

    kind = 4 << 24
    types = struct.pack("<III", name("outer"), kind | len(members), 64)
    for member, type_id, bits in members:
        types += struct.pack("<III", name(member) if member else 0, type_id, bits)
    types += struct.pack("<III", 0, kind | 1, 16) + struct.pack("<III", name("inner"), 3, 64)
    types += struct.pack("<IIII", name("int"), 1 << 24, 4, 32)
    return struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(text)) + types + bytes(text)


def test_a_member_of_an_anonymous_structure_counts_from_the_outside() -> None:
    types = Btf(a_btf([("first", 3, 0), ("", 2, 128), ("named", 2, 256)]))
    assert types.offset("outer", "first") == 0
    assert types.offset("outer", "inner") == 16 + 8
    assert types.offset("outer", "named.inner") == 32 + 8
    assert types.offset("outer", "") == 64  # its size


@pytest.mark.parametrize(("structure", "path"), [("outer", "absent"), ("absent", "first"), ("outer", "first.more")])
def test_what_the_kernel_does_not_have_is_named(structure: str, path: str) -> None:
    with pytest.raises(NoBtf):
        Btf(a_btf([("first", 3, 0)])).offset(structure, path)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_bytes_that_are_not_btf_are_refused(blob: bytes) -> None:
    for candidate in (blob, a_btf([("first", 3, 0)])[:24] + blob):
        with contextlib.suppress(RankscopeError):
            Btf(candidate).offset("outer", "first")


def test_the_kernels_types_are_looked_through_once_for_each_build(tmp_path: Path) -> None:
    place, notes = tmp_path / "sys/kernel/btf/vmlinux", tmp_path / "sys/kernel/notes"
    place.parent.mkdir(parents=True)
    (tmp_path / "var/cache").mkdir(parents=True)

    def offset(build: bytes, bits: int | None, member: str = "first") -> int:
        btf.forget()
        notes.write_bytes(build)
        place.unlink(missing_ok=True)
        if bits is not None:
            place.write_bytes(a_btf([("first", 3, bits), ("second", 3, bits + 32)]))
        return btf.offsets({"RS_ONE": ("outer", member)}, tmp_path)["RS_ONE"]

    assert offset(b"a build", 64) == 8
    assert offset(b"a build", None) == 8
    assert offset(b"a build", 128, "second") == 20
    assert offset(b"another build", 128) == 16
    for kept in (tmp_path / cache.FOLDER).iterdir():
        kept.write_bytes(kept.read_bytes()[:-1])
    assert offset(b"a build", 256) == 32
    with pytest.raises(NoBtf):
        offset(b"a third", None)
    btf.forget()


def test_local_functions_are_found_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """jaxlib exports none of XLA's collectives: only its full symbol table has them, among 740,000 others."""
    local = "__attribute__((used, noinline)) static int"
    few = [f"{local} filler_{number}_of_many(void) {{ return {number}; }}" for number in range(500)]
    few[200:200] = [
        f"{local} _ZN3xla3cpu16GlooCommunicator9AllReduceEPv(void *p) {{ return p != 0; }}",
        f'{local} cold(void) __asm__("_ZN3xla3cpu16GlooCommunicator9AllReduceEPv.cold"); {local} cold(void) {{ return 3; }}',
        f"{local} _ZN3xla3cpu16GlooCommunicator9AllGatherEPv(void *p) {{ return p == 0; }}",
    ]
    (tmp_path / "a.c").write_text("\n".join(few))
    library = tmp_path / "libjax_common.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "a.c"], check=True)
    wanted = [
        "_ZN3xla3cpu16GlooCommunicator9AllReduceE",
        "_ZN3xla3cpu16GlooCommunicator9AllGatherE",
        "_ZN3xla3cpu4NoneE",
    ]
    expected = find_functions(LocalFile(library), wanted)
    assert [len(expected[name]) for name in wanted] == [1, 1, 0]
    for piece in (1, 7, 100, 4096):
        monkeypatch.setattr(exports, "_PIECE_BYTES", piece)
        monkeypatch.setattr(exports, "_PIECE_SYMBOLS", 37)
        assert find_functions(LocalFile(library), wanted) == expected
        assert (
            find_names(LocalFile(library), ["filler_499_of_many"])["filler_499_of_many"][0].name == "filler_499_of_many"
        )
