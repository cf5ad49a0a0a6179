"""Symbols of a program or library by name or by prefix, without reading all of it.

libtorch_cpu.so exports 54,000 symbols in 400 MB; asking for a dozen of them by text search in `.dynstr` and one numpy
comparison over `.dynsym` takes milliseconds. C++ names are matched by prefix, because the tail of a mangled name (argument
types) moves between releases while the function stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankscope.probes.elf.reader import DYNSYM, FUNCTION_TYPES, LOAD, SYMTAB, WRITABLE, ElfFile, SymbolRows

_MAX_HITS = 64
_SYMTAB_CAP_BYTES = 256 * 1024 * 1024


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
    """For each name the defined functions of exactly that name. Raises NotElf, OSError."""
    return _find(library, names, whole=True)


def find_addresses(elf: ElfFile, names: Sequence[str]) -> dict[str, int]:
    """The addresses (as linked) of functions and variables of exactly these names; absent where not defined.

    Raises NotElf, OSError.
    """
    found: dict[str, int] = {}
    for kind in (DYNSYM, SYMTAB):
        missing = [name for name in names if name not in found]
        for table in elf.symbol_sections(kind) if missing else ():
            if max(table.names_size, table.count) > _SYMTAB_CAP_BYTES:
                continue
            rows, text = elf.symbols(table), elf.names(table)
            for name in missing:
                values = _called(rows, text, name, whole=True)["value"]
                if len(values):
                    found.setdefault(name, int(values[0]))
    return found


def file_offsets(library: Path, addresses: Iterable[int]) -> tuple[int, ...]:
    """Where in the file these addresses (as linked) are; those in no loaded part are left out. Raises NotElf, OSError."""
    with library.open("rb") as file:
        elf = ElfFile(file.fileno(), library.name)
        found = [elf.file_offset(address) for address in addresses]
    return tuple(offset for offset in found if offset is not None)


def written_parts(library: Path) -> tuple[tuple[int, int], ...]:
    """(begin, end) in the file of what a process maps writable, in whole pages. Raises NotElf, OSError."""
    page = os.sysconf("SC_PAGESIZE")
    with library.open("rb") as file:
        segments = ElfFile(file.fileno(), library.name).segments
    return tuple(
        (one.offset // page * page, -(-(one.offset + one.size) // page) * page)
        for one in segments
        if one.kind == LOAD and one.flags & WRITABLE
    )


def _find(library: Path, wanted: Sequence[str], whole: bool) -> dict[str, tuple[Symbol, ...]]:
    found: dict[str, list[Symbol]] = {name: [] for name in wanted}
    with library.open("rb") as file:
        elf = ElfFile(file.fileno(), library.name)
        for kind in (DYNSYM, SYMTAB):
            missing = [name for name in wanted if not found[name]]
            for table in elf.symbol_sections(kind) if missing else ():
                rows, text = elf.symbols(table), elf.names(table)
                for name in missing:
                    found[name] += _functions(elf, _called(rows, text, name, whole), text)
    return {name: tuple(symbols) for name, symbols in found.items()}


def _called(rows: SymbolRows, text: bytes, name: str, whole: bool) -> SymbolRows:
    """The defined symbols of that name, or whose names begin with it.

    Linkers keep a name that is the tail of another one inside it (ncclSend in pncclSend, MPI_Send in PMPI_Send): so a whole
    name is looked for anywhere in the names, and the symbols say where names begin.
    """
    needle, begin = (name.encode() + b"\0", 0) if whole else (b"\0" + name.encode(), 1)
    hits: list[int] = []
    at = -1
    while len(hits) < _MAX_HITS and (at := text.find(needle, at + 1)) >= 0:
        hits.append(at + begin)
    if not hits:
        return rows[:0]
    chosen: SymbolRows = rows[
        np.isin(rows["name"], np.array(hits, dtype=np.uint32)) & (rows["value"] != 0) & (rows["section"] != 0)
    ]
    return chosen


def _functions(elf: ElfFile, rows: SymbolRows, text: bytes) -> list[Symbol]:
    symbols = []
    for row in rows:
        address, start = int(row["value"]), int(row["name"])
        offset = elf.file_offset(address)
        if int(row["info"]) & 15 in FUNCTION_TYPES and offset is not None:
            name = text[start : text.find(b"\0", start)].decode("ascii", "replace")
            symbols.append(Symbol(name, address, offset, int(row["size"])))
    return symbols
