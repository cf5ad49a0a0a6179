"""The kernels of one file by host function, as a launch passes it.

In: an ELF file. Out: `KernelTable`; names are read when they are asked for, as libtorch_cuda has
tens of thousands and a job uses some hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.probes.elf.reader import ElfFile
from rankscope.unwinder.gpu.defined import defined_kernels, has_fat_binary
from rankscope.unwinder.gpu.registered import Stubs, registered_kernels
from rankscope.unwinder.gpu.symbols import kernels_by_symbol

_NAME_BYTES = 4096
BY_CODE, BY_SYMBOL = "registering code", "symbols"


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Host functions and kernels of a file; `how` they were found, '' where there are none."""

    stubs: Stubs
    how: str

    def name_at(self, function: int) -> int | None:
        """Return where in the file the name of the kernel of a host function is; None if there is
        none.
        """
        at = int(np.searchsorted(self.stubs.functions, function))
        known = at < len(self.stubs.functions) and int(self.stubs.functions[at]) == function
        return int(self.stubs.names_at[at]) if known else None

    @property
    def nbytes(self) -> int:
        """Bytes of memory used."""
        return int(self.stubs.functions.nbytes + self.stubs.names_at.nbytes)


def kernel_table(elf: ElfFile) -> KernelTable:
    """Find the kernels of a file: by its registering code, else by symbols. Raises NotElf, OSError."""
    stubs = registered_kernels(elf)
    if len(stubs.functions):
        return KernelTable(stubs, BY_CODE)
    if has_fat_binary(elf):
        stubs = kernels_by_symbol(elf, defined_kernels(elf).kernels)
    return KernelTable(stubs, BY_SYMBOL if len(stubs.functions) else "")


def name_of(elf: ElfFile, name_at: int) -> str:
    """Read a kernel's mangled name, '' where there is none. Raises NotElf, OSError."""
    text, end, _ = elf.part(name_at, _NAME_BYTES).partition(b"\0")
    return text.decode("ascii", "replace") if end or len(text) == _NAME_BYTES else ""
