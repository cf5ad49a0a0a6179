"""Programs and libraries of targets: headers, symbols, unwind tables, code, names of functions."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import dataclass
from pathlib import Path

from campaignkit.fuzz.target import Target
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.elf import exports, return_sites
from rankscope.probes.elf.functions import FunctionTable
from rankscope.probes.elf.reader import GNU_EH_FRAME, ElfFile
from rankscope.unwinder.interpreter import gc
from rankscope.unwinder.interpreter.elf_facts import read_facts
from rankscope.unwinder.interpreter.offsets import LineTable
from rankscope.unwinder.names.demangle import readable
from rankscope.unwinder.names.linetable import line_at
from rankscope.unwinder.names.native import function_columns

_WANTED = ("PyGC_Collect", "_PyObject_GC_Malloc", "_PyRuntime")
_BASE = 0x1000  # of the code in `small_library`, in the file as in memory
_serial = 0


@dataclass(frozen=True, slots=True)
class InMemory:
    """A file that is none. Satisfies probes.elf.reader.FileBytes; `identity` is another one each time, as nothing may be remembered."""

    data: bytes
    name: str = "libfuzz.so"
    path: Path = Path("/nowhere")

    @property
    def identity(self) -> tuple[int, ...]:
        global _serial  # noqa: PLW0603
        _serial += 1
        return (_serial,)

    def pread(self, size: int, at: int) -> bytes:
        return self.data[at : at + size]


def _symbols(data: bytes) -> None:
    file = InMemory(data)
    attempts = (
        lambda: exports.find_functions(file, _WANTED),
        lambda: exports.find_names(file, _WANTED),
        lambda: exports.written_parts(file),
        lambda: exports.file_offsets(file, (0, _BASE, 1 << 63)),
        lambda: read_facts(file, _WANTED),
        lambda: function_columns(ElfFile(file)),
    )
    for attempt in attempts:
        # OverflowError: documented where numbers become places.
        with contextlib.suppress(RankscopeError, OverflowError):
            attempt()


def _code(data: bytes) -> None:
    file = InMemory(data)
    with contextlib.suppress(RankscopeError):
        gc.find_collectors(file, (3, 8))
    with contextlib.suppress(RankscopeError):
        for found in exports.find_functions(file, _WANTED[:1]).values():
            return_sites.leave_offsets(file, found)
    with contextlib.suppress(RankscopeError):
        table = FunctionTable(ElfFile(file))
        for start in table.starts[:64].tolist():
            table.size(start)


def _line(data: bytes) -> None:
    if len(data) >= 6:
        kind, first, unit = struct.unpack_from("<BHh", data)
        line_at(list(LineTable)[kind % 3], data[5:], first, unit)


def small_library() -> bytes:
    """A library of two kilobytes with all that is read: symbols, a section, unwind tables, two functions of which one calls the other."""
    collector = b"\x48\x89\xf8" + b"\x90" * 1600 + b"\xc3"
    code = b"\xe8\x0b\x00\x00\x00\xc3".ljust(16, b"\x90") + collector
    names = b"\0PyGC_Collect\0_PyRuntime\0_PyObject_GC_Malloc\0"
    sections = b"\0.PyRuntime\0.dynsym\0.dynstr\0"
    starts = ((_BASE, len(code[:16])), (_BASE + 16, len(collector)))
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", names.index(name), 0x12, 0, 1, address, size)
        for name, address, size in (
            (b"PyGC_Collect\0", _BASE, 6),
            (b"_PyObject_GC_Malloc\0", _BASE, 6),
            (b"_PyRuntime\0", 0x2000, 64),
        )
    )
    # Behind the program header: the unwind table, its entries, symbols, names; the code stands at _BASE.
    frames_at = 64 + 56 * 2
    entries_at = frames_at + 12 + 8 * len(starts)
    table = struct.pack("<BBBBII", 1, 0x1B, 0x03, 0x3B, 0, len(starts))
    entries = b""
    for number, (start, size) in enumerate(starts):
        at = entries_at + 16 * number
        table += struct.pack("<ii", start - frames_at, at - frames_at)
        entries += struct.pack("<IIiI", 12, 4, start - (at + 8), size)
    symbols_at = entries_at + len(entries)
    names_at = symbols_at + len(symbols)
    sections_at = names_at + len(names)
    headers_at = sections_at + len(sections)

    def header(name: bytes, kind: int, address: int, offset: int, size: int, link: int = 0) -> bytes:
        return struct.pack("<IIQQQQIIQQ", sections.index(name), kind, 0, address, offset, size, link, 0, 0, 0)

    headers = [
        bytes(64), header(b".PyRuntime\0", 1, 0x2000, _BASE, 64), header(b".dynsym\0", 11, 0, symbols_at, len(symbols), 3),
        header(b".dynstr\0", 3, 0, names_at, len(names)), header(b"\0", 3, 0, sections_at, len(sections)),
    ]  # fmt: skip
    ident = b"\x7fELF\x02\x01".ljust(16, b"\0")
    head = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, 62, 1, 0, 64, headers_at, 0, 64, 56, 2, 64, len(headers), 4)
    end = _BASE + len(code)
    segments = struct.pack("<IIQQQQQQ", 1, 7, 0, 0, 0, end, end, 4096)
    segments += struct.pack("<IIQQQQQQ", GNU_EH_FRAME, 4, frames_at, frames_at, 0, len(table), len(table), 4)
    front = head + segments + table + entries + symbols + names + sections + b"".join(headers)
    assert len(front) <= _BASE
    return front.ljust(_BASE, b"\0") + code


TARGETS = (
    Target("elf", "ELF headers, sections, symbol tables", _symbols, lambda: [small_library()], longest_bytes=32768),
    Target(
        "eh-frame",
        "unwind tables, and code between them: collectors, return instructions",
        _code,
        lambda: [small_library()],
        longest_bytes=8192,
    ),
    Target(
        "line-tables",
        "line tables of CPython 3.8 to 3.15",
        _line,
        lambda: [bytes((kind, 1, 0, 9, 0)) + (lambda: 0).__code__.co_linetable for kind in range(3)],
    ),
    Target(
        "symbols",
        "C++ symbols made readable",
        lambda data: readable(data.decode("ascii", "replace")),
        lambda: [
            b"_ZN2at6native3addERKNS_6TensorES3_",
            b"_ZTh8_N1a1bEv",
            b"_ZNSt6vectorIiSaIiEE9push_backEOi",
            b"plain.cold@@V_1",
            b"_Z" + b"Th_" * 300,
        ],
        words=(b"_ZTh_", b"Th_", b"_ZN", b"St", b"I", b"L", b"E", b"S_", b"1a", b"N", b"_ZL", b"Z"),
    ),
)
