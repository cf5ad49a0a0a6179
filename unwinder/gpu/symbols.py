"""Find the kernels of a file by symbols: host functions that have a kernel's own name.

For files whose registering code is not understood, if they were not stripped of their symbols. A
kernel in an anonymous namespace has another name on the host, so the registering code comes first
(registered.py).

In: an ELF file and the kernels that its fat binaries define. Out: `Stubs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np

from rankscope.probes.elf.reader import DYNSYM, FUNCTION_TYPES, SYMTAB, ElfFile, SymbolSection
from rankscope.unwinder.gpu.registered import NO_STUBS, Stubs

_MAX_SYMBOLS = 2_000_000
_MAX_NAMES_BYTES = 64 << 20
_MAX_COMPARED_BYTES = 256 << 20  # names of symbols may overlap
_PIECE_ROWS = 1 << 16


def kernels_by_symbol(elf: ElfFile, defined: Set[str]) -> Stubs:
    """Find the functions whose symbol is the name of a kernel in `defined` (mangled). Raises NotElf, OSError."""
    wanted = {name.encode("ascii", "replace") for name in defined}
    found: dict[int, int] = {}
    for table in elf.symbol_sections(SYMTAB) or elf.symbol_sections(DYNSYM):
        if wanted and table.names_size <= _MAX_NAMES_BYTES:
            found.update(_called(elf, table, wanted))
    if not found:
        return NO_STUBS
    both = np.array(sorted(found.items()), dtype=np.int64)
    return Stubs(both[:, 0], both[:, 1])


def _called(elf: ElfFile, table: SymbolSection, wanted: Set[bytes]) -> Iterator[tuple[int, int]]:
    """Yield (linked address, file offset of the name) of each function whose name is in `wanted`."""
    text, left_bytes = elf.names(table), _MAX_COMPARED_BYTES
    longest = max(len(name) for name in wanted)
    for first in range(0, min(table.count, _MAX_SYMBOLS), _PIECE_ROWS):
        rows = elf.symbols(table, first, _PIECE_ROWS)
        if not len(rows) or left_bytes <= 0:
            return
        rows = rows[np.isin(rows["info"] & 15, FUNCTION_TYPES) & (rows["section"] != 0) & (rows["value"] != 0)]
        rows = rows[rows["value"] < 1 << 62]
        for address, begin in zip(rows["value"].tolist(), rows["name"].tolist(), strict=True):
            end = text.find(b"\0", begin, begin + longest + 1)
            left_bytes -= longest if end < 0 else end - begin
            if end >= 0 and left_bytes > 0 and text[begin:end] in wanted:
                yield address, table.names_offset + begin
