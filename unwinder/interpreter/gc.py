"""Find the garbage collector function of a CPython build; each call of it is one collection.

`gc_collect_main` (`collect` before 3.10, `_PyGC_Collect` with everything inlined from 3.14) is
exported by no build, and stripped builds have no other symbols. But `PyGC_Collect` is exported
everywhere, and the collector lies within two calls of it and is by far the largest function there.
So: follow the direct calls from it (x86-64 `call`/`jmp rel32`, aarch64 `bl`/`b`, where the target
is the first address of a function in `.eh_frame_hdr`, which makes a disassembler unnecessary)
through functions that are not exported, and take the largest. In 3.8 automatic collections have a
copy of their own, reached from `_PyObject_GC_Malloc`.

Checked against .symtab (3.8-3.13) and the USDT notes of Debian's static builds in
tests/unit/unwinder/test_gc.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.probes.elf.functions import FunctionTable
from rankscope.probes.elf.reader import AARCH64, DYNSYM, X86_64, ElfFile, FileBytes, NotElf
from rankscope.unwinder.errors import UnsupportedInterpreter
from rankscope.unwinder.interpreter.elf_facts import read_facts

LEAST_BYTES = 1500  # the smallest collector known has 1,957 (3.8), the largest other function on the way 900
_DEPTH = 3
_MOST_BYTES = 64 * 1024  # bytes of one function; larger ones are not searched for calls
_MOST_FUNCTIONS = 400
_ROOTS = ("PyGC_Collect", "_PyObject_GC_Malloc")


@dataclass(frozen=True, slots=True)
class _FileCode:
    """The functions of one ELF file, by linked address, and the addresses that it exports."""

    elf: ElfFile
    functions: FunctionTable
    exported: npt.NDArray[np.uint64]

    def size(self, start: int) -> int:
        """Return the size in bytes of the function at linked address `start`; 0 if none begins there.

        Raises NotElf, OSError.
        """
        return self.functions.size(start)

    def is_exported(self, start: int) -> bool:
        """Tell whether a dynamic symbol has the linked address `start`."""
        return bool(np.isin(start, self.exported))

    def calls(self, start: int) -> list[int]:
        """List the other functions that the one at `start` calls or jumps to: linked addresses, each once.

        Empty for a function of less than 5 bytes or more than `_MOST_BYTES`. Raises NotElf, OSError.
        """
        size = self.size(start)
        if not 5 <= size <= _MOST_BYTES:
            return []
        offset = self.elf.file_offset(start)
        if offset is None:
            raise NotElf(f"no loaded part holds {start:#x}")
        targets = np.unique(start + _CALLS_OF[self.elf.machine](self.elf.whole(offset, size)))
        return [int(target) for target in targets[np.isin(targets, self.functions.starts)] if target != start]


def _calls_x86_64(code: bytes) -> npt.NDArray[np.int64]:
    """Decode the targets of x86-64 `call` and `jmp rel32`, in bytes from the start of the code.

    Bytes that look like these instructions inside others are included.
    """
    there = np.frombuffer(code, np.uint8)
    where = np.flatnonzero((there[:-4] & 0xFE) == 0xE8)
    raw = np.stack([there[where + 1 + byte] for byte in range(4)], axis=1)
    return where + 5 + np.ascontiguousarray(raw).view("<i4")[:, 0].astype(np.int64)


def _calls_aarch64(code: bytes) -> npt.NDArray[np.int64]:
    """Decode the targets of aarch64 `bl` and `b` (26-bit offsets), in bytes from the start of the code."""
    words = np.frombuffer(code[: len(code) & -4], "<u4")
    where = np.flatnonzero((words & 0x7C000000) == 0x14000000)
    jumps = (words[where].astype(np.int64) << 38) >> 38  # the lower 26 bits with their sign
    return 4 * (where + jumps)


_CALLS_OF: dict[int, Callable[[bytes], npt.NDArray[np.int64]]] = {X86_64: _calls_x86_64, AARCH64: _calls_aarch64}


def find_collectors(file: FileBytes, version: tuple[int, int]) -> tuple[int, ...]:
    """Return the linked addresses of the functions that collect garbage in this file; never empty.

    Raises UnsupportedInterpreter (with the reason), OSError.
    """
    try:
        facts = read_facts(file, _ROOTS)
        roots = [facts.symbol(name) for name in (_ROOTS if version < (3, 9) else _ROOTS[:1])]
        if not all(roots):
            raise UnsupportedInterpreter("PyGC_Collect is not exported")
        code = _read(ElfFile(file))
        found = sorted({largest for root in roots if (largest := _largest(code, root))})
    except (NotElf, OverflowError) as error:
        raise UnsupportedInterpreter(f"its functions cannot be distinguished: {error}") from error
    if not found:
        raise UnsupportedInterpreter("no function below PyGC_Collect looks like the collector")
    return tuple(found)


def _largest(code: _FileCode, root: int) -> int:
    """Return the largest unexported function within `_DEPTH` calls of `root`; 0 where none is large enough.

    The nearest level of calls that has one of LEAST_BYTES decides. Linked addresses.
    """
    level, seen = [root], {root}
    for _ in range(_DEPTH):
        # Stop at the nearest level that has one: functions that the collector itself calls are not
        # wanted.
        following = []
        for function in level:
            following += [
                target for target in code.calls(function) if target not in seen and not code.is_exported(target)
            ]
            seen.update(following)
            if len(seen) > _MOST_FUNCTIONS:
                return 0
        best = max(following, key=code.size, default=0)
        if best and code.size(best) >= LEAST_BYTES:
            return best
        level = following
    return 0


def _read(elf: ElfFile) -> _FileCode:
    """Read a file's functions and the addresses that it exports. Raises NotElf for an unexpected layout, OSError."""
    if elf.machine not in _CALLS_OF:
        raise NotElf("neither x86-64 nor aarch64")
    exported = [elf.symbols(table)["value"] for table in elf.symbol_sections(DYNSYM)]
    return _FileCode(elf, FunctionTable(elf), np.concatenate([np.empty(0, np.uint64), *exported]))
