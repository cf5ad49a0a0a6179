"""Find a function's return instructions, for exit probes that do not touch the stack.

A return probe (uretprobe) replaces the caller's address on the target's stack by its own. A C++
exception that passes through such a function finds no way to unwind there, and std::terminate ends
the process: a recoverable time-out of a collective would become the death of the job. So the exits
of functions that may throw are probed on their `ret` instructions, which changes nothing; a call
that ends by an exception is simply not seen to end (calls.bpf.c).

A function that does nothing but jump to another (a tail call as its first instruction) is followed
there. The extent of a function without a symbol comes from the unwind tables (functions.py).
Disassembly: capstone.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.elf.exports import Symbol
from rankscope.probes.elf.functions import FunctionTable
from rankscope.probes.elf.reader import AARCH64, X86_64, ElfFile, FileBytes, NotElf

MAX_BYTES = 1 << 20  # of one function; a larger one is not searched
MAX_LEAVES = 64
_MAX_HOPS = 3
# First bytes of an entry of the procedure linkage table. x86-64: endbr64; jmp *…(%rip), with and
# without bnd. aarch64: bti c; adrp x16, … with its operand masked.
_PLT_ENTRIES = (b"\xf3\x0f\x1e\xfa", b"\xff\x25", b"\xf2\xff\x25")
_BTI_C, _ADRP_X16, _ADRP_MASK = 0xD503245F, 0x90000010, 0x9F00001F
_LANDING_PADS = (
    "endbr64",
    "bti",
    "paciasp",
    "hint",
)  # harmless instructions before a function's first real one
_RETURNS = frozenset(("ret", "retaa", "retab"))
_JUMPS = frozenset(("jmp", "b", "br", "braa", "brab", "braaz", "brabz"))


class NoReturns(RankscopeError):
    """The return instructions of a function could not be found."""

    help = "This function is not timed; all else is."


@dataclass(frozen=True, slots=True)
class _Body:
    """The decoded exits of one function: its first instruction, and the addresses of instructions
    that leave it.
    """

    first: tuple[str, str]
    leaves: tuple[int, ...]


class Leaves:
    """Finds the exits of functions of one file.

    Unwind tables that were read are cached in it: libtorch's take milliseconds.
    """

    def __init__(self, library: FileBytes) -> None:
        """Create it; nothing is read yet."""
        self._library = library
        self._code: _LinkedCode | None = None

    def offsets(self, symbols: Sequence[Symbol]) -> tuple[int, ...]:
        """Return the file offsets of the functions' exits: returns, and jumps that may be tail calls; sorted.

        Raises NoReturns, NotElf, OSError.
        """
        code = self._code = self._code or _LinkedCode(ElfFile(self._library))
        engine = _engine(code.machine)
        found: list[int] = []
        for symbol in symbols:
            leaves = _leaves(engine, code, symbol.address, symbol.size)
            if not leaves:
                raise NoReturns(f"{symbol.name[:80]} has no return instruction")
            found += [code.offset(address) for address in leaves]
        if len(found) > MAX_LEAVES:
            raise NoReturns(f"{len(found)} return instructions")
        return tuple(sorted(set(found)))


def leave_offsets(library: FileBytes, symbols: Sequence[Symbol]) -> tuple[int, ...]:
    """Return the sorted file offsets of the exits of functions of one file, caching nothing.

    Raises NoReturns, NotElf, OSError.
    """
    return Leaves(library).offsets(symbols)


def _engine(machine: int) -> Any:
    """Return the disassembler for a file's instructions (e_machine). Raises NoReturns."""
    try:
        capstone = importlib.import_module("capstone")
    except ImportError as error:
        raise NoReturns("the disassembler (capstone) is not installed") from error
    if machine == X86_64:
        return capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    if machine == AARCH64:
        return capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    raise NoReturns(f"return instructions of machine {machine} are not known")


def _leaves(engine: Any, code: _LinkedCode, address: int, size: int) -> tuple[int, ...]:
    """Return the linked addresses of a function's exits; () after `_MAX_HOPS` functions that only jump on.

    `size`: its bytes, 0 if unknown. Raises NoReturns, NotElf, OSError.
    """
    for _ in range(_MAX_HOPS):
        size = size or code.extent(address)
        if not 0 < size <= MAX_BYTES:
            raise NoReturns(f"a function of {size} bytes")
        body = _decode(engine, code, address, size)
        mnemonic, operands = body.first
        if not (
            _jumps(mnemonic) and (target := _target(operands)) is not None and not address <= target < address + size
        ):
            return body.leaves
        address, size = target, 0
    return ()


def _decode(engine: Any, code: _LinkedCode, address: int, size: int) -> _Body:
    """Decode a function from start to end (linear sweep) and collect its exits.

    Compilers for these machines put no data between instructions.
    """
    text = code.read(address, size)
    first, leaves, end = ("", ""), [], address
    for at, length, mnemonic, operands in engine.disasm_lite(text, address):
        if not first[0] and mnemonic not in _LANDING_PADS:
            first = (mnemonic, operands)
        end = at + length
        if _returns(mnemonic):
            leaves.append(at)
        elif _jumps(mnemonic):
            target = _target(operands)
            if target is None or (not address <= target < address + size and code.is_function(target)):
                leaves.append(at)  # perhaps a tail call; the probe decides by the stack pointer
    if end != address + size:
        raise NoReturns("instructions that the disassembler does not know")
    return _Body(first, tuple(leaves))


@functools.lru_cache(maxsize=4096)  # a function has thousands of instructions, of some tens of names
def _returns(mnemonic: str) -> bool:
    """Tell whether an instruction is a return, with prefixes or without."""
    return not _RETURNS.isdisjoint(mnemonic.split())


@functools.lru_cache(maxsize=4096)
def _jumps(mnemonic: str) -> bool:
    """Tell whether an instruction is an unconditional jump, with prefixes or without."""
    return mnemonic.rsplit(maxsplit=1)[-1] in _JUMPS


def _target(operands: str) -> int | None:
    """Parse the address that a jump's operands name; None where it is in a register or in memory."""
    text = operands.removeprefix("#")
    return int(text, 16) if text.startswith("0x") else None


class _LinkedCode:
    """The loaded parts of an ELF file, by linked address."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf, self.machine = elf, elf.machine
        self._functions: FunctionTable | None = None

    def offset(self, address: int) -> int:
        """Convert a linked address to a file offset. Raises NoReturns for an address that is not
        loaded.
        """
        offset = self._elf.file_offset(address)
        if offset is None:
            raise NoReturns(f"address {address:#x} lies in no loaded part of {self._elf.name}")
        return offset

    def read(self, address: int, size: int) -> bytes:
        """Read up to `size` bytes at a linked address."""
        return self._elf.part(self.offset(address), size)

    def is_function(self, address: int) -> bool:
        """Tell whether a function or an entry of the procedure linkage table begins here.

        False for the cold part of another function.
        """
        try:
            return self.extent(address) > 0
        except NoReturns:
            pass
        try:
            entry = self.read(address, 8)
        except NoReturns:
            return False
        if self.machine != AARCH64:
            return entry.startswith(_PLT_ENTRIES)
        words = [int.from_bytes(entry[at : at + 4], "little") for at in (0, 4)]
        return words[words[0] == _BTI_C] & _ADRP_MASK == _ADRP_X16

    def extent(self, address: int) -> int:
        """Return the bytes of the function that begins at `address`, from its unwind entry.

        Raises NoReturns where it has none.
        """
        try:
            self._functions = self._functions or FunctionTable(self._elf)
            size = self._functions.size(address)
        except NotElf as error:
            raise NoReturns(str(error)) from error
        if not size:
            raise NoReturns(f"no function begins at {address:#x}")
        return size
