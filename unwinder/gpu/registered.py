"""Find the kernels that a file registers with CUDA's runtime: host function and name.

The compiler writes for each kernel a host function, its address being what a launch passes, and an
initialiser that calls `__cudaRegisterFunction(handle, host function, name, name, …)`. That code is
there in stripped files too. It is in the initialisers that refer to a descriptor of a fat binary,
and in what they call or pass on; in it, a call that is passed the address of a function and of a
constant text registers a kernel. Which function is called needs no symbol, so a runtime that is
linked statically is no exception.

In: an ELF file. Out: `Stubs`; no name is read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.probes.base.arrays import Ints
from rankscope.probes.elf.reader import X86_64, ElfFile
from rankscope.unwinder.gpu.callers import contained
from rankscope.unwinder.gpu.code import Code
from rankscope.unwinder.gpu.layout import MAX_SLOTS, Layout, Span, initialisers, layout_of, slot_values

_MAX_FUNCTIONS = 50_000  # looked into for calls; in PyTorch some hundreds
_MAX_REFERENCES = 2_000_000  # in all of them
_NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Stubs:
    """Host functions that stand for kernels: linked addresses, sorted.

    `names_at`: where in the file the name of each kernel is, ended by a zero byte.
    """

    functions: Ints
    names_at: Ints


NO_STUBS = Stubs(_NOTHING, _NOTHING)


def registered_kernels(elf: ElfFile, code: Code | None = None) -> Stubs:
    """Find the kernels that a file registers, by host function.

    Nothing where it has no fat binary, or code for another machine than x86-64. `code`: the file's,
    where it was read before. Raises NotElf, OSError.
    """
    layout = layout_of(elf) if elf.machine == X86_64 else None
    if layout is None:
        return NO_STUBS
    code = code or Code(elf)
    roots = _owners(_facts(elf, code, initialisers(elf).tolist()), layout.descriptors)
    reached = {one for root in roots for one in (root, *code.reached(root))}
    return _pairs(_facts(elf, code, sorted(reached)[:_MAX_FUNCTIONS]), layout, code)


def _owners(facts: _Facts, span: Span) -> list[int]:
    """List the functions that refer to an address in the span: linked addresses, sorted, distinct."""
    at = facts.constants_at[span.holds(facts.constants)]
    return [int(one) for one in np.unique(facts.begins[np.searchsorted(facts.begins, at, side="right") - 1])]


@dataclass(frozen=True, slots=True)
class _Facts:
    """What registering code refers to, by linked position in it, sorted. `begins`: of functions."""

    begins: Ints
    constants_at: Ints
    constants: Ints
    calls_at: Ints
    calls: Ints  # addresses called; of slots, negative


def _facts(elf: ElfFile, code: Code, functions: Iterable[int]) -> _Facts:
    """Collect what these functions refer to, by linked position; loads from slots become constants.

    `functions`: linked addresses, sorted.
    """
    begins, columns = _columns(code, functions)
    constants, loads, calls, slot_calls = (
        (_joined([one[i][0] + begin for begin, one in zip(begins, columns, strict=True)]), _joined([one[i][1] for one in columns]))
        for i in range(4)
    )  # fmt: skip
    slots = np.unique(loads[1])[:MAX_SLOTS]
    known = contained(slots, loads[1])
    loaded = slot_values(elf, slots)[np.searchsorted(slots, loads[1][known])]
    constants_at, values = _ordered(
        np.concatenate([constants[0], loads[0][known]]), np.concatenate([constants[1], loaded])
    )
    calls_at, called = _ordered(np.concatenate([calls[0], slot_calls[0]]), np.concatenate([calls[1], -slot_calls[1]]))
    return _Facts(np.array(begins, dtype=np.int64), constants_at, values, calls_at, called)


def _columns(code: Code, functions: Iterable[int]) -> tuple[list[int], list[tuple[tuple[Ints, Ints], ...]]]:
    """Return the begins of the functions and, for each, its (constants, loads, calls, calls through slots).

    Each kind is (positions in the function, addresses). The function that exceeds _MAX_REFERENCES in
    all, and those after it, are left out.
    """
    begins: list[int] = []
    columns: list[tuple[tuple[Ints, Ints], ...]] = []
    left = _MAX_REFERENCES
    for begin in functions:
        one = code.references(begin)
        found = one.constants, one.loads, one.calls, one.slot_calls
        left -= sum(len(column[0]) for column in found)
        if left < 0:
            break
        begins.append(begin)
        columns.append(found)
    return begins, columns


def _joined(parts: list[Ints]) -> Ints:
    """Concatenate arrays; an empty one for none."""
    return np.concatenate([_NOTHING, *parts])


def _ordered(at: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Sort positions `at`, and `values` with them."""
    order = np.argsort(at, kind="stable")
    return at[order], values[order]


def _pairs(facts: _Facts, layout: Layout, code: Code) -> Stubs:
    """Pair the host function and the name that are passed to each call of the registering function.

    It is the function that is called most often with both. Sorted by host function, each once.
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
    """Find for each call the last reference to a function and to a name since the call before it.

    References before the calling function begins (`facts.begins`) do not count. All `…_at` are sorted linked
    positions of calls and references. Returns a mask of the calls that have both, and for each call the index
    in `functions_at` and in `names_at`, valid only where the mask is set.
    """
    breaks = np.sort(np.concatenate([calls_at, facts.begins]))
    floor = breaks[np.searchsorted(breaks, calls_at) - 1] if len(breaks) else _NOTHING
    function, name = (np.searchsorted(at, calls_at) - 1 for at in (functions_at, names_at))
    both = (function >= 0) & (name >= 0)
    both[both] &= (functions_at[function[both]] >= floor[both]) & (names_at[name[both]] >= floor[both])
    return both, function, name
