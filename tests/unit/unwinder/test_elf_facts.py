"""Symbols, the runtime section and load addresses, in the files of this host and in forged ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import NotElf, Segment
from rankscope.probes.host.maps import Mapping
from rankscope.unwinder.interpreter import elf_facts
from rankscope.unwinder.interpreter.elf_facts import ElfFacts, load_bias, read_facts


@pytest.mark.parametrize(
    ("independent", "offset", "expected"), [(True, 0x1000, 0x7F0FFFFFF000), (True, 0x9000, None), (False, 0x9000, 0)]
)
def test_the_bias_comes_from_the_segment_that_is_mapped(independent: bool, offset: int, expected: int | None) -> None:
    facts = ElfFacts(independent, (Segment(0, 0, 100), Segment(0x1D80, 0x1D80, 0x100)), 0, ())
    assert load_bias(facts, [Mapping(0x7F1000000000, 0x7F1000002000, "r-xp", offset, "", 0, "/x")]) == expected


@pytest.mark.parametrize("page", [4096, 16384, 65536])
def test_a_segment_is_mapped_in_pages_of_the_machine(monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr(elf_facts, "_PAGE_BYTES", page)
    facts = ElfFacts(True, (Segment(0, 0, 100), Segment(0x15D80, 0x25D80, 0x100)), 0, ())
    begin, bias = 0x7F1000000000 + (0x25D80 & -page), 0x7F1000000000
    assert load_bias(facts, [Mapping(begin, begin + page, "rw-p", 0x15D80 & -page, "", 0, "/x")]) == bias


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
    facts = read_facts(LocalFile(path), ("wanted", "absent", "other"))
    assert facts.position_independent == (kind in ("shared", "executable"))
    assert facts.symbol("absent") == 0
    assert abs(facts.symbol("wanted") - facts.symbol("other")) == 4
    assert facts.runtime_section > 0


def test_what_was_read_once_is_remembered_until_the_file_changes(built: tuple[str, Path]) -> None:
    _, path = built
    first = read_facts(LocalFile(path), ("wanted",))
    assert read_facts(LocalFile(path), ("wanted",)) is first
    path.touch()
    assert read_facts(LocalFile(path), ("wanted",)) is not first


@given(at=st.integers(0, 4000), noise=st.binary(min_size=1, max_size=16), end=st.integers(0, 20000))
@settings(max_examples=150, deadline=None)
def test_a_forged_file_is_refused_or_read(at: int, noise: bytes, end: int) -> None:
    data = bytearray(_small_elf())
    at %= len(data)
    data[at : at + len(noise)] = noise
    with os.fdopen(os.memfd_create("forged"), "r+b") as file:
        file.write(data[: max(end, 64)])
        file.flush()
        with contextlib.suppress(NotElf):
            read_facts(LocalFile(Path(f"/proc/self/fd/{file.fileno()}")), ("wanted", "_PyRuntime"))


def _small_elf() -> bytes:
    """Some small extension module of the running interpreter."""
    folders = [Path(entry) for entry in sys.path if entry.endswith("lib-dynload")]
    files = sorted((file for folder in folders for file in folder.glob("*.so")), key=lambda file: file.stat().st_size)
    return files[0].read_bytes() if files else b"\x7fELF" + bytes(60)
