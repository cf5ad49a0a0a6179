"""Symbols, sections and load addresses, in the files of this host and in forged ones."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.unwinder.interpreter.elf import ElfFacts, Mapping, Segment, load_bias, parse_elf, parse_maps, read_facts

MAPS = b"""\
55d0a0000000-55d0a0001000 r--p 00000000 fd:00 131 /usr/bin/my python3.10 (deleted)
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
7f1000000000-7f1000002000 r-xp 00001000 fd:00 132 /usr/lib/libpython3.10.so.1.0
7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0 [stack]
nonsense /usr/lib/x
"""


def test_only_file_mappings_are_kept() -> None:
    deleted, library = parse_maps(MAPS)
    assert (deleted.path, deleted.deleted, deleted.inode) == ("/usr/bin/my python3.10", True, 131)
    assert library == Mapping(
        0x7F1000000000, 0x7F1000002000, 0x1000, "fd:00", 132, "/usr/lib/libpython3.10.so.1.0", False
    )


@given(st.binary(max_size=2000))
def test_any_maps_file_is_parsed(data: bytes) -> None:
    parse_maps(data)
    parse_maps(b"1-2 r--p 0 0:0 1 /" + data)


@pytest.mark.parametrize(
    ("independent", "offset", "expected"), [(True, 0x1000, 0x7F0FFFFFF000), (True, 0x9000, None), (False, 0x9000, 0)]
)
def test_the_bias_comes_from_the_segment_that_is_mapped(independent: bool, offset: int, expected: int | None) -> None:
    facts = ElfFacts(independent, (Segment(0, 0, 100), Segment(0x1D80, 0x1D80, 0x100)), 0, ())
    assert load_bias(facts, [Mapping(0x7F1000000000, 0x7F1000002000, offset, "", 0, "/x", False)]) == expected


@pytest.fixture(params=["shared", "executable", "fixed", "stripped"])
def built(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    source, target = tmp_path / "a.c", tmp_path / "a.out"
    source.write_text(
        "int wanted = 23;\nint other = 5;\n"
        'int state __attribute__((section(".PyRuntime"))) = 7;\nint main(void) { return wanted; }\n'
    )
    options = {
        "shared": ["-shared", "-fPIC"],
        "executable": ["-pie", "-fPIE"],
        "fixed": ["-no-pie"],
        "stripped": ["-no-pie", "-rdynamic", "-s"],
    }[request.param]
    subprocess.run(["gcc", *options, "-o", str(target), str(source)], check=True, timeout=60)
    return request.param, target


def test_symbols_are_found_with_and_without_a_dynamic_table(built: tuple[str, Path]) -> None:
    kind, path = built
    with path.open("rb") as file:
        facts = read_facts(file, ("wanted", "absent", "other"))
    assert facts.position_independent == (kind in ("shared", "executable"))
    assert facts.symbol("absent") == 0
    assert abs(facts.symbol("wanted") - facts.symbol("other")) == 4
    assert facts.runtime_section > 0


def test_what_was_read_once_is_remembered_until_the_file_changes(built: tuple[str, Path]) -> None:
    _, path = built
    with path.open("rb") as file:
        first = read_facts(file, ("wanted",))
        assert read_facts(file, ("wanted",)) is first
    path.touch()
    with path.open("rb") as file:
        assert read_facts(file, ("wanted",)) is not first


@given(at=st.integers(0, 4000), noise=st.binary(min_size=1, max_size=16), end=st.integers(0, 20000))
@settings(max_examples=150, deadline=None)
def test_a_forged_file_is_refused_or_read(at: int, noise: bytes, end: int) -> None:
    data = bytearray(_small_elf())
    at %= len(data)
    data[at : at + len(noise)] = noise
    with contextlib.suppress(ValueError):
        parse_elf(io.BytesIO(bytes(data[: max(end, 64)])), ("wanted", "_PyRuntime"))


def _small_elf() -> bytes:
    """Some small extension module of the running interpreter."""
    folders = [Path(entry) for entry in sys.path if entry.endswith("lib-dynload")]
    files = sorted((file for folder in folders for file in folder.glob("*.so")), key=lambda file: file.stat().st_size)
    return files[0].read_bytes() if files else b"\x7fELF" + bytes(60)
