"""Memory images of interpreters that never ran, built from a FrameOffsets, and recorded ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.unwinder.errors import UnreadableMemory
from rankscope.unwinder.interpreter.offsets import (
    ABSENT,
    DEBUG_COOKIE,
    TABLES,
    FrameOffsets,
    LastInstruction,
    parse_debug_offsets,
)

THREAD_ID = 0x7F00_DEAD_B740
NONE = 0x5555_0000_1000


@dataclass(frozen=True)
class _Published:
    """Where the groups of `_Py_DebugOffsets` begin in one version, and what differs in them."""

    size: int
    ceval_gil: int
    thread: int
    frame: int
    code: int
    bytes: int
    unicode: int
    thread_ids: tuple[int, ...]  # what follows current_frame in the group of the thread state
    owner: int
    bytecode: int
    head: int  # of the interpreters, in the runtime
    next: int  # of an interpreter; threads_head is 72 or 80 behind it


# 3.13.0 as gdb prints its DWARF, 3.14.0 as py-spy's bindings have it, 3.15.2 as it lies in Debian's executable.
_PUBLISHED = {
    13: _Published(584, 112, 152, 224, 272, 512, 536, (152, 160, 216, 40), 70, 200, 632, 7264),
    14: _Published(760, 120, 176, 248, 312, 592, 616, (152, 160, 216, 40), 74, 208, 928, 7272),
    15: _Published(760, 120, 176, 312, 376, 688, 712, (80, 88, 96, 176, 184, 256, 32), 74, 208, 936, 7264),
}


def debug_offsets(minor: int, free_threaded: int = 0) -> bytes:
    """`_Py_DebugOffsets` of 3.13, 3.14 or 3.15, the fields that are used and their neighbours."""
    p = _PUBLISHED[minor]
    data = bytearray(p.size)
    data[:8] = DEBUG_COOKIE
    struct.pack_into("<QQ", data, 8, 0x0300_00F0 | minor << 16, free_threaded)
    struct.pack_into("<3Q", data, 24, 283320, 600, p.head)
    struct.pack_into("<4Q", data, 48, 215720, p.next + 8, p.next, 7336 if minor == 15 else 7344)
    struct.pack_into("<Q", data, p.ceval_gil, 16)
    thread = (336, 0, 8, 16, 72, *p.thread_ids)
    struct.pack_into(f"<{len(thread)}Q", data, p.thread, *thread)
    struct.pack_into("<6Q", data, p.frame, 80, 8, 0, 56, 72, p.owner)
    struct.pack_into("<10Q", data, p.code, 216, 112, 120, 128, 136, 68, 52, 96, 104, p.bytecode)
    struct.pack_into("<3Q", data, p.bytes, 40, 16, 32)
    struct.pack_into("<4Q", data, p.unicode, 64, 32, 16, 40)
    return bytes(data)


def layout(minor: int) -> FrameOffsets:
    if minor in TABLES:
        return TABLES[minor]
    found = parse_debug_offsets(debug_offsets(minor))
    assert found is not None
    assert found.offsets is not None
    return found.offsets


class Image:
    """Sparse memory. What was never written cannot be read."""

    def __init__(self) -> None:
        self.bytes: dict[int, int] = {}
        self._next = 0x7F12_0000_0000

    def write(self, address: int, data: bytes) -> None:
        self.bytes.update(enumerate(data, address))

    def u64(self, address: int, value: int) -> None:
        self.write(address, struct.pack("<Q", value & (1 << 64) - 1))

    def i32(self, address: int, value: int) -> None:
        self.write(address, struct.pack("<i", value))

    def new(self, size: int) -> int:
        address, self._next = self._next, self._next + (size + 31) // 16 * 16
        self.write(address, bytes(size))
        return address

    def read(self, address: int, size: int) -> bytes:
        try:
            return bytes([self.bytes[at] for at in range(address, address + size)])
        except KeyError:
            raise UnreadableMemory(f"{size} bytes at {address:#x}") from None


class Chunks:
    """Recorded memory: pieces that were read once."""

    def __init__(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        self._image = Image()
        for address, data in pieces:
            self._image.write(address, data)

    def read(self, address: int, size: int) -> bytes:
        return self._image.read(address, size)


class Interpreter:
    """Writes the structures of one CPython into an image."""

    def __init__(self, offsets: FrameOffsets) -> None:
        self.offsets = offsets
        self.image = Image()

    def text(self, value: str) -> int:
        image, offsets = self.image, self.offsets
        widest = max(map(ord, value), default=0)
        width = 1 if widest < 256 else 2 if widest < 65536 else 4
        data = value.encode({1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[width], "surrogatepass")
        is_ascii = widest < 128
        start = offsets.ascii_text if is_ascii else offsets.compact_text
        address = image.new(start + len(data) + width)
        image.u64(address + offsets.str_length, len(value))
        image.i32(address + offsets.str_state, 1 | width << 2 | 1 << 5 | is_ascii << 6)
        image.write(address + start, data)
        return address

    def code(
        self,
        name: str = "f",
        file: str = "/job/train.py",
        first_line: int = 1,
        table: bytes = b"",
        counts: tuple[int, int, int] = (2, 1, 3),  # argcount, kwonlyargcount, flags
    ) -> int:
        image, o = self.image, self.offsets
        address = image.new(256)
        for field, value in zip((o.code_argcount, o.code_kwonlyargcount, o.code_flags), counts, strict=True):
            image.i32(address + field, value)
        image.i32(address + o.code_firstlineno, first_line)
        image.u64(address + o.code_filename, self.text(file))
        image.u64(address + o.code_name, self.text(name.rpartition(".")[2]))
        if o.code_qualname != ABSENT:
            image.u64(address + o.code_qualname, self.text(name))
        lines = image.new(o.bytes_data + len(table) + 1)
        image.u64(lines + o.bytes_length, len(table))
        image.write(lines + o.bytes_data, table)
        image.u64(address + o.code_linetable, lines)
        return address

    def frame(self, code: int, lasti: int = 0, previous: int = 0, owner: int = 0, tag: int | None = None) -> int:
        """`lasti` in code units; -1 has not begun."""
        image, o = self.image, self.offsets
        # No byte more than the structure has: a frame may be the last thing on its page.
        size = max(o.frame_code, o.frame_previous, o.frame_last) + 8
        address = image.new(max(size, o.frame_owner + 1 if o.frame_owner != ABSENT else 0))
        image.u64(address + o.frame_code, code | (o.tag_bits & 1 if tag is None else tag))
        image.u64(address + o.frame_previous, previous)
        if o.last_instruction is LastInstruction.POINTER:
            image.u64(address + o.frame_last, code + o.code_bytecode + 2 * lasti)
        else:
            scale = 2 if o.last_instruction is LastInstruction.BYTES and lasti >= 0 else 1
            image.i32(address + o.frame_last, lasti * scale)
        if o.frame_owner != ABSENT:
            image.write(address + o.frame_owner, bytes([owner]))
        return address

    def shim(self, previous: int = 0) -> int:
        """The frame below an evaluation that C began: 3.12 has a trampoline's code in it, 3.13 and later None."""
        if self.offsets.minor == 12:
            return self.frame(self.code("<shim>", "<shim>"), 0, previous, owner=3)
        return self.frame(NONE, 0, previous, owner=3 if self.offsets.minor == 13 else 4)

    def tstate(self, frame: int, thread_id: int = THREAD_ID) -> int:
        image, o = self.image, self.offsets
        address = image.new(max(o.tstate_frame, o.tstate_thread_id, 176) + 8)
        image.u64(address + o.tstate_thread_id, thread_id)
        if o.cframe_frame != ABSENT:
            cframe = image.new(o.cframe_frame + 8)
            image.u64(cframe + o.cframe_frame, frame)
            frame = cframe
        image.u64(address + o.tstate_frame, frame)
        return address

    def stack(self, depth: int, **code: object) -> tuple[int, list[int]]:
        """(PyThreadState, code addresses innermost first) of a thread with `depth` frames."""
        frame, codes = 0, []
        for level in range(depth):
            codes.insert(0, self.code(f"f{level}", first_line=level + 1))
            frame = self.frame(codes[0], level, frame)
        return self.tstate(frame), codes
