"""Find the kernels that a file registers with CUDA's runtime: host function and name.

The compiler writes for each kernel a host function, its address being what a launch passes, and an
initialiser that calls `__cudaRegisterFunction(handle, host function, name, name, …)`. That code is
there in stripped files too. It is in the initialisers that refer to a descriptor of a fat
binary, and in what they call or pass on; in it, a call that is passed the address of a function and of a constant text registers a
kernel. Which function is called needs no symbol, so a runtime that is linked statically is no
exception.

In: an ELF file. Out: `Stubs`; no name is read here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.probes.base.arrays import Ints
from rankscope.probes.elf.functions import FunctionTable
from rankscope.probes.elf.reader import X86_64, ElfFile
from rankscope.unwinder.gpu.layout import Layout, Span, initialisers, layout_of, slot_values
from rankscope.unwinder.gpu.x86 import References, references

_MAX_BODY_BYTES = 8 << 20  # of one function: 100,000 kernels registered in it
_MAX_CODE_BYTES = 128 << 20  # of all functions looked into
_BLOCK_BYTES, _MAX_BLOCKS = 1 << 16, 64
_NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Stubs:
    """Host functions that stand for kernels: linked addresses, sorted; and where in the file the name
    of each kernel is, ended by a zero byte.
    """

    functions: Ints
    names_at: Ints


NO_STUBS = Stubs(_NOTHING, _NOTHING)


def registered_kernels(elf: ElfFile) -> Stubs:
    """Find what a file registers; nothing where it has no fat binary, or code for another machine.

    Raises NotElf, OSError.
    """
    layout = layout_of(elf) if elf.machine == X86_64 else None
    if layout is None:
        return NO_STUBS
    code = _Code(elf, layout)
    inits = initialisers(elf)
    roots = _owners(_facts(elf, code, inits.tolist()), layout.descriptors)
    reached = {one for root in roots for one in (root, *code.reached(root))}
    return _pairs(_facts(elf, code, sorted(reached)), layout, code)


def _owners(facts: _Facts, span: Span) -> list[int]:
    """List the functions that refer to an address in the span."""
    at = facts.constants_at[span.holds(facts.constants)]
    return [int(one) for one in np.unique(facts.begins[np.searchsorted(facts.begins, at, side="right") - 1])]


class _Code:
    """The functions of a file, with what they refer to."""

    def __init__(self, elf: ElfFile, layout: Layout) -> None:
        self._elf, self._layout = elf, layout
        self.starts = FunctionTable(elf).starts
        self._left_bytes = _MAX_CODE_BYTES
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def begins(self, addresses: Ints) -> npt.NDArray[np.bool_]:
        """Return a mask of the addresses at which a function begins."""
        if not len(self.starts):
            return np.zeros(len(addresses), dtype=bool)
        near = np.minimum(np.searchsorted(self.starts, addresses), len(self.starts) - 1)
        found: npt.NDArray[np.bool_] = self.starts[near] == addresses
        return found

    def references(self, address: int) -> References:
        """Find the references in the function that begins at `address`; none where none does."""
        return references(self._body(address), address, absolute=not self._elf.position_independent)

    def reached(self, address: int) -> list[int]:
        """List the functions that a function calls or takes the address of."""
        found = self.references(address)
        both = np.concatenate([found.constants[1], found.calls[1]])
        return [int(one) for one in np.unique(both[self.begins(both)])]

    def _body(self, address: int) -> bytes:
        """Read a function, up to where the next one begins."""
        at = int(np.searchsorted(self.starts, address))
        if at >= len(self.starts) or int(self.starts[at]) != address:
            return b""
        end = int(self.starts[at + 1]) if at + 1 < len(self.starts) else self._layout.code.end
        size = min(end - address, _MAX_BODY_BYTES)
        offset = self._elf.file_offset(address)
        if size <= 0 or offset is None or self._left_bytes < size:
            return b""
        self._left_bytes -= size
        return self._read(offset, size)

    def _read(self, offset: int, size: int) -> bytes:
        first, last = offset // _BLOCK_BYTES, (offset + size - 1) // _BLOCK_BYTES
        if last - first >= _MAX_BLOCKS // 2:
            return self._elf.part(offset, size)
        text = b"".join(self._block(one) for one in range(first, last + 1))
        return text[offset - first * _BLOCK_BYTES :][:size]

    def _block(self, index: int) -> bytes:
        if index not in self._blocks:
            self._blocks[index] = self._elf.part(index * _BLOCK_BYTES, _BLOCK_BYTES)
            if len(self._blocks) > _MAX_BLOCKS:
                self._blocks.popitem(last=False)
        return self._blocks[index]


@dataclass(frozen=True, slots=True)
class _Facts:
    """What registering code refers to, by linked position in it, sorted. `begins`: of functions."""

    begins: Ints
    constants_at: Ints
    constants: Ints
    calls_at: Ints
    calls: Ints  # addresses called; of slots, negative


def _facts(elf: ElfFile, code: _Code, functions: Iterable[int]) -> _Facts:
    begins = np.array(list(functions), dtype=np.int64)
    found = [(begin, code.references(begin)) for begin in begins.tolist()]
    constants, loads, calls, slot_calls = (
        (_joined([one[i][0] + begin for begin, one in columns]), _joined([one[i][1] for _, one in columns]))
        for i, columns in ((i, [(begin, _columns(one)) for begin, one in found]) for i in range(4))
    )
    slots = np.unique(loads[1])
    loaded = slot_values(elf, slots)[np.searchsorted(slots, loads[1])] if len(slots) else loads[1]
    constants_at, values = _ordered(np.concatenate([constants[0], loads[0]]), np.concatenate([constants[1], loaded]))
    calls_at, called = _ordered(np.concatenate([calls[0], slot_calls[0]]), np.concatenate([calls[1], -slot_calls[1]]))
    return _Facts(begins, constants_at, values, calls_at, called)


def _columns(one: References) -> tuple[tuple[Ints, Ints], ...]:
    return one.constants, one.loads, one.calls, one.slot_calls


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate([_NOTHING, *parts])


def _ordered(at: Ints, values: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(at, kind="stable")
    return at[order], values[order]


def _pairs(facts: _Facts, layout: Layout, code: _Code) -> Stubs:
    """Pair host functions and names that are passed to one call of the registering function.

    It is the function that is called most often with both.
    """
    is_function = layout.code.holds(facts.constants) & code.begins(facts.constants)
    is_name = layout.text.holds(facts.constants)
    functions, names = ((facts.constants_at[mask], facts.constants[mask]) for mask in (is_function, is_name))
    passed = _passed(facts.calls_at, facts, functions[0], names[0])
    targets, counts = np.unique(facts.calls[passed[0]], return_counts=True)
    if not len(targets):
        return NO_STUBS
    calls_at = facts.calls_at[facts.calls == targets[np.argmax(counts)]]
    both, function, name = _passed(calls_at, facts, functions[0], names[0])
    addresses, first = np.unique(functions[1][function[both]], return_index=True)
    return Stubs(addresses, layout.text.offsets(names[1][name[both]][first]))


def _passed(
    calls_at: Ints, facts: _Facts, functions_at: Ints, names_at: Ints
) -> tuple[npt.NDArray[np.bool_], Ints, Ints]:
    """Return which calls have both before them, after the call before, and the indexes of both."""
    breaks = np.sort(np.concatenate([calls_at, facts.begins]))
    floor = breaks[np.searchsorted(breaks, calls_at) - 1] if len(breaks) else _NOTHING
    function, name = (np.searchsorted(at, calls_at) - 1 for at in (functions_at, names_at))
    both = (function >= 0) & (name >= 0)
    both[both] &= (functions_at[function[both]] >= floor[both]) & (names_at[name[both]] >= floor[both])
    return both, function, name
