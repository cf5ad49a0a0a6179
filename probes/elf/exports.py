"""Exported functions of a shared library by name or by prefix, without reading all of it.

libtorch_cpu.so exports 54,000 symbols in 400 MB; asking for a dozen of them by text search in `.dynstr` and one numpy
comparison over `.dynsym` takes milliseconds. C++ names are matched by prefix, because the tail of a mangled name (argument
types) moves between releases while the function stays. Format: ELF-64, System V ABI.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankscope.probes.errors import RankscopeError

_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_DYNSYM, _SYMTAB = 11, 2
_FUNC, _IFUNC = 2, 10
LOAD, _WRITABLE = 1, 2  # p_type, p_flags
_MAX_HITS = 64
_MAX_PART_BYTES = 1 << 30


class NotElf(RankscopeError):
    """The file is not a 64-bit little-endian ELF file with a symbol table."""

    help = "Only x86-64 and aarch64 libraries can be probed."


@dataclass(frozen=True, slots=True)
class Symbol:
    """A defined function: `offset` is its position in the file, which is what a uprobe is attached to."""

    name: str
    address: int
    offset: int
    size: int


def find_functions(library: Path, prefixes: Sequence[str]) -> dict[str, tuple[Symbol, ...]]:
    """For each prefix the defined functions whose name starts with it (an exact name is the prefix of itself).

    Raises NotElf, OSError.
    """
    return _find(library, prefixes, whole=False)


def find_names(library: Path, names: Sequence[str]) -> dict[str, tuple[Symbol, ...]]:
    """For each name the defined functions of exactly that name. Raises NotElf, OSError.

    Linkers keep a name that is the tail of another one inside it (ncclSend in pncclSend, MPI_Send in PMPI_Send): so a name
    is looked for anywhere in the string table, and the symbols say where names begin.
    """
    return _find(library, names, whole=True)


def file_offsets(library: Path, addresses: Iterable[int]) -> tuple[int, ...]:
    """Where in the file these addresses (as linked) are; those in no loaded part are left out. Raises NotElf, OSError."""
    with library.open("rb") as file:
        try:
            loads = _loads(Reader(file.fileno()), library)
        except (struct.error, ValueError) as error:
            raise NotElf(f"{library.name} has a broken program header") from error
    return tuple(
        address - vaddr + offset
        for address in addresses
        for vaddr, offset, size in loads
        if vaddr <= address < vaddr + size
    )


def written_parts(library: Path) -> tuple[tuple[int, int], ...]:
    """(begin, end) in the file of what a process maps writable, in whole pages. Raises NotElf, OSError."""
    page = os.sysconf("SC_PAGESIZE")
    with library.open("rb") as file:
        try:
            found = segments(Reader(file.fileno()), library)
        except (struct.error, ValueError) as error:
            raise NotElf(f"{library.name} has a broken program header") from error
    return tuple(
        (offset // page * page, -(-(offset + size) // page) * page)
        for kind, flags, offset, _, size in found
        if kind == LOAD and flags & _WRITABLE
    )


def _find(library: Path, wanted: Sequence[str], whole: bool) -> dict[str, tuple[Symbol, ...]]:
    with library.open("rb") as file:
        try:
            return _search(Reader(file.fileno()), library, wanted, whole)
        except (struct.error, IndexError, ValueError) as error:
            raise NotElf(f"{library.name} has a broken symbol table") from error


class Reader:
    """Parts of a file by pread: a mapped file that its owner truncates would kill its reader."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def part(self, at: int, size: int) -> bytes:
        """`size` bytes from `at` on, fewer where the file ends. ValueError for what no file can have."""
        if not 0 <= size <= _MAX_PART_BYTES or not 0 <= at < 1 << 62:
            raise ValueError("absurd size")
        return os.pread(self._descriptor, size, at)


def _search(file: Reader, library: Path, prefixes: Sequence[str], whole: bool) -> dict[str, tuple[Symbol, ...]]:
    head = _header(file, library)
    (section_at,) = struct.unpack_from("<Q", head, 40)
    section_size, section_count = struct.unpack_from("<HH", head, 58)
    table = file.part(section_at, section_size * section_count)
    sections = [struct.unpack_from("<IIQQQQIIQQ", table, i * section_size) for i in range(section_count)]
    loads = _loads(file, library)
    found: dict[str, list[Symbol]] = {prefix: [] for prefix in prefixes}
    for wanted in (_DYNSYM, _SYMTAB):
        missing = [prefix for prefix in prefixes if not found[prefix]]
        for section in sections:
            if section[1] != wanted or not missing:
                continue
            symbols = np.frombuffer(file.part(section[4], section[5]), _SYMBOL)
            text = sections[section[6]]
            names = file.part(text[4], text[5])
            for prefix in missing:
                needle = prefix.encode() + b"\0" if whole else b"\0" + prefix.encode()
                found[prefix].extend(_matches(symbols, names, needle, 0 if whole else 1, loads))
    return {prefix: tuple(symbols) for prefix, symbols in found.items()}


def _header(file: Reader, library: Path) -> bytes:
    head = file.part(0, 64)
    if head[:6] != b"\x7fELF\x02\x01":
        raise NotElf(f"{library.name} is not a 64-bit little-endian ELF file")
    return head


def _loads(file: Reader, library: Path) -> list[tuple[int, int, int]]:
    """(address, file offset, size in the file) of what is loaded."""
    return [(vaddr, offset, size) for kind, _, offset, vaddr, size in segments(file, library) if kind == LOAD]


def segments(file: Reader, library: Path) -> list[tuple[int, int, int, int, int]]:
    """(type, flags, file offset, address, size in the file) of every program header. Raises NotElf, struct.error, ValueError."""
    head = _header(file, library)
    (program_at,) = struct.unpack_from("<Q", head, 32)
    program_size, program_count = struct.unpack_from("<HH", head, 54)
    table = file.part(program_at, program_size * program_count)
    return [struct.unpack_from("<IIQQ8xQ", table, i * program_size) for i in range(program_count)]


def _matches(
    table: np.ndarray[tuple[int], np.dtype[np.void]],
    names: bytes,
    needle: bytes,
    begin: int,
    loads: list[tuple[int, int, int]],
) -> list[Symbol]:
    at = -1
    hits: list[int] = []
    while len(hits) < _MAX_HITS and (at := names.find(needle, at + 1)) >= 0:
        hits.append(at + begin)
    rows = table[np.isin(table["name"], np.array(hits, dtype=np.uint32)) & (table["value"] != 0)]
    symbols = []
    for row in rows:
        if int(row["info"]) & 15 not in (_FUNC, _IFUNC) or int(row["section"]) == 0:
            continue
        address, start = int(row["value"]), int(row["name"])
        for vaddr, offset, file_size in loads:
            if vaddr <= address < vaddr + file_size:
                name = names[start : names.index(b"\0", start)].decode("ascii", "replace")
                symbols.append(Symbol(name, address, address - vaddr + offset, int(row["size"])))
                break
    return symbols
