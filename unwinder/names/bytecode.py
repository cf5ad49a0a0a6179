"""Find the loops of a function in its bytecode: ranges that a backward jump closes. Pure.

In: the code units of a code object as they lie in memory, where the interpreter has put specialised
instructions in place of compiled ones. Out: loops as (first, last) code unit, outer before inner,
properly nested. A backward jump from an exception handler is no loop: from 3.11 on handlers lie
behind all other code. Never raises; forged bytecode gives wrong loops, in time linear in its
length.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

Loops = tuple[tuple[int, int], ...]

LOOPS_CAP = 256  # loops of one function; real code has fewer
_ARGUMENT_CAP = 1 << 30


@dataclass(frozen=True)
class _Opcodes:
    """The opcodes of one CPython version that finding loops needs.

    `extended`: prefixes that hold the upper bits of the next argument.
    `caches`: code units that follow an instruction, by its opcode.
    """

    extended: frozenset[int]
    # jumps by so many units, counted from behind the instruction and its caches
    backward: frozenset[int] = frozenset()
    absolute: frozenset[int] = frozenset()  # jumps to an absolute target
    handler: int = -1  # start of an exception handler
    caches: bytes = bytes(256)
    bytes_per_step: int = 1  # 2 where arguments count bytes

    @functools.cached_property
    def plain(self) -> bytes:
        """Map each opcode to 1 if it is none of jump back, argument prefix or handler start."""
        others = {self.handler, *self.extended, *self.backward, *self.absolute}
        return bytes(number not in others for number in range(256))


def _digits(text: str) -> bytes:
    """Convert hexadecimal digits to bytes, one byte (0 to 15) per digit."""
    return bytes(int(digit, 16) for digit in text)


# `opcode` of each version: EXTENDED_ARG, specialised too (3.11); JUMP_ABSOLUTE, POP_JUMP_IF_*;
# JUMP_BACKWARD and POP_JUMP_BACKWARD_IF_*, specialised and instrumented. JUMP_BACKWARD_NO_INTERRUPT
# is left out: it waits for another generator.
_OLD = _Opcodes(frozenset((144,)), absolute=frozenset((113, 114, 115)), bytes_per_step=2)
_OPCODES = {
    8: _OLD,
    9: _OLD,
    10: _Opcodes(frozenset((144,)), absolute=frozenset((113, 114, 115))),
    11: _Opcodes(
        frozenset((34, 144)), frozenset((38, 140, 173, 174, 175, 176)),
        caches=_digits(
            "00011111100001101444444444222200000000044444000550000005aaaa10aa"
            "1111000011001111110000000000100400000000004200000100500001100001"
            "00000000000001010000000004400044a0000010111400000111100000000000"
            "0000000000000000000000000000000000000000000000000000000000000000"
        ),
    ),
    12: _Opcodes(
        frozenset((144,)), frozenset((140, 246)), handler=35,
        caches=_digits(
            "0000001110100110101111133100330000300033333333333000000031111011"
            "1111009099009999999000000000110400000000009100044400400000110000"
            "0000000000000100000040000400000111000011100300000000000000000000"
            "0000000000000000000000000000000000000000000001000300000010000000"
        ),
    ),
    13: _Opcodes(
        frozenset((71,)), frozenset((77, 249)), handler=33,
        caches=_digits(
            "0001010000000000000000000000000000000001300001000000030000110000"
            "0000000010000100009000000004010001111000100040000000010000000000"
            "0000000000000000000000111111111111333333333333333333331111111119"
            "9999999999944110144411333333111000000000000000000011300001111100"
        ),
    ),
}  # fmt: skip


def loops(minor: int, code: bytes) -> Loops:
    """Find the loops in bytecode of CPython 3.`minor`: (first, last) code units, outer before inner.

    Empty where the version is unknown, or with more than LOOPS_CAP loops.
    """
    opcodes = _OPCODES.get(minor)
    operations = code[::2]
    if opcodes is None or not any(jump in operations for jump in opcodes.backward | opcodes.absolute):
        return ()  # true of most functions
    ends: dict[int, int] = {}
    for first, last in _jumps_back(opcodes, code):
        ends[first] = max(last, ends.get(first, last))
        if len(ends) > LOOPS_CAP:
            return ()
    return _nested(ends)


def around(found: Loops, unit: int) -> tuple[int, ...]:
    """List the first code units of the loops that contain `unit`, outermost first."""
    return tuple(first for first, last in found if first <= unit <= last)


def _jumps_back(opcodes: _Opcodes, code: bytes) -> Iterator[tuple[int, int]]:
    """Yield (target, jump) of each backward jump, as indexes of code units.

    Stops at the first exception handler (3.12 and later).
    """
    operations, plain, caches = code[: len(code) & -2 : 2], opcodes.plain, opcodes.caches
    unit, argument, units = 0, 0, len(operations)
    while unit < units:
        operation = operations[unit]
        if plain[operation]:  # true of nearly all
            argument = 0
            unit += 1 + caches[operation]
            continue
        argument = min(argument << 8 | code[2 * unit + 1], _ARGUMENT_CAP)
        if operation == opcodes.handler:
            return
        after = unit + 1 + caches[operation]
        target = -1
        if operation in opcodes.backward:
            target = after - argument
        elif operation in opcodes.absolute:
            target = argument // opcodes.bytes_per_step
        if 0 <= target <= unit:
            yield target, unit
        if operation not in opcodes.extended:
            argument = 0
        unit = after


def _nested(ends: dict[int, int]) -> Loops:
    """Turn `{first unit: last unit}` into nested loops, outer before inner; overlapping ones are merged.

    `while` compiles its test twice, before the loop and at its end, which gives two overlapping
    ranges.
    """
    found: list[list[int]] = []
    open_loops: list[list[int]] = []
    for first in sorted(ends):
        while open_loops and open_loops[-1][1] < first:
            open_loops.pop()
        last = ends[first]
        if open_loops and open_loops[-1][1] < last:
            for outer in open_loops:
                outer[1] = max(outer[1], last)
            continue
        open_loops.append([first, last])
        found.append(open_loops[-1])
    return tuple((first, last) for first, last in found)
