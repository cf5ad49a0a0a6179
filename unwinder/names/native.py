"""Names for native instruction pointers: which C or C++ function a thread was in below its Python leaf.

In: instruction pointers of a process, its /proc/PID/maps. Out: short names. A name is only given where a symbol of the mapped
file says that its function reaches that far; libraries hide most of their functions, and then the library's own name is the
truth (`libtorch_cpu.so`), the nearest exported neighbour a lie. Pointers into the kernel are 'kernel'.

Symbol tables are read as numpy arrays, a slice at a time and functions only; names when they are wanted. Files are read, not
mapped: whoever cuts a mapped file short kills its reader. Names are demangled by a small parser of our own, to scopes and
name without arguments: they are the target's, and the C++ library's demangler was not made for hostile input.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankscope.probes.elf.reader import DYNSYM, FUNCTION_TYPES, SYMTAB, ElfFile, NotElf, Segment
from rankscope.probes.host import procfs
from rankscope.probes.host.maps import Mapping, open_mapped, read_maps

KERNEL = "kernel"
NAME_CAP = 120
_SYMBOLS_CAP = 2_000_000  # of one table: 48 MB that are looked at a slice at a time
_SLICE = 131_072
_NAME_BYTES = 4096
_FILES = 32


@dataclass(slots=True)
class SymbolTable:
    """The functions of one ELF file, by address as linked."""

    name: str
    segments: tuple[Segment, ...]
    starts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    texts: npt.NDArray[np.uint64]  # where each name begins in the file
    descriptor: int = -1
    _named: dict[int, str] = field(default_factory=dict)

    def names(self, offsets: npt.NDArray[np.uint64]) -> list[str]:
        """The function at each offset in the file; the file's name where none is known to reach there."""
        addresses = np.zeros(len(offsets), dtype=np.uint64)
        for segment in self.segments:
            inside = (offsets >= segment.offset) & (offsets < segment.offset + segment.size)
            addresses[inside] = offsets[inside] - np.uint64(segment.offset) + np.uint64(segment.address)
        if not len(self.starts):
            return [self.name] * len(offsets)
        at = np.searchsorted(self.starts, addresses, side="right").astype(np.int64) - 1
        near = np.maximum(at, 0)
        reaches = (self.sizes[near] == 0) | (addresses - self.starts[near] < self.sizes[near])
        known = (at >= 0) & reaches
        return [self._text(int(i)) if ok else self.name for i, ok in zip(near, known, strict=True)]

    def _text(self, index: int) -> str:
        if index not in self._named:
            raw = _content(self.descriptor, int(self.texts[index]), _NAME_BYTES)
            self._named[index] = readable(raw.partition(b"\0")[0].decode("ascii", "replace")) or self.name
        return self._named[index]

    def close(self) -> None:
        """Let go of the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(slots=True)
class NativeNames:
    """Symbol tables of the files of any number of processes, read when first wanted. Close it."""

    root: Path = procfs.ROOT
    _tables: OrderedDict[tuple[str, int], SymbolTable] = field(default_factory=OrderedDict)

    def names(self, pid: int, pointers: npt.NDArray[np.uint64]) -> dict[int, str]:
        """Instruction pointer -> name; '' where nothing is known (generated code, a process that has ended)."""
        found = {int(pointer): KERNEL for pointer in pointers[pointers >= np.uint64(1 << 63)]}
        wanted = np.unique(pointers[pointers < np.uint64(1 << 63)])
        try:
            mappings = read_maps(pid, self.root) if len(wanted) else ()
        except OSError:
            return found
        ordered = wanted.tolist()
        for mapping in mappings:  # thousands of lines, few of which hold anything
            first, end = bisect_left(ordered, mapping.start), bisect_left(ordered, mapping.end)
            if first < end:
                inside = wanted[first:end]
                table = self._table(pid, mapping)
                offsets = inside - np.uint64(mapping.start) + np.uint64(mapping.offset)
                found.update(zip(inside.tolist(), table.names(offsets), strict=True))
        return found

    def _table(self, pid: int, mapping: Mapping) -> SymbolTable:
        key = (mapping.device, mapping.inode)
        table = self._tables.get(key)
        if table is None:
            table = read_symbols(pid, mapping, self.root)
            self._tables[key] = table
            if len(self._tables) > _FILES:
                self._tables.popitem(last=False)[1].close()
        return table

    def close(self) -> None:
        """Let go of the files."""
        for table in self._tables.values():
            table.close()
        self._tables.clear()


def read_symbols(pid: int, mapping: Mapping, root: Path = procfs.ROOT) -> SymbolTable:
    """The functions of the file behind `mapping`; a table without symbols where it cannot be read. Never raises."""
    name = mapping.path.rpartition("/")[2][:NAME_CAP]
    nothing = np.empty(0, dtype=np.uint64)
    descriptor = -1
    try:
        with open_mapped(pid, mapping, root) as file:
            descriptor = os.dup(file.fileno())
        elf = ElfFile(descriptor, name)
        starts, sizes, texts = _functions(elf)
        return SymbolTable(name, elf.loads, starts, sizes, texts, descriptor)
    except (OSError, NotElf, OverflowError):
        if descriptor >= 0:
            os.close(descriptor)
        return SymbolTable(name, (), nothing, nothing, nothing)


def _content(descriptor: int, at: int, size: int) -> bytes:
    """Up to `size` bytes; fewer, or none, where the file has no more."""
    try:
        return os.pread(descriptor, size, at) if descriptor >= 0 else b""
    except (OSError, OverflowError):
        return b""


_Columns = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]


def _functions(elf: ElfFile) -> _Columns:
    """(address, size, place of the name) of every function, in order of address, the larger first."""
    parts: list[_Columns] = []
    for table in elf.symbol_sections(SYMTAB) or elf.symbol_sections(DYNSYM):  # the former holds the latter
        for first in range(0, min(table.count, _SYMBOLS_CAP), _SLICE):
            rows = elf.symbols(table, first, _SLICE)
            rows = rows[np.isin(rows["info"] & 15, FUNCTION_TYPES) & (rows["section"] != 0) & (rows["value"] != 0)]
            rows = rows[rows["name"] < table.names_size]
            texts = rows["name"].astype(np.uint64) + np.uint64(table.names_offset)
            parts.append((rows["value"].copy(), rows["size"].copy(), texts))
    if not parts:
        nothing = np.empty(0, dtype=np.uint64)
        return nothing, nothing, nothing
    starts, sizes, texts = (np.concatenate([part[i] for part in parts]) for i in range(3))
    order = np.lexsort((sizes, starts))  # of several names for one place the last found is that with a size
    return starts[order], sizes[order], texts[order]


def readable(symbol: str) -> str:
    """A symbol without version, clone suffix, arguments and template arguments: `at::native::add`. Never raises."""
    bare = symbol.partition("@")[0]
    bare = bare.partition(".")[0] or bare
    text = _scopes(bare) if bare.startswith("_Z") else bare
    return "".join(c if c.isprintable() else "?" for c in text[:NAME_CAP])


def _scopes(symbol: str) -> str:
    """Scopes and name of an Itanium C++ symbol; as much as could be parsed, or the symbol itself."""
    at, end = 2, len(symbol)
    while at < end and symbol[at] in "ZL":  # local to a function: that function; static
        at += 1
    special = {"TV": "vtable", "TI": "typeinfo", "GV": "guard"}.get(symbol[at : at + 2])
    if special:
        return special
    if symbol[at : at + 2] in ("Th", "Tv"):  # a thunk: its offsets, then what it leads to
        return _scopes("_Z" + symbol[symbol.find("_", at) + 1 :]) if symbol.find("_", at) > 0 else symbol
    nested = symbol[at : at + 1] == "N"
    at += nested
    parts: list[str] = []
    while at < end:
        letter = symbol[at]
        if letter.isdigit():
            stop = at
            while stop < end and stop - at < 4 and symbol[stop].isdigit():
                stop += 1
            length = int(symbol[at:stop])
            word = symbol[stop : stop + length]
            if not length or len(word) < length:
                break
            parts.append("(anonymous)" if word.startswith("_GLOBAL__N") else word)
            at = stop + length
        elif letter in "KVrLRO" and nested:
            at += 1
            continue
        elif symbol.startswith("St", at):
            parts.append("std")
            at += 2
            continue
        elif letter == "S":
            stop = (
                symbol.find("_", at) if symbol[at + 1 : at + 2].isdigit() or symbol[at + 1 : at + 2] == "_" else at + 1
            )
            at = (stop if stop > 0 else end) + 1
            continue
        elif letter == "I":
            at = _behind_template(symbol, at)
        elif letter in "CD" and symbol[at + 1 : at + 2].isdigit() and parts:
            parts.append(parts[-1] if letter == "C" else "~" + parts[-1])
            at += 2
        elif letter == "E":
            break
        elif letter.islower() and symbol[at + 1 : at + 2].isalpha() and nested:
            parts.append("operator()" if symbol.startswith("cl", at) else "operator")
            break
        else:
            break
        if not nested and symbol[at : at + 1] != "I":
            break
    return "::".join(parts) or symbol


def _behind_template(symbol: str, at: int) -> int:
    """Position behind template arguments; the end where they are not understood."""
    depth, end = 0, len(symbol)
    while at < end:
        letter = symbol[at]
        if letter.isdigit():
            stop = at
            while stop < end and stop - at < 4 and symbol[stop].isdigit():
                stop += 1
            at = stop + int(symbol[at:stop])
            continue
        if (
            letter == "L" and symbol[at + 1 : at + 2] != "_"
        ):  # a literal: its type is a letter or a name, then its value
            inner = at + 1
            while inner < end and not symbol[inner].isdigit() and symbol[inner] not in "EN":
                inner += 1
            if inner == at + 2 or symbol[inner : inner + 1] == "E":
                at = symbol.find("E", inner) + 1 or end
                continue
            depth += 1
        elif letter in "INXJF":
            depth += 1
        elif letter == "E":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return end
