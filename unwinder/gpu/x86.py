"""Find the constants and calls in x86-64 code that passes addresses to functions. Pure.

In: the bytes of a function and its linked address. Out: which addresses it loads or computes, and
what it calls, by position. No disassembly: the few forms that compilers emit for an address are
searched in the bytes, so a hit may be the inside of another instruction. The caller knows which
addresses make sense.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.probes.base.arrays import Ints

Bytes = npt.NDArray[np.uint8]
_LEA, _LOAD, _CALL, _INDIRECT = 0x8D, 0x8B, 0xE8, b"\xff\x15"
MAX_HITS = 1 << 18  # of one form in one function; a kernel takes two addresses and a call to register
_RELATIVE_BYTES, _CALL_BYTES, _MOVE_BYTES = 7, 5, 5


@dataclass(frozen=True, slots=True)
class References:
    """Addresses in code, each with its position in the bytes, in order of position.

    `constants`: lea and mov of an address. `loads`: mov from a slot that the loader fills.
    `calls`: call of an address. `slot_calls`: call of the address in a slot.
    """

    constants: tuple[Ints, Ints]
    loads: tuple[Ints, Ints]
    calls: tuple[Ints, Ints]
    slot_calls: tuple[Ints, Ints]


def references(code: bytes, address: int, absolute: bool = False) -> References:
    """Find the references in the code of a function that begins at the linked `address`.

    `absolute`: also 32-bit constants, as in programs that are not position independent.
    """
    data = np.frombuffer(code, np.uint8)
    lea, load = (_relative(data, address, opcode) for opcode in (_LEA, _LOAD))
    if absolute:
        lea = _merged(lea, _moves(data))
    calls = _from(data, _where(data, _CALL_BYTES, (_CALL, 0xFF)), 1, _CALL_BYTES, address)
    slots = _from(data, _where(data, 6, (0xFF, 0xFF), (0x15, 0xFF)), 2, 6, address)
    return References(lea, load, calls, slots)


def _relative(data: Bytes, address: int, opcode: int) -> tuple[Ints, Ints]:
    """Find `opcode` with a 64-bit register and an address relative to the instruction pointer.

    Returns positions in `data`, and the linked addresses.
    """
    at = _where(data, _RELATIVE_BYTES, (0x48, 0xFB), (opcode, 0xFF), (0x05, 0xC7))
    return _from(data, at, 3, _RELATIVE_BYTES, address)


def _moves(data: Bytes) -> tuple[Ints, Ints]:
    """Find mov of a 32-bit constant into a register; return positions in `data`, and the constants, unsigned."""
    at = _where(data, _MOVE_BYTES, (0xB8, 0xF8))
    return at, _words(data, at + 1) & 0xFFFF_FFFF


def _where(data: Bytes, size: int, *pattern: tuple[int, int]) -> Ints:
    """Find positions where byte & mask == value for each (value, mask) of the pattern, in order.

    Only positions with `size` bytes left (at least the pattern's length); the first MAX_HITS of them.
    """
    count = max(len(data) - size + 1, 0)
    hit = np.ones(count, dtype=bool)
    for place, (value, mask) in enumerate(pattern):
        hit &= (data[place : place + count] & np.uint8(mask)) == value
    return np.nonzero(hit)[0][:MAX_HITS].astype(np.int64)


def _from(data: Bytes, at: Ints, field: int, size: int, address: int) -> tuple[Ints, Ints]:
    """Return positions `at`, and the linked addresses that their relative 32-bit fields refer to.

    `field`: the field's offset in the instruction; `size`: bytes of the instruction, whose end the
    value counts from; `address`: linked address of `data`.
    """
    return at, _words(data, at + field) + at + np.int64(size + address)


def _words(data: Bytes, at: Ints) -> Ints:
    """Read the signed 32-bit values at positions `at`, which need not be aligned."""
    four = data[at[:, None] + np.arange(4)]
    return np.ascontiguousarray(four).view("<i4").reshape(-1).astype(np.int64)


def _merged(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Merge two pairs of (positions, addresses), in order of position."""
    at, values = (np.concatenate([one[i], other[i]]) for i in range(2))
    order = np.argsort(at, kind="stable")
    return at[order], values[order]
