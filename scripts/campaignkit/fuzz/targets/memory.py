"""Memory of Python processes: recorded ones, with bytes changed, and structures that are read whole."""

from __future__ import annotations

import gzip
import json
import struct
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from campaignkit.fuzz.place import place
from campaignkit.fuzz.target import Target, chosen_by_first_byte, swapped
from rankscope.observer.census import live_environ
from rankscope.unwinder.errors import UnreadableMemory
from rankscope.unwinder.interpreter import find
from rankscope.unwinder.interpreter.offsets import DEBUG_OFFSETS_BYTES, TABLES, parse_debug_offsets
from rankscope.unwinder.interpreter.threads import list_threads
from rankscope.unwinder.names.code import Symboliser, read_str

_RECORDINGS = Path(__file__).resolve().parents[4] / "tests/data/unwinder"
_EDIT = struct.Struct("<HHQ")  # the piece, the place in it, eight bytes
_MOST_EDITS = 32
_ENVIRON = 0x10_0000


class Pieces:
    """Recorded memory, and changes to it. Satisfies unwinder.interpreter.memory.Memory."""

    def __init__(self, pieces: list[tuple[int, bytes]]) -> None:
        self._pieces = pieces
        self._starts = [start for start, _ in pieces]
        self._changed: dict[int, bytearray] = {}

    def with_edits(self, data: bytes) -> Pieces:
        changed = Pieces(self._pieces)
        for number, (piece, at, value) in enumerate(_EDIT.iter_unpack(data[: len(data) // _EDIT.size * _EDIT.size])):
            if number >= _MOST_EDITS:
                break
            index = piece % len(self._pieces)
            content = changed._changed.setdefault(index, bytearray(self._pieces[index][1]))
            place = at % len(content)
            content[place : place + 8] = struct.pack("<Q", value)[: len(content) - place]
        return changed

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes, out of one piece or several that follow one another. UnreadableMemory."""
        if not 0 < size <= 256 * 1024:
            raise UnreadableMemory(f"{size} bytes")
        found = b""
        while len(found) < size:
            index = bisect_right(self._starts, address + len(found)) - 1
            if index < 0:
                raise UnreadableMemory(f"{address:#x}")
            content = bytes(self._changed.get(index, self._pieces[index][1]))
            part = content[address + len(found) - self._starts[index] :][: size - len(found)]
            if not part:
                raise UnreadableMemory(f"{address:#x}")
            found += part
        return found


@dataclass(frozen=True, slots=True)
class _Recording:
    memory: Pieces
    place: find._RuntimePlace
    pid: int
    tids: tuple[int, ...]
    code: tuple[int, ...]  # places that may be code objects: where memory was read from


@lru_cache(maxsize=1)
def _recordings() -> tuple[tuple[_Recording, ...], Path]:
    """The recordings, and a root folder whose /proc has their threads."""
    root = place() / "processes"
    found = []
    for path in sorted(_RECORDINGS.glob("*.json.gz")):
        content = json.loads(gzip.decompress(path.read_bytes()))
        pieces = sorted((int(at, 16), bytes.fromhex(data)) for at, data in content["memory"].items())
        candidate = find._Candidate(f"/usr/bin/python3.{content['minor']}", content["build"], ())
        runtime = find._RuntimePlace(
            candidate,
            int(content["runtime_address"]),
            "recorded",
            0,
            int(content["none_address"]),
            int(content["code_type_address"]),
        )
        pid, tids = int(content["pid"]), tuple(content["tids"])
        for folder in (root / f"proc/{pid}", *(root / f"proc/{pid}/task/{tid}" for tid in tids)):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "status").write_text(f"Name:\tpython\nTgid:\t{pid}\nNSpid:\t{folder.name}\n")
        code = tuple(start for start, data in pieces if len(data) >= 64)
        found.append(_Recording(Pieces(pieces), runtime, pid, tids, code))
    return tuple(found), root


def _process(data: bytes) -> None:
    """The first byte chooses a recording, the second a code object; the rest is written over its memory."""
    if len(data) < 2:
        return
    recordings, root = _recordings()
    recording = recordings[data[0] % len(recordings)]
    memory = recording.memory.with_edits(data[2:])
    with swapped(find, "_CHECK_PAUSE_S", 0.0):
        interpreter = find._describe(recording.pid, 0, recording.place, (), memory)
    list_threads(interpreter, memory, root)
    symbols = Symboliser(memory, interpreter.offsets, interpreter.code_type_address)
    for number in range(8):
        frame = symbols.resolve(recording.code[(data[1] + number) % len(recording.code)], lasti=data[1])
        if not (frame.name.isprintable() and frame.file.isprintable()):
            raise AssertionError(f"not printable: {frame!r}")


def _string(data: bytes) -> None:
    if not data:
        return
    for keep_tail in (False, True):
        text = read_str(Pieces([(4096, data)]), TABLES[8], 4096, keep_tail)
        if text is not None and not text.isprintable():
            raise AssertionError(f"not printable: {text!r}")


def _environ(data: bytes) -> None:
    if data:
        live_environ._texts(Pieces([(_ENVIRON, data)]), _ENVIRON)


def _debug_offsets(data: bytes) -> None:
    parse_debug_offsets(data)


def _seeds() -> list[bytes]:
    recordings, _ = _recordings()
    unchanged = [bytes((number, 0)) for number in range(len(recordings))]
    return [*unchanged, *(one + _EDIT.pack(3, 8, 0x7F00_0000_0000) * 4 for one in unchanged)]


def _parts() -> list[bytes]:
    published = []
    for recording in _recordings()[0]:
        head = recording.memory.read(recording.place.runtime, 8)
        if head == b"xdebugpy":
            published.append(b"\2" + recording.memory.read(recording.place.runtime, DEBUG_OFFSETS_BYTES))
    text = struct.pack("<QQQQI4x8xQ", 1, 0, 5, 0, 1 | 1 << 2 | 1 << 5 | 1 << 6, 0) + b"hello"
    pointers = struct.pack("<3Q", _ENVIRON + 24, _ENVIRON + 31, 0) + b"RANK=3\0WORLD_SIZE=8\0"
    return [b"\0" + text, b"\1" + pointers, *published]


TARGETS = (
    Target(
        "python-memory",
        "interpreter, threads and names of functions in a Python process",
        _process,
        _seeds,
        longest_bytes=2 + 32 * _EDIT.size,
    ),
    Target(
        "python-parts",
        "strings, the environment and published layouts in a process's memory",
        chosen_by_first_byte(_string, _environ, _debug_offsets),
        _parts,
        raises=(UnreadableMemory, ValueError),
        words=(b"xdebugpy",),
    ),
)
