"""Find start and size of a file's functions without symbols, from its unwind tables.

Compilers write an unwind entry for every function, exported or not, and linkers a sorted table of
them (.eh_frame_hdr, Linux Standard Base 5.0, 10.6.2). Stripping leaves both.
"""

from __future__ import annotations

import struct

import numpy as np

from rankscope.probes.base.arrays import Ints
from rankscope.probes.elf.reader import GNU_EH_FRAME, ElfFile, NotElf

_MAX_TABLE_BYTES = 64 << 20
_HEADER = struct.Struct("<BBBBII")  # version, three encodings, the place of .eh_frame, the number of pairs
_ENTRY = struct.Struct(
    "<IIiI"
)  # its length, its common entry, where the function begins (counted from this field), its bytes
# The encodings that every linker writes: unsigned 4 bytes, and signed 4 bytes counted from the
# table's own address. The address of .eh_frame is not used, but must take 4 bytes.
_COUNT, _PAIRS, _FOUR_BYTES = 0x03, 0x3B, (0x03, 0x0B)

_MAX_ADDRESS = 1 << 62  # as linked; sums with the 32-bit offsets of the tables stay in 64 bits with a sign


class FunctionTable:
    """The functions of one file. Raises NotElf where it has no unwind table, or one of another
    kind.
    """

    def __init__(self, elf: ElfFile) -> None:
        """Read the sorted table of the file's unwind entries. Raises NotElf, OSError."""
        self._elf = elf
        table = next((one for one in elf.segments if one.kind == GNU_EH_FRAME), None)
        if table is None:
            raise NotElf(f"{elf.name} has no unwind tables")
        if table.address >= _MAX_ADDRESS:
            raise NotElf(f"{elf.name} has unwind tables at an impossible address")
        text = elf.part(table.offset, min(table.size, _MAX_TABLE_BYTES))
        if len(text) < _HEADER.size:
            raise NotElf(f"{elf.name} has broken unwind tables")
        version, place, count_as, pairs_as, _, count = _HEADER.unpack_from(text)
        if (version, count_as, pairs_as) != (1, _COUNT, _PAIRS) or place & 0x0F not in _FOUR_BYTES:
            raise NotElf(f"{elf.name} has unwind tables of an unknown kind")
        count = min(count, (len(text) - _HEADER.size) // 8)
        pairs = np.frombuffer(text, "<i4", 2 * count, _HEADER.size).reshape(-1, 2)
        self.starts: Ints = pairs[:, 0].astype(np.int64) + np.int64(table.address)
        self._entries: Ints = pairs[:, 1].astype(np.int64) + np.int64(table.address)

    def size(self, address: int) -> int:
        """Return the bytes of the function that begins at `address` (as linked); 0 where none
        begins.

        Raises NotElf, OSError.
        """
        if address >= _MAX_ADDRESS:
            return 0
        at = int(np.searchsorted(self.starts, address))
        if at >= len(self.starts) or int(self.starts[at]) != address:
            return 0
        entry = int(self._entries[at])
        offset = self._elf.file_offset(entry)
        if offset is None:
            raise NotElf(f"{self._elf.name} has broken unwind tables")
        length, _, begin, size = _ENTRY.unpack(self._elf.whole(offset, _ENTRY.size))
        if not length or entry + 8 + begin != address:
            raise NotElf(f"{self._elf.name} has unwind tables of an unknown kind")
        return int(size)
