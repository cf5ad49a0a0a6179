"""Decode the stack that rs_walk writes to the kernel's map: `struct rs_stack` of walk.bpf.h.

In: its bytes. Out: KernelStack: addresses of code objects, which names/code.py resolves.
tests/unit/unwinder compare this with the header as a C compiler lays it out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

MAX_FRAMES = 128  # RS_MAX_FRAMES
_HEADER = struct.Struct("<IIII")  # n, truncated, status, pad
_FRAME = struct.Struct("<QiI")


class WalkStatus(IntEnum):
    """How a walk ended (enum rs_walk_status)."""

    OK = 0
    NO_FRAME = 1
    STALE_TSTATE = 2
    READ_FAILED = 3
    CYCLE_OR_TOO_DEEP = 4


class RawFrame(NamedTuple):
    """A frame: the address of its code object, and the code unit of its current instruction (-1 unknown).

    `checksum` distinguishes the code object from a later one at the same address; 0 where unknown.
    """

    code: int
    lasti: int
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class KernelStack:
    """A stack of frames, innermost first. `truncated`: more frames exist towards the root."""

    frames: tuple[RawFrame, ...]
    truncated: bool = False
    status: int = WalkStatus.OK


def decode(record: bytes) -> KernelStack:
    """Decode a `struct rs_stack`; of a truncated one, the whole frames. Never raises."""
    if len(record) < _HEADER.size:
        return KernelStack((), status=WalkStatus.READ_FAILED)
    count, truncated, status, _ = _HEADER.unpack_from(record)
    count = min(count, MAX_FRAMES, (len(record) - _HEADER.size) // _FRAME.size)
    frames = _FRAME.iter_unpack(record[_HEADER.size : _HEADER.size + count * _FRAME.size])
    return KernelStack(tuple(map(RawFrame._make, frames)), bool(truncated), status)
