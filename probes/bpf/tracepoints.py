"""Records that programs at tracepoints receive, whose layout this kernel publishes in tracefs.

A program at the tracepoint category:name takes a `struct rs_at__category__name *`. It is compiled
with each field at a fictitious offset, beyond any structure of ours, that identifies the field;
loading replaces it by the offset in this kernel. So compiled code serves all kernels, including
real-time ones, whose records begin with one more field.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from rankscope.probes.bpf.compiler.compiled import CompileFailed
from rankscope.probes.bpf.programs import INSTRUCTION
from rankscope.probes.host.procfs import ROOT, read_file

TRACEFS = (Path("sys/kernel/tracing"), Path("sys/kernel/debug/tracing"))
_ASKED = re.compile(r"\bstruct rs_at__(\w+?)__(\w+)\b")
_FIELD = re.compile(r"^\s*field:[^;]*?(\w+)(?:\[[^;]*\])?;\s*offset:(\d+);\s*size:(\d+);", re.MULTILINE)
_MOST_BYTES = 65536
_FIRST, _APART = 0x5000, 32  # fictitious offsets: above all structures of ours, a field each
_LOADS, _LOAD_CLASS = 7, 1  # the low bits of an operation, BPF_LDX: a load from memory


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a tracepoint's record that a program reads; `bytes` is its size."""

    event: str  # category:name
    name: str
    type: str  # in C
    bytes: int


FIELDS = (
    Field("sched:sched_switch", "prev_comm", "char", 16),
    Field("sched:sched_switch", "prev_pid", "int", 4),
    Field("sched:sched_switch", "prev_state", "long", 8),
    Field("sched:sched_switch", "next_pid", "int", 4),
    Field("sched:sched_waking", "pid", "int", 4),
    Field("sched:sched_process_exit", "pid", "int", 4),
    Field("syscalls:sys_enter_read", "fd", "unsigned long", 8),
    Field("syscalls:sys_exit_read", "ret", "long", 8),
)


def read(event: str, name: str, root: Path = ROOT) -> bytes:
    """Read a file of a tracepoint's folder in tracefs, such as `id` or `format`; `event`: category:name.

    FileNotFoundError where this kernel has no such tracepoint.
    """
    for folder in TRACEFS:
        with contextlib.suppress(FileNotFoundError):
            return read_file(str(root / folder / "events" / event.replace(":", "/") / name), _MOST_BYTES)
    raise FileNotFoundError(f"no tracepoint {event} in this kernel")


def declarations(text: str) -> str:
    """Generate the C structures that `text` uses, the same on all kernels.

    Raises CompileFailed for a tracepoint none of whose fields is known.
    """
    found = []
    for category, name in dict.fromkeys(_ASKED.findall(text)):
        members, at = [], 0
        for number, field in enumerate(FIELDS):
            if field.event == f"{category}:{name}":
                extent = f"[{field.bytes}]" if field.type == "char" else ""
                members.append(f"char rs_gap_{at}[{_place(number) - at}]; {field.type} {field.name}{extent};")
                at = _place(number) + field.bytes
        if not members:
            raise CompileFailed(f"tracepoint {category}:{name}: none of its fields is known (tracepoints.py)")
        found.append(f"struct rs_at__{category}__{name} {{ {' '.join(members)} }};\n")
    return "".join(found)


def _place(number: int) -> int:
    """Return the fictitious offset of field `number`.

    Text fields are 4 modulo 8, so that they are read 4 bytes at a time: no larger alignment is
    certain on all kernels.
    """
    return _FIRST + _APART * number + (4 if FIELDS[number].type == "char" else 0)


def placed(code: bytes, root: Path = ROOT) -> bytes:
    """Patch the field offsets of this kernel into the instructions that read them; return the new code.

    FileNotFoundError where this kernel has no such tracepoint, ValueError where a field has another size than
    was compiled for.
    """
    instructions = np.frombuffer(code, INSTRUCTION).copy()
    reads = (instructions["operation"] & _LOADS == _LOAD_CLASS) & (instructions["offset"] >= _FIRST)
    numbers = (instructions["offset"][reads] - _FIRST) // _APART
    shift = {int(number): _offset(FIELDS[number], root) - _place(int(number)) for number in set(numbers.tolist())}
    instructions["offset"][reads] += np.asarray([shift[int(number)] for number in numbers], np.int16)
    return bytes(instructions.tobytes())


def _offset(field: Field, root: Path) -> int:
    """Return the byte offset of a field in this kernel's records.

    Raises ValueError where it is missing or has another size, FileNotFoundError where the tracepoint is missing.
    """
    offset, size = layout(field.event, root).get(field.name, (0, 0))
    if size != field.bytes:
        raise ValueError(f"{field.name} has {size} bytes in this kernel's records, and not {field.bytes}")
    return offset


@lru_cache(maxsize=16)
def layout(event: str, root: Path = ROOT) -> Mapping[str, tuple[int, int]]:
    """Parse (offset, size in bytes) of each field of a tracepoint's records, by name. Raises FileNotFoundError."""
    found = _FIELD.findall(read(event, "format", root).decode("ascii", "replace"))
    return {name: (int(offset), int(size)) for name, offset, size in reversed(found)}
