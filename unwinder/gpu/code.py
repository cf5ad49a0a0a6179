"""Read the functions of a file's code, and what they refer to.

In: an ELF file and linked addresses. Out: references (x86.py). A function is taken to reach to where
the next one begins, by the unwind tables, which stripped files have too.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np

from rankscope.probes.base.arrays import Bools, Ints
from rankscope.probes.elf.functions import FunctionTable
from rankscope.probes.elf.reader import ElfFile
from rankscope.unwinder.gpu.callers import contained
from rankscope.unwinder.gpu.layout import MAX_SLOTS, slot_values
from rankscope.unwinder.gpu.x86 import References, references

_MAX_BODY_BYTES = 8 << 20  # of one function: 100,000 kernels registered in it
_MAX_CODE_BYTES = 64 << 20  # of all functions looked into
_LAST_BYTES = 1 << 16  # of the last function, whose end is not known
_BLOCK_BYTES, _MAX_BLOCKS = 1 << 16, 64


class Code:
    """The functions of one file, by its unwind tables. Raises NotElf where it has none, OSError."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self.starts = FunctionTable(elf).starts
        self._left_bytes = _MAX_CODE_BYTES
        self._offset_table: tuple[Ints, Ints] | None = None  # read when first needed
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def begins(self, addresses: Ints) -> Bools:
        """Return a mask of the linked addresses at which a function of this file begins."""
        return contained(self.starts, addresses)

    def references(self, address: int) -> References:
        """Find the references in the function that begins at the linked `address`; none where none begins there.

        Also none once the functions read would exceed _MAX_CODE_BYTES in all. Raises NotElf, OSError.
        """
        return references(self._body(address), address, absolute=not self._elf.position_independent)

    def references_around(self, address: int) -> tuple[References, int]:
        """Find the references in the function around a linked address; return them, and the address's offset in it.

        Addresses that the function loads from the global offset table are constants too. Raises NotElf,
        OSError.
        """
        at = int(np.searchsorted(self.starts, address, side="right")) - 1
        begin = int(self.starts[at]) if at >= 0 else 0
        found = self.references(begin)
        if len(found.loads[0]):
            at_slots, loaded = self._loaded(*found.loads)
            both = np.concatenate([found.constants[0], at_slots]), np.concatenate([found.constants[1], loaded])
            order = np.argsort(both[0], kind="stable")
            found = replace(found, constants=(both[0][order], both[1][order]))
        return found, address - begin

    def _loaded(self, at: Ints, slots: Ints) -> tuple[Ints, Ints]:
        """Return what the loader writes into `slots` of the global offset table, with their positions `at`.

        Slots that are not in the table are left out.
        """
        if self._offset_table is None:
            self._offset_table = _offset_table(self._elf)
        known, values = self._offset_table
        inside = contained(known, slots)
        return at[inside], values[np.searchsorted(known, slots[inside])]

    def reached(self, address: int) -> list[int]:
        """List the functions of this file that the one at `address` calls directly or takes the address of.

        Linked addresses, sorted, distinct; calls and loads through slots are not followed.
        """
        found = self.references(address)
        both = np.concatenate([found.constants[1], found.calls[1]])
        return [int(one) for one in np.unique(both[self.begins(both)])]

    def _body(self, address: int) -> bytes:
        """Read the code of the function that begins at a linked address, up to where the next one begins.

        b'' where none begins there, or _MAX_CODE_BYTES in all would be exceeded. Cut to _MAX_BODY_BYTES.
        """
        at = int(np.searchsorted(self.starts, address))
        if at >= len(self.starts) or int(self.starts[at]) != address:
            return b""
        end = int(self.starts[at + 1]) if at + 1 < len(self.starts) else address + _LAST_BYTES
        size = min(end - address, _MAX_BODY_BYTES)
        offset = self._elf.file_offset(address)
        if size <= 0 or offset is None or self._left_bytes < size:
            return b""
        self._left_bytes -= size
        return self._read(offset, size)

    def _read(self, offset: int, size: int) -> bytes:
        """Read `size` bytes at a file offset, through the cache of blocks; past it if they are many."""
        first, last = offset // _BLOCK_BYTES, (offset + size - 1) // _BLOCK_BYTES
        if last - first >= _MAX_BLOCKS // 2:
            return self._elf.part(offset, size)
        text = b"".join(self._block(one) for one in range(first, last + 1))
        return text[offset - first * _BLOCK_BYTES :][:size]

    def _block(self, index: int) -> bytes:
        """Return 64 KB of the file from byte `index` * 64 KB on, fewer at its end; cache the 64 read last."""
        if index not in self._blocks:
            self._blocks[index] = self._elf.part(index * _BLOCK_BYTES, _BLOCK_BYTES)
            if len(self._blocks) > _MAX_BLOCKS:
                self._blocks.popitem(last=False)
        return self._blocks[index]


def _offset_table(elf: ElfFile) -> tuple[Ints, Ints]:
    """Return the slot addresses of `.got`, sorted, and the linked address that the loader writes to each.

    0 for what other files define; both empty where there is no such section.
    """
    section = elf.section(".got")
    count = min(section.size // 8, MAX_SLOTS) if section is not None else 0
    slots = (section.address if section is not None else 0) + 8 * np.arange(count, dtype=np.int64)
    return slots, slot_values(elf, slots)
