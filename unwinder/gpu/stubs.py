"""The kernels of one file by host function, as a launch passes it, or by the code that launches.

In: an ELF file. Out: `KernelTable`; names are read when they are asked for, as libtorch_cuda has
tens of thousands and a job uses some hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.probes.elf.reader import X86_64, ElfFile, NotElf
from rankscope.unwinder.gpu.callers import launched_kernel
from rankscope.unwinder.gpu.code import Code
from rankscope.unwinder.gpu.defined import defined_kernels, has_fat_binary
from rankscope.unwinder.gpu.registered import NO_STUBS, Stubs, registered_kernels
from rankscope.unwinder.gpu.symbols import kernels_by_symbol

_NAME_BYTES = 4096
BY_CODE, BY_SYMBOL = "registering code", "symbols"


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Host functions and kernels of a file; `how` they were found, '' where there are none."""

    stubs: Stubs = NO_STUBS
    how: str = ""
    code: Code | None = None

    def name_at(self, function: int) -> int | None:
        """Return the file offset of the name of a host function's kernel; None if it is no kernel's.

        `function`: linked address.
        """
        at = int(np.searchsorted(self.stubs.functions, function))
        known = at < len(self.stubs.functions) and int(self.stubs.functions[at]) == function
        return int(self.stubs.names_at[at]) if known else None

    def launched_by(self, caller: int) -> int | None:
        """Return the host function of the kernel that the call before a linked address launches.

        None where that is not clear. Raises NotElf, OSError.
        """
        if self.code is None or not len(self.stubs.functions):
            return None
        found, at = self.code.references_around(caller)
        return launched_kernel(found, self.stubs.functions, at)

    @property
    def nbytes(self) -> int:
        """Bytes of memory used, estimated."""
        starts = self.code.starts.nbytes if self.code is not None else 0
        return int(self.stubs.functions.nbytes + self.stubs.names_at.nbytes + 2 * starts)


def kernel_table(elf: ElfFile) -> KernelTable:
    """Find the kernels of a file by its registering code, else by symbols; an empty table where it has none.

    Raises NotElf, OSError.
    """
    if not has_fat_binary(elf):
        return KernelTable()
    code = _code(elf)
    stubs = registered_kernels(elf, code) if code is not None else NO_STUBS
    if len(stubs.functions):
        return KernelTable(stubs, BY_CODE, code)
    stubs = kernels_by_symbol(elf, defined_kernels(elf).kernels)
    return KernelTable(stubs, BY_SYMBOL, code) if len(stubs.functions) else KernelTable()


def _code(elf: ElfFile) -> Code | None:
    """Return the code of a file; None where it has no unwind tables, or is for another machine."""
    try:
        return Code(elf) if elf.machine == X86_64 else None
    except NotElf:
        return None


def name_of(elf: ElfFile, name_at: int) -> str:
    """Read the mangled kernel name at file offset `name_at`, cut to 4,096 bytes; '' if the file ends in it.

    Raises NotElf, OSError.
    """
    text, end, _ = elf.part(name_at, _NAME_BYTES).partition(b"\0")
    return text.decode("ascii", "replace") if end or len(text) == _NAME_BYTES else ""
