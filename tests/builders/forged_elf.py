"""ELF files that no linker writes: with any number of loaded parts, of symbol tables, of symbols of one name."""

from __future__ import annotations

import numpy as np

from rankscope.probes.elf.reader import SYMBOL, SYMTAB

ADDRESS, SPAN = 0x1000_0000, 0x1000  # of the loaded parts: one after another
_EXECUTABLE = 5


def forged(loads: int = 1, tables: int = 1, rows: int = 1, name: str = "rs_wanted") -> bytes:
    """`tables` symbol tables, which are one place in the file, of `rows` functions of one name, all in the last loaded part."""
    names = b"\0" + name.encode() + b"\0"
    symbols = np.zeros(rows, dtype=SYMBOL)
    symbols["name"], symbols["info"], symbols["section"], symbols["size"] = 1, 2, 1, 16
    symbols["value"] = ADDRESS + SPAN * (loads - 1) + np.arange(rows) % SPAN
    segments_at = 64
    sections_at = segments_at + 56 * loads
    names_at = sections_at + 64 * (tables + 2)
    symbols_at = names_at + len(names)
    number = int.to_bytes

    def words(*pairs: tuple[int, int]) -> bytes:
        return b"".join(number(value, size, "little") for value, size in pairs)

    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += words((3, 2), (62, 2), (1, 4), (0, 8), (segments_at, 8), (sections_at, 8), (0, 4))
    header += words((64, 2), (56, 2), (loads, 2), (64, 2), (tables + 2, 2), (0, 2))
    segments = b"".join(
        words((1, 4), (_EXECUTABLE, 4), (0, 8), (address, 8), (address, 8), (SPAN, 8), (SPAN, 8), (SPAN, 8))
        for address in range(ADDRESS, ADDRESS + SPAN * loads, SPAN)
    )

    def section(kind: int, at: int, size: int) -> bytes:
        return words((0, 4), (kind, 4), (0, 8), (0, 8), (at, 8), (size, 8), (1, 4), (0, 4), (1, 8), (0, 8))

    sections = section(0, 0, 0) + section(3, names_at, len(names))
    sections += section(SYMTAB, symbols_at, symbols.nbytes) * tables
    return header + segments + sections + names + symbols.tobytes()
