"""Where functions of aarch64 leave, on any machine: against a library whose return instructions carry labels (tests/data/aarch64)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankscope.probes.elf.exports import find_addresses, find_names
from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import ElfFile
from rankscope.probes.elf.return_sites import NoReturns, leave_offsets

LIBRARY = LocalFile(Path(__file__).parents[2] / "data/aarch64/returns.so")


def found(name: str) -> tuple[int, ...]:
    return leave_offsets(LIBRARY, find_names(LIBRARY, [name])[name])


def labels(*names: str) -> tuple[int, ...]:
    elf = ElfFile(LIBRARY)
    offsets = [elf.file_offset(address) for address in find_addresses(elf, names).values()]
    assert len(offsets) == len(names)
    return tuple(offset for offset in offsets if offset is not None)


@pytest.mark.parametrize(
    ("function", "ends"),
    [
        ("two_returns", ("at_first", "at_second")),
        ("forwards", ("at_hidden",)),  # behind a landing pad
        ("tail_calls", ("at_tail", "at_linkage", "at_register")),  # neither conditional branches nor the cold part
        ("returns_signed", ("at_signed",)),
    ],
)
def test_every_end_is_found_and_nothing_else(function: str, ends: tuple[str, ...]) -> None:
    assert found(function) == labels(*ends)


def test_a_function_without_an_end_is_refused() -> None:
    with pytest.raises(NoReturns):
        found("endless")
