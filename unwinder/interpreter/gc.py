"""Where the garbage collector of a CPython build begins: the function that one collection is one call of.

`gc_collect_main` (`collect` before 3.10, `_PyGC_Collect` with everything inlined from 3.14) is exported by no build, and
stripped builds have no other symbols. But `PyGC_Collect` is exported everywhere, and within two calls of it lies the
collector, which nothing else there comes near in size. So: follow the direct calls from it (x86-64 `call`/`jmp rel32` whose
target is the first address of a function in `.eh_frame_hdr`, so that no disassembler is wanted) through functions that are not
exported, and take the largest. In 3.8 automatic collections have a copy of their own, reached from `_PyObject_GC_Malloc`.

Checked against .symtab (3.8-3.13) and the USDT notes of Debian's static builds in tests/unit/unwinder/test_gc.py.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt

from rankscope.probes.arrays import Ints
from rankscope.unwinder.errors import UnsupportedInterpreter
from rankscope.unwinder.interpreter import elf

LEAST_BYTES = 1500  # the smallest collector known has 1,957 (3.8), the largest other function on the way 900
_DEPTH = 3
_MOST_BYTES = 64 * 1024  # of one function; larger ones are not searched for calls
_MOST_FUNCTIONS = 400
_X86_64 = 62
_ROOTS = ("PyGC_Collect", "_PyObject_GC_Malloc")
_SECTIONS_CAP = 256
_READ_CAP_BYTES = 64 * 1024 * 1024
_ENCODING = b"\x01\x1b\x03\x3b"  # version 1, pcrel sdata4, udata4, datarel sdata4: what every linker writes


@dataclass(frozen=True, slots=True)
class _Code:
    """The functions of one file: where each begins, and its bytes."""

    descriptor: int
    segments: tuple[elf.Segment, ...]
    starts: Ints
    records: Ints  # of each function, the address of its FDE
    exported: npt.NDArray[np.uint64]

    def offset(self, address: int) -> int:
        for segment in self.segments:
            if segment.address <= address < segment.address + segment.size:
                return segment.offset + address - segment.address
        raise ValueError(f"no segment holds {address:#x}")

    def size(self, start: int) -> int:
        at = int(np.searchsorted(self.starts, start))
        if at >= len(self.starts) or self.starts[at] != start:
            return 0
        return int(struct.unpack("<I", _content(self.descriptor, self.offset(int(self.records[at])) + 12, 4))[0])

    def is_exported(self, start: int) -> bool:
        return bool(np.isin(start, self.exported))

    def calls(self, start: int) -> list[int]:
        """Functions that the one at `start` calls or ends in, in no order, each once."""
        size = self.size(start)
        if not 5 <= size <= _MOST_BYTES:
            return []
        code = np.frombuffer(_content(self.descriptor, self.offset(start), size), np.uint8)
        where = np.flatnonzero((code[:-4] & 0xFE) == 0xE8)
        if not len(where):
            return []
        raw = np.stack([code[where + 1 + byte] for byte in range(4)], axis=1)
        jumps = np.ascontiguousarray(raw).view("<i4")[:, 0].astype(np.int64)
        targets = np.unique(start + where + 5 + jumps)
        return [int(target) for target in targets[np.isin(targets, self.starts)] if target != start]


def find_collectors(file: IO[bytes], version: tuple[int, int]) -> tuple[int, ...]:
    """Addresses, as linked, of the functions that collect garbage in this file. Never empty.

    Raises UnsupportedInterpreter (with the reason), OSError.
    """
    try:
        facts = elf.read_facts(file, _ROOTS)
        roots = [facts.symbol(name) for name in (_ROOTS if version < (3, 9) else _ROOTS[:1])]
        if not all(roots):
            raise UnsupportedInterpreter("PyGC_Collect is not exported")
        # Read, not mapped: whoever cuts a mapped file short kills its reader.
        code = _read(file.fileno(), facts.segments)
        found = sorted({largest for root in roots if (largest := _largest(code, root))})
    except (ValueError, struct.error, IndexError, OverflowError) as error:
        raise UnsupportedInterpreter(f"its functions cannot be told apart: {error}") from error
    if not found:
        raise UnsupportedInterpreter("no function below PyGC_Collect looks like the collector")
    return tuple(found)


def _largest(code: _Code, root: int) -> int:
    """The largest function within `_DEPTH` calls of `root` that is not exported; 0 where none is large enough."""
    level, seen = [root], {root}
    for _ in range(_DEPTH):
        # The nearest level that has one: what the collector itself calls is of no interest.
        following = []
        for function in level:
            following += [
                target for target in code.calls(function) if target not in seen and not code.is_exported(target)
            ]
            seen.update(following)
            if len(seen) > _MOST_FUNCTIONS:
                return 0
        best = max(following, key=code.size, default=0)
        if best and code.size(best) >= LEAST_BYTES:
            return best
        level = following
    return 0


def _content(descriptor: int, at: int, size: int) -> bytes:
    """`size` bytes of the file. Raises ValueError where it ends before."""
    if size > _READ_CAP_BYTES:
        raise ValueError(f"{size} bytes in one piece")
    data = os.pread(descriptor, size, at)
    if len(data) < size:
        raise ValueError("it ends too early")
    return data


def _read(descriptor: int, segments: tuple[elf.Segment, ...]) -> _Code:
    """The table of functions. Raises ValueError, struct.error for a file that is not laid out as expected."""
    if struct.unpack("<H", _content(descriptor, 18, 2))[0] != _X86_64:
        raise ValueError("not x86-64")
    sections = _sections(descriptor)
    header, symbols = sections.get(b".eh_frame_hdr"), sections.get(b".dynsym")
    if header is None or symbols is None or _content(descriptor, header[1], 4) != _ENCODING:
        raise ValueError("no table in .eh_frame_hdr")
    address, at, size = header
    count = min(struct.unpack("<I", _content(descriptor, at + 8, 4))[0], max(size - 12, 0) // 8)
    table = np.frombuffer(_content(descriptor, at + 12, 8 * count), "<i4").reshape(-1, 2).astype(np.int64) + address
    content = _content(descriptor, symbols[1], symbols[2] // 24 * 24)
    exported = np.frombuffer(content, "<u8").reshape(-1, 3)[:, 1].copy()
    return _Code(descriptor, segments, table[:, 0], table[:, 1], exported)


def _sections(descriptor: int) -> dict[bytes, tuple[int, int, int]]:
    """(address, offset, size) by name."""
    header = _content(descriptor, 0, 64)
    at = struct.unpack_from("<Q", header, 40)[0]
    size, count, names = struct.unpack_from("<HHH", header, 58)
    count = min(count, _SECTIONS_CAP)
    table = _content(descriptor, at, size * count)
    headers = [struct.unpack_from("<IIQQQQIIQQ", table, i * size) for i in range(count)]
    strings = _content(descriptor, headers[names][4], min(headers[names][5], 1 << 20))
    return {strings[h[0] : strings.find(b"\0", h[0])]: (h[3], h[4], h[5]) for h in headers}
