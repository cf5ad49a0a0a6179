"""Find the parts of a linked file that CUDA's registering code refers to.

In: an ELF file. Out: address ranges of code, of constant text and of the descriptors of fat
binaries; the file's initialisers; what the loader writes into slots. Format: System V ABI; for
x86-64 and aarch64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.probes.base.arrays import Ints
from rankscope.probes.elf.reader import AARCH64, DYNSYM, X86_64, ElfFile, Section

MAX_INITIALISERS = 50_000  # libtorch_cuda of CUDA 13 has 19,124
MAX_SLOTS = 1_000_000
_MAX_RELOCATIONS, _MAX_SYMBOLS = 8_000_000, 2_000_000  # libtorch_cuda: 800,000 and 100,000
_PIECE_ROWS, _RELA = 1 << 16, 4  # sh_type
_RELOCATION = np.dtype([("place", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
# By machine: a linked address; a symbol's, into a table of addresses, into a slot for calls, as it is
_RELATIVE = {X86_64: 8, AARCH64: 1027}
_OF_SYMBOL = {X86_64: (6, 7, 1), AARCH64: (1025, 1026, 257)}


@dataclass(frozen=True, slots=True)
class Span:
    """A range of linked addresses; `offset`: where it begins in the file."""

    begin: int
    end: int
    offset: int

    def holds(self, addresses: Ints) -> npt.NDArray[np.bool_]:
        """Return a mask of the addresses in the range."""
        found: npt.NDArray[np.bool_] = (addresses >= self.begin) & (addresses < self.end)
        return found

    def offsets(self, addresses: Ints) -> Ints:
        """Convert linked addresses in the range to positions in the file."""
        found: Ints = addresses - np.int64(self.begin - self.offset)
        return found


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a file has its code, its constant text, and the descriptors of its fat binaries."""

    code: Span
    text: Span
    descriptors: Span


def layout_of(elf: ElfFile) -> Layout | None:
    """Return the layout of a file; None where it registers no fat binary, or has no table of sections.

    Raises NotElf, OSError.
    """
    spans = [_span(elf.section(name)) for name in (".text", ".rodata", ".nvFatBinSegment")]
    code, text, descriptors = spans
    return Layout(code, text, descriptors) if code and text and descriptors else None


def _span(section: Section | None) -> Span | None:
    """Convert a section to its range of linked addresses; None for None."""
    if section is None:
        return None
    return Span(section.address, section.address + section.size, section.offset)


def initialisers(elf: ElfFile) -> Ints:
    """List the linked addresses of the functions in `.init_array`, which the loader calls; sorted, distinct.

    Raises NotElf, OSError.
    """
    section = elf.section(".init_array")
    if section is None:
        return np.empty(0, dtype=np.int64)
    count = min(section.size // 8, MAX_INITIALISERS)
    values = slot_values(elf, section.address + 8 * np.arange(count, dtype=np.int64))
    return np.unique(values[values > 0])


def slot_values(elf: ElfFile, slots: Ints) -> Ints:
    """Return what the loader writes into each slot: a linked address; 0 for what other files define.

    `slots`: linked addresses of 8 bytes each, sorted; the first MAX_SLOTS of them. What no relocation
    writes is in the file already. Raises NotElf, OSError.
    """
    slots = slots[:MAX_SLOTS]
    values = _content(elf, slots)
    if not len(slots):
        return values
    symbols = _Symbols(elf)
    for piece in _relocations(elf):
        places = piece["place"].astype(np.int64)
        nearest = np.minimum(np.searchsorted(slots, places), len(slots) - 1)
        asked = slots[nearest] == places
        rows, near = piece[asked], nearest[asked]
        relative = rows["kind"] == _RELATIVE[elf.machine]
        values[near[relative]] = rows["addend"][relative]
        named = np.isin(rows["kind"], _OF_SYMBOL[elf.machine])
        if named.any():
            values[near[named]] = symbols.addresses(rows["symbol"][named])
    return values


def _content(elf: ElfFile, slots: Ints) -> Ints:
    """Read the 8 bytes at each slot as a signed integer; 0 past the end of the file.

    `slots`: sorted, in one loaded part. All 0 where the first is in none, or they span more than 8 MB.
    """
    values = np.zeros(len(slots), dtype=np.int64)
    begin = elf.file_offset(int(slots[0])) if len(slots) else None
    if begin is None or int(slots[-1] - slots[0]) > 8 * MAX_SLOTS:
        return values
    data = elf.part(begin, int(slots[-1] - slots[0]) + 8)
    at = slots - slots[0]
    inside = at + 8 <= len(data)
    text = np.frombuffer(data, np.uint8)[at[inside][:, None] + np.arange(8)]
    values[inside] = np.ascontiguousarray(text).view("<i8").reshape(-1)
    return values


def _relocations(elf: ElfFile) -> Iterator[npt.NDArray[np.void]]:
    """Yield the relocations (with addend) of a file, 65,536 at most at a time, _MAX_RELOCATIONS in all."""
    left = _MAX_RELOCATIONS
    for section in elf.sections:
        if section.kind != _RELA:
            continue
        for first in range(0, min(section.size // _RELOCATION.itemsize, left), _PIECE_ROWS):
            data = elf.part(section.offset + first * _RELOCATION.itemsize, _PIECE_ROWS * _RELOCATION.itemsize)
            rows = np.frombuffer(data[: len(data) // _RELOCATION.itemsize * _RELOCATION.itemsize], _RELOCATION)
            left -= len(rows)
            yield rows[: section.size // _RELOCATION.itemsize - first]
            if len(rows) < _PIECE_ROWS:
                break


class _Symbols:
    """The linked addresses of dynamic symbols, read when first needed."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._values: Ints | None = None

    def addresses(self, indexes: npt.NDArray[np.uint32]) -> Ints:
        """Return the linked addresses of dynamic symbols by index; 0 for those that other files define."""
        if self._values is None:
            self._values = self._read()
        values = self._values
        known = indexes < len(values)
        found = np.zeros(len(indexes), dtype=np.int64)
        found[known] = values[indexes[known]]
        return found

    def _read(self) -> Ints:
        """Read the linked address of each dynamic symbol, by index; 0 for those that other files define."""
        tables = self._elf.symbol_sections(DYNSYM)
        if not tables:
            return np.empty(0, dtype=np.int64)
        rows = self._elf.symbols(tables[0], 0, _MAX_SYMBOLS)
        return np.where(rows["section"] != 0, rows["value"], 0).astype(np.int64)
