"""Memory layouts of CPython that the stack walk and the symboliser need, per version.

All offsets are bytes in 64-bit release builds with the GIL. The tables for 3.8-3.12 are the same in
every patch release (compared with the DWARF of 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1, and with
the output of an aarch64 compiler for 3.11.2); from 3.13 the interpreter publishes its own layout at
the start of `_PyRuntime` (`_Py_DebugOffsets`, Include/internal/pycore_debug_offsets.h), which is
parsed and checked, never assumed.
"""

from __future__ import annotations

import enum
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

ABSENT = 0xFFFF
"""Offset of a field that a version lacks; larger than any structure."""

DEBUG_COOKIE = b"xdebugpy"
DEBUG_OFFSETS_BYTES = 760
"""Bytes that `parse_debug_offsets` needs. 3.13 publishes 584, 3.14 760, 3.15 more."""


class LastInstruction(enum.Enum):
    """The unit in which a frame stores its current instruction."""

    BYTES = "bytes"  # f_lasti counts bytes: 3.8, 3.9
    UNITS = "units"  # f_lasti counts code units of two bytes: 3.10
    POINTER = "pointer"  # a pointer into the bytecode: 3.11 and later


class LineTable(enum.Enum):
    """The three formats of line tables (linetable.py)."""

    LNOTAB = "lnotab"  # 3.8, 3.9
    LINES = "lines"  # 3.10, PEP 626
    LOCATIONS = "locations"  # 3.11 and later


@dataclass(frozen=True, slots=True)
class FrameOffsets:
    """The memory layout of one CPython version: field offsets in bytes.

    From the start of the structure that is named first in each field.
    """

    minor: int
    runtime_interpreters_head: int
    runtime_main_thread: int  # pthread_self() of the main thread; ABSENT from 3.13
    runtime_gil: int  # the GIL itself, inside _PyRuntime; ABSENT from 3.12
    interpreter_next: int
    interpreter_threads_head: int
    interpreter_gil: int  # a pointer to the GIL; ABSENT before 3.12
    tstate_next: int
    tstate_interp: int
    tstate_frame: int  # the frame, or the _PyCFrame where `cframe_frame` is there
    cframe_frame: int
    tstate_thread_id: int
    tstate_native_thread_id: int  # ABSENT before 3.11
    frame_code: int
    frame_previous: int
    frame_last: int  # f_lasti, prev_instr or instr_ptr, as `last_instruction` says
    frame_owner: int  # ABSENT before 3.12: no shim frames
    last_instruction: LastInstruction
    tag_bits: int  # low bits of the frame's code pointer that are not address (3.14, cpython #127705)
    first_shim_owner: int
    code_argcount: int
    code_kwonlyargcount: int
    code_flags: int
    code_firstlineno: int
    code_filename: int
    code_name: int
    code_qualname: int  # ABSENT before 3.11
    code_linetable: int
    code_bytecode: int  # 0 before 3.11: the frame counts from the start of the bytecode
    line_table: LineTable
    ascii_text: int  # sizeof(PyASCIIObject): where the text of an ASCII str begins
    compact_text: int  # sizeof(PyCompactUnicodeObject): where other text begins
    str_length: int = 16
    str_state: int = 32
    bytes_length: int = 16
    bytes_data: int = 32

    def pack(self, none_address: int = 0) -> bytes:
        """Encode this layout as `struct rs_offsets` of walk.bpf.h, which the kernel needs to walk stacks.

        `none_address`: address of `_Py_NoneStruct`; shim frames of 3.13 and later hold it in place of code.
        Raises ValueError where fields of one structure lie too far apart.
        """
        tstate = _Span.of(self.tstate_frame, self.tstate_thread_id, width=8)
        frame_fields = [self.frame_code, self.frame_previous, self.frame_last]
        owner = self.frame_owner != ABSENT
        frame = _Span.of(*frame_fields, width=8, also=(self.frame_owner,) if owner else ())
        code_fields = [self.code_argcount, self.code_kwonlyargcount, self.code_flags, self.code_firstlineno]
        code = _Span.of(*code_fields, width=4)
        return _RECORD.pack(
            none_address,
            ~self.tag_bits & 0xFFFF_FFFF_FFFF_FFFF,
            tstate.start,
            tstate.size,
            self.tstate_frame - tstate.start,
            self.tstate_thread_id - tstate.start,
            self.cframe_frame,
            frame.start,
            frame.size,
            *(field - frame.start for field in frame_fields),
            self.frame_owner - frame.start if owner else 0,
            self.first_shim_owner,
            0 if self.last_instruction is LastInstruction.POINTER else 32,
            0 if self.last_instruction is LastInstruction.UNITS else 1,
            code.start,
            code.size,
            *(field - code.start for field in code_fields),
            self.code_bytecode,
        )


_RECORD = struct.Struct("<QQ21H6x")
RECORD_BYTES = _RECORD.size
SPAN_CAP_BYTES = 256
"""Size of the kernel's buffer for the needed part of a structure, read at once (RS_SPAN in walk.bpf.h)."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A byte range of a structure, read at once."""

    start: int
    size: int

    @classmethod
    def of(cls, *fields: int, width: int, also: Sequence[int] = ()) -> _Span:
        """Return the byte range that covers fields of `width` bytes and the one-byte fields `also`.

        All are offsets in a structure. Raises ValueError where the range exceeds SPAN_CAP_BYTES - 8.
        """
        start = min((*fields, *also))
        end = max((*(field + width for field in fields), *(field + 1 for field in also)))
        # The scratch has room for one 8-byte field at its end, whatever a forged offset points to.
        if end - start > SPAN_CAP_BYTES - 8:
            raise ValueError(f"fields are {end - start} bytes apart")
        return cls(start, end - start)


_V38 = FrameOffsets(
    minor=8,
    runtime_interpreters_head=32,
    runtime_main_thread=72,
    runtime_gil=1152,
    interpreter_next=0,
    interpreter_threads_head=8,
    interpreter_gil=ABSENT,
    tstate_next=8,
    tstate_interp=16,
    tstate_frame=24,
    cframe_frame=ABSENT,
    tstate_thread_id=176,
    tstate_native_thread_id=ABSENT,
    frame_code=32,
    frame_previous=24,
    frame_last=104,
    frame_owner=ABSENT,
    last_instruction=LastInstruction.BYTES,
    tag_bits=0,
    first_shim_owner=ABSENT,
    code_argcount=16,
    code_kwonlyargcount=24,
    code_flags=36,
    code_firstlineno=40,
    code_filename=104,
    code_name=112,
    code_qualname=ABSENT,
    code_linetable=120,
    code_bytecode=0,
    line_table=LineTable.LNOTAB,
    ascii_text=48,
    compact_text=72,
)
_V39 = replace(_V38, minor=9, runtime_gil=352)
_V310 = replace(_V39, minor=10, frame_last=96, last_instruction=LastInstruction.UNITS, line_table=LineTable.LINES)
_V311 = replace(
    _V310,
    minor=11,
    runtime_interpreters_head=40,
    runtime_main_thread=80,
    runtime_gil=360,
    interpreter_threads_head=16,
    tstate_frame=56,
    cframe_frame=8,
    tstate_thread_id=152,
    tstate_native_thread_id=160,
    frame_code=32,
    frame_previous=48,
    frame_last=56,
    last_instruction=LastInstruction.POINTER,
    code_argcount=56,
    code_kwonlyargcount=64,
    code_flags=48,
    code_firstlineno=72,
    code_filename=112,
    code_name=120,
    code_qualname=128,
    code_linetable=136,
    code_bytecode=184,
    line_table=LineTable.LOCATIONS,
)
_V312 = replace(
    _V311,
    minor=12,
    runtime_main_thread=64,
    runtime_gil=ABSENT,
    interpreter_threads_head=72,
    interpreter_gil=384,
    cframe_frame=0,
    tstate_thread_id=136,
    tstate_native_thread_id=144,
    frame_code=0,
    frame_previous=8,
    frame_owner=70,
    first_shim_owner=3,
    code_argcount=52,
    code_kwonlyargcount=60,
    code_firstlineno=68,
    code_bytecode=192,
    ascii_text=40,
    compact_text=56,
)

TABLES: dict[int, FrameOffsets] = {8: _V38, 9: _V39, 10: _V310, 11: _V311, 12: _V312}
"""Minor version of CPython 3 -> layout, for versions that do not publish it."""

GIL_BYTES = 32 + 2 * (48 + (48 if platform.machine() == "aarch64" else 40))
"""sizeof(struct _gil_runtime_state), 3.8-3.13 (DWARF): four words, two pthread_cond_t and two pthread_mutex_t of glibc."""


@dataclass(frozen=True, slots=True)
class DebugOffsets:
    """The version, kind and layout that an interpreter of 3.13 or later publishes. `offsets` is
    None where `free_threaded`.
    """

    version_hex: int
    free_threaded: bool
    offsets: FrameOffsets | None


@dataclass(frozen=True, slots=True)
class _Groups:
    """Start offsets of the groups of `_Py_DebugOffsets` in one version, and of fields that moved in them."""

    thread_state: int
    interpreter_frame: int
    code_object: int
    bytes_object: int
    unicode_object: int
    ceval_gil: int
    thread_id: int  # index in the group; native_thread_id follows it
    tag_bits: int


_GROUPS = {
    13: _Groups(152, 224, 272, 512, 536, ceval_gil=112, thread_id=5, tag_bits=0),
    14: _Groups(176, 248, 312, 592, 616, ceval_gil=120, thread_id=5, tag_bits=3),
    15: _Groups(176, 312, 376, 688, 712, ceval_gil=120, thread_id=8, tag_bits=3),
}


def parse_debug_offsets(data: bytes) -> DebugOffsets | None:
    """Parse the layout that `data`, the start of `_PyRuntime`, publishes; None if none (3.12 and earlier).

    Raises ValueError where its version is unknown, or a value in it is impossible.
    """
    if data[:8] != DEBUG_COOKIE:
        return None
    version_hex, free_threaded = struct.unpack_from("<QQ", data.ljust(24, b"\0"), 8)
    major, minor = version_hex >> 24, version_hex >> 16 & 0xFF
    if version_hex >> 32 or major != 3 or minor not in _GROUPS:
        raise ValueError(f"debug offsets of Python {major & 0xFF}.{minor} are not known")
    if free_threaded:
        return DebugOffsets(version_hex, True, None)
    offsets = _published(data, minor)
    offsets.pack()  # raises ValueError where fields lie too far apart to be one structure
    return DebugOffsets(version_hex, False, offsets)


def _published(data: bytes, minor: int) -> FrameOffsets:
    """Build the layout of 3.`minor` from its `_Py_DebugOffsets` in `data`, field by field. Raises ValueError."""
    groups = _GROUPS[minor]
    if len(data) < groups.unicode_object + 32:
        raise ValueError("debug offsets end too early")

    def field(group: int, index: int, cap: int = 4096) -> int:
        value = int(struct.unpack_from("<Q", data, group + 8 * index)[0])
        if value > cap:
            raise ValueError(f"debug offset {value} at {group + 8 * index} cannot be true")
        return value

    thread, frame, code = groups.thread_state, groups.interpreter_frame, groups.code_object
    for group in (thread, frame, code, groups.bytes_object, groups.unicode_object):
        if not field(group, 0):
            raise ValueError("a structure of no size in the debug offsets")
    argcount, firstlineno = field(code, 6), field(code, 5)
    return replace(
        _V312,
        minor=minor,
        runtime_interpreters_head=field(24, 2, 1 << 20),
        runtime_main_thread=ABSENT,
        # PyInterpreterState is more than 200 kB.
        interpreter_next=field(48, 2, 1 << 20),
        interpreter_threads_head=field(48, 3, 1 << 20),
        interpreter_gil=field(groups.ceval_gil, 0, 1 << 20),
        tstate_next=field(thread, 2),
        tstate_interp=field(thread, 3),
        tstate_frame=field(thread, 4),
        cframe_frame=ABSENT,
        tstate_thread_id=field(thread, groups.thread_id),
        tstate_native_thread_id=field(thread, groups.thread_id + 1),
        frame_previous=field(frame, 1),
        frame_code=field(frame, 2),
        frame_last=field(frame, 3),
        frame_owner=field(frame, 5),
        tag_bits=groups.tag_bits,
        code_filename=field(code, 1),
        code_name=field(code, 2),
        code_qualname=field(code, 3),
        code_linetable=field(code, 4),
        code_firstlineno=firstlineno,
        code_argcount=argcount,
        # Not published. In 3.12-3.14: flags, argcount, posonlyargcount, kwonlyargcount, stacksize, firstlineno.
        code_kwonlyargcount=argcount + 8,
        code_flags=argcount - 4 if argcount >= 4 else ABSENT,
        code_bytecode=field(code, 9),
        bytes_length=field(groups.bytes_object, 1),
        bytes_data=field(groups.bytes_object, 2),
        str_state=field(groups.unicode_object, 1),
        str_length=field(groups.unicode_object, 2),
        ascii_text=field(groups.unicode_object, 3),
        # One pointer and one length more than PyASCIIObject.
        compact_text=field(groups.unicode_object, 3) + 16,
    )
