"""Names for native instruction pointers: the C or C++ function that a thread was in below its Python leaf.

In: instruction pointers of a process, its /proc/PID/maps. Out: short names. A symbol's name is only
given where its function reaches as far as the pointer. Libraries hide most of their functions: then
the library's own name is given (`libtorch_cpu.so`), since the nearest exported neighbour would be
wrong. Pointers into the kernel are 'kernel'.

Symbol tables are read as numpy arrays, a slice at a time and functions only; names when they are
wanted. Files are read, not mapped: truncating a mapped file kills its reader.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankscope.probes.elf.reader import DYNSYM, FUNCTION_TYPES, SYMBOL, SYMTAB, ElfFile, NotElf, Segment
from rankscope.probes.host import procfs
from rankscope.probes.host.fair import Fair, whose
from rankscope.probes.host.maps import Mapping, read_maps
from rankscope.probes.mapped.file import MappedFile, open_mapped
from rankscope.probes.mapped.reader import FileNotRead
from rankscope.unwinder.names.demangle import NAME_CAP, readable

KERNEL = "kernel"
_SYMBOLS_CAP = 2_000_000  # of one file: 48 MB, read a slice at a time
_TABLES_BYTES = 128 << 20  # of all files together; jaxlib, the largest known, takes 18 MB
# Symbols to search, at 5,000,000 a second: for all processes together, and after that for each
# user. A host with ten containers, each with a torch of its own, has 20,000,000. Opening a file
# takes as long as searching some thousands.
_FREELY, _EACH, _PER_FILE = 32_000_000, 4_000_000, 5_000
_SLICE = 131_072
_NAME_BYTES = 4096
_FILES = 32


@dataclass(slots=True)
class SymbolTable:
    """The functions of one ELF file, by linked address."""

    name: str
    segments: tuple[Segment, ...]
    starts: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    texts: npt.NDArray[np.uint64]  # offset of each name in the file
    file: MappedFile | None = None
    rows: int = 0  # symbols read, and headers in units of symbols
    _named: dict[int, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of memory used, without the names resolved so far."""
        return self.starts.nbytes + self.sizes.nbytes + self.texts.nbytes

    def names(self, offsets: npt.NDArray[np.uint64]) -> list[str]:
        """Name the function at each file offset (demangled); the file's name where no symbol reaches there."""
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
        """Return the demangled name of the function at `index` of `starts`; the file's name if it is empty."""
        if index not in self._named:
            raw = _content(self.file, int(self.texts[index]), _NAME_BYTES)
            self._named[index] = readable(raw.partition(b"\0")[0].decode("ascii", "replace")) or self.name
        return self._named[index]

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()
            self.file = None


@dataclass(slots=True)
class NativeNames:
    """Symbol tables of the files of any number of processes, read when first needed. Close it.

    Once all processes together have used the shared budget, a user who used up its own gets library
    names only for further files.
    """

    root: Path = procfs.ROOT
    _tables: OrderedDict[tuple[str, int], SymbolTable] = field(default_factory=OrderedDict)
    _fair: Fair = field(default_factory=lambda: Fair(_FREELY, _EACH))

    def names(self, pid: int, pointers: npt.NDArray[np.uint64]) -> dict[int, str]:
        """Map a process's instruction pointers to function names; the file's name where no function is known.

        Pointers into the kernel are 'kernel'. Generated code, and all but the kernel of an ended process, are
        left out.
        """
        return self.placed(pid, pointers)[0]

    def placed(self, pid: int, pointers: npt.NDArray[np.uint64]) -> tuple[dict[int, str], dict[int, str]]:
        """Map a process's instruction pointers to function names, and to the names of the files mapped there.

        Where no function is known in a file, the function name is the file's name. Pointers into the kernel
        are named 'kernel' and have no file; generated code, vdso and an ended process have neither.
        """
        found = {int(pointer): KERNEL for pointer in pointers[pointers >= np.uint64(1 << 63)]}
        files: dict[int, str] = {}
        wanted = np.unique(pointers[pointers < np.uint64(1 << 63)])
        try:
            mappings = read_maps(pid, self.root) if len(wanted) else ()
        except OSError:
            return found, files
        ordered = wanted.tolist()
        for mapping in mappings:  # thousands of lines, few of which hold any of the pointers
            first, end = bisect_left(ordered, mapping.start), bisect_left(ordered, mapping.end)
            if first < end:
                inside, table = ordered[first:end], self._table(pid, mapping)
                offsets = wanted[first:end] - np.uint64(mapping.start) + np.uint64(mapping.offset)
                found.update(zip(inside, table.names(offsets), strict=True))
                files.update(dict.fromkeys(inside, table.name))
        return found, files

    def _table(self, pid: int, mapping: Mapping) -> SymbolTable:
        """Return the symbols of a mapped file, read if they are not cached.

        Without symbols, and not cached, where the user's share is used up or the file cannot be opened. The
        least recently used files are dropped where there are too many.
        """
        key = (mapping.device, mapping.inode)
        table = self._tables.get(key)
        if table is not None:
            self._tables.move_to_end(key)
            return table
        user = partial(whose, pid, self.root)
        if self._fair.left(user) <= 0:
            return _nameless(mapping)  # not cached: the same file may be another user's too
        try:
            table = read_symbols(pid, mapping, self.root)
        except FileNotRead:
            self._fair.spend(_PER_FILE, user)
            return _nameless(mapping)  # the process has ended, say: not cached either
        self._tables[key] = table
        self._fair.spend(_PER_FILE + table.rows, user)
        while len(self._tables) > _FILES or (len(self._tables) > 1 and self._bytes() > _TABLES_BYTES):
            self._tables.popitem(last=False)[1].close()
        return table

    def _bytes(self) -> int:
        """Bytes of memory that the tables of all files take."""
        return sum(table.nbytes for table in self._tables.values())

    def close(self) -> None:
        """Close the files."""
        for table in self._tables.values():
            table.close()
        self._tables.clear()


def read_symbols(pid: int, mapping: Mapping, root: Path = procfs.ROOT) -> SymbolTable:
    """Read the functions of the file behind `mapping`; a table without symbols where it is malformed.

    FileNotRead where the process's file cannot be opened. The symbols read count in `rows` either way:
    a file may break at its end.
    """
    try:
        file = open_mapped(pid, mapping, root)
    except OverflowError:
        return _nameless(mapping)
    try:
        elf = ElfFile(file)
        (starts, sizes, texts), _ = function_columns(elf)
        return SymbolTable(_name(mapping), elf.loads, starts, sizes, texts, file, _looked(file))
    except (OSError, NotElf, OverflowError):
        file.close()
        return _nameless(mapping, _looked(file))


def _looked(file: MappedFile) -> int:
    """Convert the bytes read from a file so far to a number of symbols of that size; reads nothing.

    Headers count too: a file may have tens of thousands.
    """
    return file.read_bytes // SYMBOL.itemsize


def _name(mapping: Mapping) -> str:
    """Return the file name of a mapping without folders, not escaped, cut to NAME_CAP characters."""
    return mapping.path.rpartition("/")[2][:NAME_CAP]


def _nameless(mapping: Mapping, rows: int = 0) -> SymbolTable:
    """Return a table without symbols, which names every pointer by the mapping's file; `rows`: symbols read."""
    nothing = np.empty(0, dtype=np.uint64)
    return SymbolTable(_name(mapping), (), nothing, nothing, nothing, rows=rows)


def _content(file: MappedFile | None, at: int, size: int) -> bytes:
    """Read up to `size` bytes from `at` on; fewer, or none, where the file has no more or is closed."""
    try:
        return file.pread(size, at) if file is not None else b""
    except (OSError, OverflowError):
        return b""


Columns = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]


def function_columns(elf: ElfFile) -> tuple[Columns, int]:
    """Read the address, size and name offset of every function, and the number of symbols searched.

    Ordered by address; of several at one address the one with the largest size is last. Raises
    NotElf, OSError, OverflowError.
    """
    parts: list[Columns] = []
    looked = 0
    for table in elf.symbol_sections(SYMTAB) or elf.symbol_sections(DYNSYM):  # the former holds the latter
        for first in range(0, min(table.count, _SYMBOLS_CAP - looked), _SLICE):
            rows = elf.symbols(table, first, min(_SLICE, _SYMBOLS_CAP - looked))
            if not len(rows):
                break
            looked += len(rows)
            rows = rows[np.isin(rows["info"] & 15, FUNCTION_TYPES) & (rows["section"] != 0) & (rows["value"] != 0)]
            rows = rows[rows["name"] < table.names_size]
            texts = rows["name"].astype(np.uint64) + np.uint64(table.names_offset)
            parts.append((rows["value"].copy(), rows["size"].copy(), texts))
    if not parts:
        nothing = np.empty(0, dtype=np.uint64)
        return (nothing, nothing, nothing), looked
    starts, sizes, texts = (np.concatenate([part[i] for part in parts]) for i in range(3))
    # a search finds the last of several at one address: the one with a size
    order = np.lexsort((sizes, starts))
    return (starts[order], sizes[order], texts[order]), looked
