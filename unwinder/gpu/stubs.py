"""The kernels of one file by host function, as a launch passes it, or by the code that launches.

In: an ELF file. Out: `KernelTable`; names are read when they are asked for, as libtorch_cuda has
tens of thousands and a job uses some hundreds.

What CUDA 13 compiles passes a handle of the runtime instead of the host function
(`__cudaLaunchKernel`). The function that does so is written for one kernel, though, and refers to
its host function, to get the handle: so the address that the launch returns to names the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.probes.base.arrays import Ints
from rankscope.probes.elf.reader import X86_64, ElfFile, NotElf
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
        """Return where in the file the name of the kernel of a host function is; None if there is
        none.
        """
        known = self._known(np.array([function], dtype=np.int64))
        return int(self.stubs.names_at[np.searchsorted(self.stubs.functions, function)]) if len(known) else None

    def launched_by(self, caller: int) -> int | None:
        """Return the host function that the function around an address refers to; None where it is
        not exactly one. Raises NotElf, OSError.
        """
        if self.code is None or not len(self.stubs.functions):
            return None
        known = self._known(self.code.constants_around(caller))
        return int(known[0]) if len(known) == 1 else None

    def _known(self, addresses: Ints) -> Ints:
        """Return those of some addresses that are host functions of kernels."""
        functions = self.stubs.functions
        if not len(functions):
            return functions
        near = np.minimum(np.searchsorted(functions, addresses), len(functions) - 1)
        return addresses[functions[near] == addresses]

    @property
    def nbytes(self) -> int:
        """Bytes of memory used."""
        starts = self.code.starts.nbytes if self.code is not None else 0
        return int(self.stubs.functions.nbytes + self.stubs.names_at.nbytes + 2 * starts)


def kernel_table(elf: ElfFile) -> KernelTable:
    """Find the kernels of a file: by its registering code, else by symbols. Raises NotElf, OSError."""
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
    """Read a kernel's mangled name, '' where there is none. Raises NotElf, OSError."""
    text, end, _ = elf.part(name_at, _NAME_BYTES).partition(b"\0")
    return text.decode("ascii", "replace") if end or len(text) == _NAME_BYTES else ""
