"""Where functions leave: against assembler whose return instructions carry labels."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.probes.elf.exports import Symbol, find_names
from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import NotElf
from rankscope.probes.elf.return_sites import NoReturns, leave_offsets

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the assembler is for x86-64")

ASSEMBLER = """
.macro begin name
    .globl \\name
    .type \\name, @function
    \\name:
    .cfi_startproc
.endm
.macro finish name
    .cfi_endproc
    .size \\name, .-\\name
.endm
.text
begin two_returns
    test %edi, %edi
    jne 1f
    mov $3, %eax
.globl at_first
at_first: ret
1:  push %rbx
    .cfi_adjust_cfa_offset 8
    movabs $0xc3c3c3c3c3c3c3c3, %rbx    # bytes of a return inside another instruction
    pop %rbx
    .cfi_adjust_cfa_offset -8
.globl at_second
at_second: ret
finish two_returns

begin forwards                          # nothing but a jump: its end is the end of what it jumps to
    jmp hidden
finish forwards

.type hidden, @function
hidden:
    .cfi_startproc
    mov $7, %eax
.globl at_hidden
at_hidden: ret
    .cfi_endproc
    nop

begin tail_call
    test %edi, %edi
    je 2f
.globl at_tail
at_tail: jmp two_returns
2:  jmp .Lcold                          # the cold part of the same function: no end of it
finish tail_call

begin endless
3:  jmp 3b
finish endless

begin forwards_for_ever
    jmp forwards_for_ever_2
finish forwards_for_ever
begin forwards_for_ever_2
    jmp forwards_for_ever
finish forwards_for_ever_2

.section .text.unlikely, "ax"
    .cfi_startproc
    nop
.Lcold:
    ud2
    .cfi_endproc
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("returns")
    (folder / "functions.s").write_text(ASSEMBLER)
    subprocess.run(
        ["cc", "-shared", "-nostdlib", "-Wl,-Bsymbolic", "-o", str(folder / "lib.so"), str(folder / "functions.s")],
        check=True,
    )
    return folder / "lib.so"


def function(library: Path, name: str) -> Symbol:
    return find_names(LocalFile(library), [name])[name][0]


def label(library: Path, name: str) -> int:
    """File offset of a label, from the assembler's own symbol table."""
    lines = subprocess.run(["nm", "-D", str(library)], check=True, capture_output=True, text=True).stdout.splitlines()
    address = next(int(line.split()[0], 16) for line in lines if line.split()[-1] == name)
    two = function(library, "two_returns")
    return address - two.address + two.offset


def test_every_return_instruction_is_found_and_no_byte_that_looks_like_one(library: Path) -> None:
    found = leave_offsets(LocalFile(library), [function(library, "two_returns")])
    assert found == (label(library, "at_first"), label(library, "at_second"))


def test_a_function_that_only_jumps_ends_where_its_target_ends(library: Path) -> None:
    assert leave_offsets(LocalFile(library), [function(library, "forwards")]) == (label(library, "at_hidden"),)


def test_a_tail_call_is_an_end_and_a_jump_to_the_cold_part_is_none(library: Path) -> None:
    assert leave_offsets(LocalFile(library), [function(library, "tail_call")]) == (label(library, "at_tail"),)


@pytest.mark.parametrize("name", ["endless", "forwards_for_ever"])
def test_a_function_without_an_end_is_refused(library: Path, name: str) -> None:
    with pytest.raises(NoReturns):
        leave_offsets(LocalFile(library), [function(library, name)])


def test_an_address_inside_no_function_is_refused(library: Path) -> None:
    inside = function(library, "two_returns")
    with pytest.raises(NoReturns):
        leave_offsets(LocalFile(library), [Symbol("inside", inside.address + 2, inside.offset + 2, 0)])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_library_is_refused_and_nothing_else_happens(
    library: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = bytearray(library.read_bytes())
    for _ in range(data.draw(st.integers(1, 23))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    damaged = tmp_path_factory.mktemp("damaged") / "lib.so"
    damaged.write_bytes(text[: data.draw(st.integers(0, len(text)))])
    symbols = [function(library, name) for name in ("two_returns", "forwards", "tail_call")]
    for symbol in symbols:
        try:
            found = leave_offsets(LocalFile(damaged), [symbol])
        except (NoReturns, NotElf):
            continue
        assert all(offset >= 0 for offset in found)
