"""The stack that rs_walk leaves in the kernel's map, decoded: `struct rs_stack` of walk.bpf.h.

In: its bytes. Out: KernelStack, addresses of code objects that names/code.py puts into words. tests/unit/unwinder compare this
with what the C compiler makes of the header.
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
    """enum rs_walk_status: how a walk ended."""

    OK = 0
    NO_FRAME = 1
    STALE_TSTATE = 2
    READ_FAILED = 3
    CYCLE_OR_TOO_DEEP = 4


class RawFrame(NamedTuple):
    """A code object by its address, and the code unit that the frame stands at (-1 unknown).

    `checksum` tells the code object from another that comes to lie at the same address; 0 where it is not known.
    """

    code: int
    lasti: int
    checksum: int = 0


@dataclass(frozen=True, slots=True)
class KernelStack:
    """Frames innermost first. `truncated`: there are more towards the root."""

    frames: tuple[RawFrame, ...]
    truncated: bool = False
    status: int = WalkStatus.OK


def decode(record: bytes) -> KernelStack:
    """A `struct rs_stack`; of one that is cut short, the frames that are whole. Never raises."""
    if len(record) < _HEADER.size:
        return KernelStack((), status=WalkStatus.READ_FAILED)
    count, truncated, status, _ = _HEADER.unpack_from(record)
    count = min(count, MAX_FRAMES, (len(record) - _HEADER.size) // _FRAME.size)
    frames = _FRAME.iter_unpack(record[_HEADER.size : _HEADER.size + count * _FRAME.size])
    return KernelStack(tuple(map(RawFrame._make, frames)), bool(truncated), status)
