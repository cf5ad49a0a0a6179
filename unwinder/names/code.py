"""Names for code objects: read from the target's memory once each, checked, escaped and cached.

A code object is known by its address and by the checksum that the kernel took from it (walk.bpf.h,
rs_checksum): where the memory gives another checksum now, the object died and its name with it. The
identity of a function is (name, file, first line); the current line is extra.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field

from rankscope.probes.base.text import printable
from rankscope.unwinder.errors import UnreadableMemory
from rankscope.unwinder.interpreter.memory import Memory, read_u64
from rankscope.unwinder.interpreter.offsets import ABSENT, FrameOffsets, LineTable
from rankscope.unwinder.names import bytecode
from rankscope.unwinder.names.kept import BoundedCache
from rankscope.unwinder.names.linetable import line_at

NAME_CAP = 1024
"""Limit of characters of a name. A longer path loses its head, any other name its tail."""

LINE_TABLE_CAP_BYTES = 128 * 1024
BYTECODE_CAP_BYTES = 32 * 1024  # loops of longer functions are not looked for
_LENGTH_CAP = 1 << 20  # a longer str is no name: the memory is not what it seems
_SHARED_TABLE_BYTES = 4096  # lines of longer tables are not cached across processes
# Bytes of a code object and of a frame beside their texts and tables; of one loop's pair of
# numbers.
_CODE_BYTES, _FRAME_BYTES, _LOOP_BYTES = 1024, 256, 128
_CHARACTER_BYTES = 4

UNKNOWN_NAME = "?"


@dataclass(frozen=True, slots=True)
class Frame:
    """One named frame. `line` is None where only the function is known; `stale`: the code object is
    gone, so there are no names.

    `unit`: code unit of the current instruction, -1 unknown; `loops`: first code units of the loops
    around it, outermost first.
    """

    name: str  # qualified name (3.11+), else the bare name
    file: str
    first_line: int
    line: int | None
    stale: bool
    unit: int = -1
    loops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Code:
    """One code object: names, line table (None: unreadable), loops, and the frames resolved so far."""

    name: str
    file: str
    first_line: int
    line_table: bytes | None
    loops: bytecode.Loops = ()
    # by code unit, those resolved so far
    frames: dict[int, Frame] = field(default_factory=dict, compare=False)

    @property
    def size(self) -> int:
        """Estimated bytes of memory this takes, at most; its frames not counted."""
        text = _CHARACTER_BYTES * (len(self.name) + len(self.file))
        return _CODE_BYTES + text + len(self.line_table or b"") + _LOOP_BYTES * len(self.loops)


def checksum(argcount: int, kwonlyargcount: int, flags: int, first_line: int) -> int:
    """Compute the checksum of a code object as rs_checksum in walk.bpf.h does, modulo 2**32."""
    return ((argcount << 25) + (kwonlyargcount << 18) + (flags << 10) + first_line) & 0xFFFF_FFFF


class Symboliser:
    """Names the frames of one process from its memory; one per observed process, with a bounded cache."""

    def __init__(self, memory: Memory, offsets: FrameOffsets, code_type_address: int = 0) -> None:
        """Create it; `code_type_address` is that of `PyCode_Type`, 0 leaves the type of objects
        unchecked.
        """
        self._memory = memory
        self._offsets = offsets
        self._code_type = code_type_address
        self._codes: BoundedCache[_Code] = BoundedCache()

    def resolve(self, code: int, lasti: int = -1, expected: int = 0) -> Frame:
        """Name the frame at code unit `lasti` of the code object at `code`.

        `expected`: the checksum that the code object must have, 0 if unknown. With `lasti` -1,
        `line` is None. Raises TargetGone; unreadable or forged memory gives a frame that is
        `stale`.
        """
        found = self._code(code, expected)
        if found is None:
            return Frame(UNKNOWN_NAME, UNKNOWN_NAME, 0, None, stale=True)
        frame = found.frames.get(lasti)
        if frame is not None:
            return frame
        line = None
        if lasti >= 0 and found.line_table is not None:
            find = _line_at if len(found.line_table) <= _SHARED_TABLE_BYTES else line_at
            line = find(self._offsets.line_table, found.line_table, found.first_line, lasti)
        around = bytecode.around(found.loops, lasti)
        frame = Frame(found.name, found.file, found.first_line, line, stale=False, unit=lasti, loops=around)
        found.frames[lasti] = frame
        self._codes.grew((code, expected), _FRAME_BYTES + _LOOP_BYTES * len(around))
        return frame

    def _code(self, address: int, expected: int) -> _Code | None:
        """Return the code object at `address`, cached; None where it is unreadable or not the `expected` one.

        `expected`: its checksum, 0 if unknown.
        """
        key = (address, expected)
        code = self._codes.get(key)
        if code is not None:
            return code
        try:
            code = read_code(self._memory, self._offsets, address, expected, self._code_type)
        except UnreadableMemory:
            code = None
        if code is None:
            return None  # not cached: the object may be half-made, and readable a little later
        self._codes.put(key, code, code.size)
        return code


@functools.lru_cache(maxsize=4096)
def _line_at(kind: LineTable, table: bytes, first_line: int, lasti: int) -> int | None:
    """Return the line of code unit `lasti`, by `line_at`, cached for all processes.

    The ranks of a job run the same code.
    """
    return line_at(kind, table, first_line, lasti)


def read_code(memory: Memory, offsets: FrameOffsets, address: int, expected: int, code_type: int = 0) -> _Code | None:
    """Read the code object at `address`, with its names; None where its memory holds no such object.

    `expected`: checksum that it must have, 0 for any; `code_type`: address that its type must have, 0 for
    any. Raises UnreadableMemory, TargetGone.
    """
    name_at = offsets.code_qualname if offsets.code_qualname != ABSENT else offsets.code_name
    pointers = (offsets.code_filename, name_at, offsets.code_linetable)
    numbers = (offsets.code_argcount, offsets.code_kwonlyargcount, offsets.code_flags, offsets.code_firstlineno)
    last = max(*pointers, *numbers)
    data = memory.read(address, last + 8)

    def number(at: int) -> int:
        return int(_I32.unpack_from(data, at)[0])

    def pointer(at: int) -> int:
        return int(_U64.unpack_from(data, at)[0])

    if code_type and pointer(8) != code_type:
        return None
    first_line = number(offsets.code_firstlineno)
    found = checksum(
        number(offsets.code_argcount), number(offsets.code_kwonlyargcount), number(offsets.code_flags), first_line
    )
    if expected and found != expected:
        return None
    name = read_str(memory, offsets, pointer(name_at))
    file = read_str(memory, offsets, pointer(offsets.code_filename), keep_tail=True)
    if name is None or file is None:
        return None
    return _Code(
        name,
        file,
        max(first_line, 0),
        _line_table(memory, offsets, pointer(offsets.code_linetable)),
        bytecode.loops(offsets.minor, _bytecode(memory, offsets, address)),
    )


def _line_table(memory: Memory, offsets: FrameOffsets, address: int) -> bytes | None:
    """Read the line table, a bytes object at `address`; None where unreadable, empty or too long."""
    try:
        length = read_u64(memory, address + offsets.bytes_length)
        if not 0 < length <= LINE_TABLE_CAP_BYTES:
            return None
        return memory.read(address + offsets.bytes_data, length)
    except UnreadableMemory:
        return None


def _bytecode(memory: Memory, offsets: FrameOffsets, code: int) -> bytes:
    """Read the bytecode of the code object at address `code`; b'' where unreadable or too long."""
    try:
        if offsets.code_bytecode:
            start, size = code + offsets.code_bytecode, 2 * read_u64(memory, code + _SIZE)
        else:
            text = read_u64(memory, code + _CO_CODE)
            start, size = text + offsets.bytes_data, read_u64(memory, text + offsets.bytes_length)
        return memory.read(start, size) if 0 < size <= BYTECODE_CAP_BYTES else b""
    except UnreadableMemory:
        return b""


_SIZE = 16  # ob_size of a code object from 3.11 on, in code units
_CO_CODE = 48  # co_code of 3.8-3.10
_I32 = struct.Struct("<i")
_U64 = struct.Struct("<Q")
_WIDTHS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}


def read_str(memory: Memory, offsets: FrameOffsets, address: int, keep_tail: bool = False) -> str | None:
    """Read a compact str object as printable text of at most NAME_CAP characters; None where it is no str.

    A longer one is cut with '…' at its end; with `keep_tail` at its beginning. Raises UnreadableMemory.
    """
    head = memory.read(address, max(offsets.str_length + 8, offsets.str_state + 4))
    length = _U64.unpack_from(head, offsets.str_length)[0]
    state = struct.unpack_from("<I", head, offsets.str_state)[0]
    width, compact, ascii_only = state >> 2 & 7, state >> 5 & 1, state >> 6 & 1
    encoding = _WIDTHS.get(width)
    if encoding is None or not compact or length > _LENGTH_CAP or (ascii_only and width != 1):
        return None
    start = address + (offsets.ascii_text if ascii_only else offsets.compact_text)
    cut = max(0, length - NAME_CAP)
    if cut and keep_tail:
        start += cut * width
    size = min(length, NAME_CAP) * width
    if not size:
        return ""
    text = printable(memory.read(start, size).decode(encoding, "replace"))
    if not cut:
        return text
    return "…" + text if keep_tail else text + "…"
