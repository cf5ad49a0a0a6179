"""Find symbols of a program or library by name or by prefix, without reading all of it.

libtorch_cpu.so exports 54,000 symbols in 400 MB; finding a dozen of them by text search in
`.dynstr` and one numpy comparison over `.dynsym` takes milliseconds. What is not exported is looked
for in `.symtab`, piece by piece: in jaxlib's 740,000 symbols with 90 MB of names that takes a
quarter of a second and 30 MB. C++ names are matched by prefix, because the tail of a mangled name
(argument types) changes between releases while the function stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.probes.elf.reader import (
    DYNSYM,
    FUNCTION_TYPES,
    SYMBOL,
    SYMTAB,
    WRITABLE,
    ElfFile,
    FileBytes,
    NotElf,
    SymbolRows,
    SymbolSection,
)

_MAX_HITS = 64  # per name and table: positions where it may begin, and functions of it
_MAX_ROWS = 1 << 16  # symbols of all requested names (some dozens) in one table
_MAX_NAME_BYTES = 65536  # of one C++ name; templates make long ones
_PARTS = (
    ".cold",
    ".part.",
)  # GCC's local names for pieces cut out of a function, which it jumps into or calls
_PIECE_BYTES = 4 << 20  # bytes of names searched at once
_PIECE_SYMBOLS = 1 << 16
_SYMTAB_CAP_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Symbol:
    """A defined function: `offset` is its position in the file, to which a uprobe is attached."""

    name: str
    address: int
    offset: int
    size: int


def find_functions(library: FileBytes, prefixes: Sequence[str]) -> dict[str, tuple[Symbol, ...]]:
    """Find for each prefix the defined functions whose names start with it.

    Raises NotElf, OSError.
    """
    return _find(library, prefixes, whole=False)


def find_names(library: FileBytes, names: Sequence[str]) -> dict[str, tuple[Symbol, ...]]:
    """Find for each name the defined functions of exactly that name. Raises NotElf, OSError."""
    return _find(library, names, whole=True)


def find_addresses(elf: ElfFile, names: Sequence[str]) -> dict[str, int]:
    """Find the linked addresses of functions and variables of exactly these names; undefined ones
    are left out.

    Raises NotElf, OSError.
    """
    found: dict[str, int] = {}
    for kind in (DYNSYM, SYMTAB):
        missing = [name for name in names if name not in found]
        for table in elf.symbol_sections(kind) if missing else ():
            if max(table.names_size, table.count) > _SYMTAB_CAP_BYTES:
                continue
            for name, rows in _called(elf, table, missing, whole=True).items():
                if len(rows):
                    found.setdefault(name, int(rows["value"][0]))
    return found


def file_offsets(library: FileBytes, addresses: Iterable[int]) -> tuple[int, ...]:
    """Convert linked addresses to file offsets; those in no loaded part are left out. Raises
    NotElf, OSError.
    """
    elf = ElfFile(library)
    found = [elf.file_offset(address) for address in addresses]
    return tuple(offset for offset in found if offset is not None)


def written_parts(library: FileBytes) -> tuple[tuple[int, int], ...]:
    """List (begin, end) file offsets of what a process maps writable, in whole pages. Raises
    NotElf, OSError.
    """
    page = os.sysconf("SC_PAGESIZE")
    return tuple(
        (one.offset // page * page, -(-(one.offset + one.size) // page) * page)
        for one in ElfFile(library).loads
        if one.flags & WRITABLE
    )


def _find(library: FileBytes, wanted: Sequence[str], whole: bool) -> dict[str, tuple[Symbol, ...]]:
    """Find the functions of these names (`whole`), or whose names begin with them; each has an entry.

    What the exported symbols lack is searched in all symbols. Raises NotElf, OSError.
    """
    found: dict[str, list[Symbol]] = {name: [] for name in wanted}
    if not found:
        return {}
    elf = ElfFile(library)
    for kind in (DYNSYM, SYMTAB):
        missing = [name for name in found if not found[name]]
        for table in elf.symbol_sections(kind) if missing else ():
            for name, rows in _called(elf, table, missing, whole).items():
                found[name] += _functions(elf, table, rows)
    return {name: tuple(symbols) for name, symbols in found.items()}


def _called(elf: ElfFile, table: SymbolSection, names: Sequence[str], whole: bool) -> dict[str, SymbolRows]:
    """Read the defined symbols of these names (`whole`), or whose names begin with them.

    Linkers store a name that is the tail of another one inside it (ncclSend in pncclSend, MPI_Send
    in PMPI_Send): so a whole name is searched anywhere in the names, and the symbols say where
    names begin.
    """
    places = _places(elf, table, names, whole)
    wanted = np.unique(np.array([place for found in places.values() for place in found], dtype=np.uint32))
    rows = _rows_named(elf, table, wanted)
    return {name: rows[np.isin(rows["name"], np.array(found, dtype=np.uint32))] for name, found in places.items()}


def _places(elf: ElfFile, table: SymbolSection, names: Sequence[str], whole: bool) -> dict[str, list[int]]:
    """Search a symbol table's names for offsets where each of `names` may begin, at most `_MAX_HITS` of each.

    `whole`: it must end there too. The names are read piece by piece: XLA has 90 MB of them.
    """
    needles = {name: name.encode() + b"\0" if whole else b"\0" + name.encode() for name in names}
    places: dict[str, list[int]] = {name: [] for name in names}
    overlap = max((len(needle) for needle in needles.values()), default=1) - 1
    for at in range(0, table.names_size, _PIECE_BYTES):
        piece = elf.part(table.names_offset + at, min(_PIECE_BYTES + overlap, table.names_size - at))
        if not piece:
            break
        for name, needle in needles.items():
            hit = piece.find(needle)
            while 0 <= hit < _PIECE_BYTES and len(places[name]) < _MAX_HITS:
                places[name].append(at + hit + (0 if whole else 1))
                hit = piece.find(needle, hit + 1)
    return places


def _rows_named(elf: ElfFile, table: SymbolSection, places: npt.NDArray[np.uint32]) -> SymbolRows:
    """Read the defined symbols whose names begin at one of these sorted positions."""
    chosen, count = [np.empty(0, dtype=SYMBOL)], 0
    for first in range(0, table.count if len(places) else 0, _PIECE_SYMBOLS):
        rows = elf.symbols(table, first, _PIECE_SYMBOLS)
        if not len(rows):
            break
        near = np.minimum(np.searchsorted(places, rows["name"]), len(places) - 1)
        chosen.append(rows[(places[near] == rows["name"]) & (rows["value"] != 0) & (rows["section"] != 0)])
        count += len(chosen[-1])
        if count > _MAX_ROWS:
            raise NotElf(f"{elf.name} has more than {_MAX_ROWS} symbols of a few names")
    found: SymbolRows = np.concatenate(chosen)
    return found


def _functions(elf: ElfFile, table: SymbolSection, rows: SymbolRows) -> list[Symbol]:
    """Convert symbol rows to functions, at most `_MAX_HITS`, with names and file offsets.

    Left out: variables, addresses in no loaded part, pieces that the compiler cut out of a function. Raises
    NotElf, OSError.
    """
    symbols: list[Symbol] = []
    for row in rows[np.isin(rows["info"] & 15, FUNCTION_TYPES)][:_MAX_HITS]:
        address, start = int(row["value"]), int(row["name"])
        offset = elf.file_offset(address)
        if offset is not None:
            text = elf.part(table.names_offset + start, min(_MAX_NAME_BYTES, max(table.names_size - start, 0)))
            name = text.partition(b"\0")[0].decode("ascii", "replace")
            if not any(part in name for part in _PARTS):
                symbols.append(Symbol(name, address, offset, int(row["size"])))
    return symbols
