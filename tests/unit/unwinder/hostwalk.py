"""walk.bpf.h as an ordinary library: the same C that runs in the kernel, fed by any Memory."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rankscope.unwinder.errors import UnwindError
from rankscope.unwinder.interpreter.memory import Memory
from rankscope.unwinder.walk.stack import MAX_FRAMES, WalkStatus, decode

WALK = Path(__file__).parents[3] / "unwinder" / "walk" / "walk.bpf.h"

OK, NO_FRAME, STALE, READ_FAILED, CYCLE = WalkStatus

_SOURCE = f"""
#define RS_HOST 1
#include "{WALK}"
int walk(const void *offsets, u64 tstate, u64 expected, struct rs_stack *out, int (*reader)(void *, u32, u64))
{{
    rs_host_read = reader;
    return rs_walk(offsets, tstate, expected, out, 0);
}}
int leaf(const void *offsets, u64 tstate, u64 expected, struct rs_leaf *out, int (*reader)(void *, u32, u64))
{{
    rs_host_read = reader;
    return rs_leaf(offsets, tstate, expected, out);
}}
unsigned offsets_size(void) {{ return sizeof(struct rs_offsets); }}
"""

_Reader = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64)


class _Frame(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint64), ("lasti", ctypes.c_int32), ("checksum", ctypes.c_uint32))


class _Stack(ctypes.Structure):
    _fields_ = (
        ("n", ctypes.c_uint32),
        ("truncated", ctypes.c_uint32),
        ("status", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("frames", _Frame * MAX_FRAMES),
    )


class _Leaf(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("frame", "code", "last", "previous"))


@dataclass(frozen=True)
class Walked:
    status: int
    truncated: bool
    frames: tuple[tuple[int, int, int], ...]  # code, lasti, checksum
    reads: int


@dataclass(frozen=True)
class Leaf:
    status: int
    frame: int
    code: int
    last: int
    previous: int


class HostWalk:
    """The compiled library. `build` needs gcc."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for function in (library.walk, library.leaf):
            function.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, _Reader]

    @classmethod
    def build(cls, folder: Path) -> HostWalk:
        source, target = folder / "walk.c", folder / "walk.so"
        source.write_text(_SOURCE)
        command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(target), str(source)]
        subprocess.run(command, check=True, timeout=60)
        return cls(ctypes.CDLL(str(target)))

    @property
    def offsets_size(self) -> int:
        return int(self._library.offsets_size())

    def walk(self, record: bytes, memory: Memory, tstate: int, expected: int) -> Walked:
        stack, (reader, count) = _Stack(), _reader(memory)
        status = self._library.walk(record, tstate, expected, ctypes.byref(stack), reader)
        assert status == stack.status
        assert stack.n <= MAX_FRAMES
        frames = tuple((f.code, f.lasti, f.checksum) for f in stack.frames[: stack.n])
        decoded = decode(bytes(stack))
        assert tuple((f.code, f.lasti, f.checksum) for f in decoded.frames) == frames
        assert (decoded.truncated, decoded.status) == (bool(stack.truncated), stack.status)
        return Walked(status, bool(stack.truncated), frames, len(count))

    def leaf(self, record: bytes, memory: Memory, tstate: int, expected: int) -> Leaf:
        leaf, (reader, _) = _Leaf(), _reader(memory)
        status = self._library.leaf(record, tstate, expected, ctypes.byref(leaf), reader)
        return Leaf(status, leaf.frame, leaf.code, leaf.last, leaf.previous)


def _reader(memory: Memory) -> tuple[object, list[int]]:
    count: list[int] = []

    def read(to: int, size: int, address: int) -> int:
        count.append(size)
        try:
            data = memory.read(address, size)
        except UnwindError:
            return -14
        ctypes.memmove(to, data, size)
        return 0

    return _Reader(read), count
