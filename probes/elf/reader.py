"""The one reader of ELF files: header, segments, sections, symbol tables.

In: a file by position (FileBytes). Out: numbers and numpy rows. Only requested parts are read
(libtorch_cpu.so has 400 MB), and by pread: a mapped file that its owner truncates would kill its
reader. pyelftools trusts every length in the file; these files are the target's, so here every
length is capped and every offset may be invalid: then NotElf is raised. Format: ELF-64, System V
ABI.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rankscope.probes.base.errors import RankscopeError

LOAD, GNU_EH_FRAME = 1, 0x6474E550  # p_type
WRITABLE = 2  # p_flags
SYMTAB, DYNSYM = 2, 11  # sh_type; the first holds all symbols and is often stripped, the second those that are exported
FUNCTION_TYPES = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
X86_64, AARCH64 = 62, 183  # e_machine
_ET_DYN = 3
_MAX_PART_BYTES = 64 << 20  # per read; the largest table read whole has 18 MB (functions.py)
_MAX_NAMES_BYTES = 1 << 20  # of the section names
# Linkers write a handful of loaded parts and one symbol table of a kind, but a header can declare
# 65,535. Every address is searched in all parts, and every name in all tables.
MAX_LOADS, MAX_TABLES = 256, 4

_HEADER = struct.Struct("<16sHH12xQQ6xHHHHH")
_SEGMENT = struct.Struct("<IIQQ8xQ16x")
_SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
SymbolRows = npt.NDArray[np.void]  # of dtype SYMBOL


class FileBytes(Protocol):
    """Read access to a file by position: a target's (probes/mapped) or our own (local.py)."""

    @property
    def name(self) -> str:
        """The file's name without folders, for messages."""
        ...

    @property
    def path(self) -> Path:
        """The path for attaching uprobes."""
        ...

    @property
    def identity(self) -> tuple[int, ...]:
        """A key that changes when the file does."""
        ...

    def pread(self, size: int, at: int) -> bytes:
        """Read up to `size` bytes from `at` on, fewer where the file ends. Raises OSError."""
        ...


class NotElf(RankscopeError):
    """The file is not a valid 64-bit little-endian ELF file."""

    help = "Only x86-64 and aarch64 programs and libraries can be read."


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header: `size` bytes of the file, linked at `address`."""

    offset: int
    address: int
    size: int
    kind: int = LOAD
    flags: int = 0

    def holds(self, address: int) -> bool:
        """Tell whether a linked address lies in the part of the segment that the file has."""
        return self.address <= address < self.address + self.size


@dataclass(frozen=True, slots=True)
class Section:
    """A section header. `link` is the index of the associated section: for a symbol table, its
    names.
    """

    name_at: int
    kind: int
    address: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class SymbolSection:
    """File offsets and sizes of a symbol table and of its names."""

    offset: int
    count: int
    names_offset: int
    names_size: int


class ElfFile:
    """A parsed ELF file; the caller closes the file itself. All methods may raise NotElf and
    OSError.
    """

    def __init__(self, file: FileBytes) -> None:
        self._file, self.name = file, file.name
        name = self.name
        head = self.part(0, _HEADER.size)
        if len(head) < _HEADER.size or head[:6] != b"\x7fELF\x02\x01":
            raise NotElf(f"{name} is not a 64-bit little-endian ELF file")
        (
            _, kind, self.machine, self._segments_at, self._sections_at, self._segment_bytes, self._segment_count,
            self._section_bytes, self._section_count, self._names_index,
        ) = _HEADER.unpack(head)  # fmt: skip
        self.position_independent = kind == _ET_DYN

    def part(self, at: int, size: int) -> bytes:
        """Read `size` bytes from `at` on, fewer where the file ends."""
        if not 0 <= size <= _MAX_PART_BYTES or not 0 <= at < 1 << 62:
            raise NotElf(f"{self.name} has a part of impossible size or offset")
        return self._file.pread(size, at)

    def whole(self, at: int, size: int) -> bytes:
        """Read exactly `size` bytes from `at` on."""
        data = self.part(at, size)
        if len(data) < size:
            raise NotElf(f"{self.name} ends too early")
        return data

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """All program headers."""
        if self._segment_count and self._segment_bytes != _SEGMENT.size:
            raise NotElf(f"{self.name} has a broken program header")
        table = self.whole(self._segments_at, self._segment_bytes * self._segment_count)
        return tuple(
            Segment(offset, address, size, kind, flags)
            for kind, flags, offset, address, size in _SEGMENT.iter_unpack(table)
        )

    @cached_property
    def loads(self) -> tuple[Segment, ...]:
        """The loaded segments."""
        found = tuple(segment for segment in self.segments if segment.kind == LOAD)
        if len(found) > MAX_LOADS:
            raise NotElf(f"{self.name} has {len(found)} loaded parts; {MAX_LOADS} are looked into")
        return found

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """All section headers; none where they were stripped."""
        if self._section_count and self._section_bytes != _SECTION.size:
            raise NotElf(f"{self.name} has a broken section header")
        table = self.whole(self._sections_at, self._section_bytes * self._section_count)
        return tuple(
            Section(name, kind, address, offset, size, link)
            for name, kind, _, address, offset, size, link, _, _, _ in _SECTION.iter_unpack(table)
        )

    def section(self, name: str) -> Section | None:
        """Return the first section of that name; None where there is none, or names were stripped."""
        if self._names_index >= len(self.sections):
            return None
        names = self.sections[self._names_index]
        text = self.part(names.offset, min(names.size, _MAX_NAMES_BYTES))
        wanted = name.encode() + b"\0"
        return next((one for one in self.sections if text.startswith(wanted, one.name_at)), None)

    def file_offset(self, address: int) -> int | None:
        """Convert a linked address to a file offset; None where it is in no loaded part."""
        return next((address - one.address + one.offset for one in self.loads if one.holds(address)), None)

    def linked_address(self, offset: int) -> int | None:
        """Convert a file offset to a linked address; None where it is in no loaded part."""
        return next(
            (offset - one.offset + one.address for one in self.loads if one.offset <= offset < one.offset + one.size),
            None,
        )

    def symbol_sections(self, kind: int) -> tuple[SymbolSection, ...]:
        """List the symbol tables of this kind, SYMTAB or DYNSYM."""
        found = []
        for section in self.sections:
            if section.kind == kind:
                if section.link >= len(self.sections):
                    raise NotElf(f"{self.name} has a broken symbol table")
                names = self.sections[section.link]
                found.append(SymbolSection(section.offset, section.size // SYMBOL.itemsize, names.offset, names.size))
        if len(found) > MAX_TABLES:
            raise NotElf(f"{self.name} has {len(found)} symbol tables of a kind; {MAX_TABLES} are looked into")
        return tuple(found)

    def symbols(self, table: SymbolSection, first: int = 0, count: int | None = None) -> SymbolRows:
        """Read `count` rows of a symbol table (None: all) from row `first` on; fewer where the table or file ends."""
        count = table.count - first if count is None else min(count, table.count - first)
        content = self.part(table.offset + first * SYMBOL.itemsize, count * SYMBOL.itemsize)
        rows: SymbolRows = np.frombuffer(content[: len(content) // SYMBOL.itemsize * SYMBOL.itemsize], SYMBOL)
        return rows

    def names(self, table: SymbolSection) -> bytes:
        """Read all names of a symbol table, each ended by a zero byte; a row's `name` is an offset
        into them.
        """
        return self.part(table.names_offset, table.names_size)
