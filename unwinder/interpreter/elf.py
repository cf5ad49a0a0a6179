"""What the unwinder wants from ELF files: the addresses of a few symbols and one section, and where segments were loaded.

Symbols are looked up through the GNU hash table of .dynsym, and only where that fails by searching the bytes of .symtab: no
table is ever parsed whole (libpython has 8,000 symbols, a static binary with torch inside 100,000). Read with `struct` and
not with pyelftools, which believes every length in the file: these files are the target's.
"""

from __future__ import annotations

import os
import stat
import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rankscope.probes.host import procfs

_PAGE_BYTES = 4096
_SYMTAB_CAP_BYTES = 256 * 1024 * 1024
_CHAIN_CAP = 256  # symbols of one hash bucket
_SYMBOL = struct.Struct("<IBBHQQ")
_CACHE_FILES = 256

_HEADER = struct.Struct("<16sH14xQQ8xH2xHH")  # e_ident, e_type, e_phoff, e_shoff, e_phnum, e_shnum, e_shstrndx
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_PT_LOAD = 1
_ET_DYN = 3


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps with a file behind it. Addresses and the file offset are bytes."""

    start: int
    end: int
    offset: int
    device: str
    inode: int
    path: str
    deleted: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """A PT_LOAD segment."""

    offset: int
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class _Section:
    address: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """What was looked for in one file. Addresses are as linked: add the load bias. 0 where absent."""

    position_independent: bool
    segments: tuple[Segment, ...]
    runtime_section: int
    symbols: tuple[tuple[str, int], ...]

    def symbol(self, name: str) -> int:
        """Address of a symbol that was asked for, 0 where the file does not define it."""
        return next((address for symbol, address in self.symbols if symbol == name), 0)


_cache: OrderedDict[tuple[int, int, int, tuple[str, ...]], ElfFacts] = OrderedDict()


def parse_maps(data: bytes) -> tuple[Mapping, ...]:
    """The file mappings in /proc/PID/maps, in order of address. Lines that make no sense are left out. Never raises."""
    mappings = []
    for line in data.split(b"\n"):
        if b"/" not in line:
            continue
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[5].startswith(b"/"):
            continue
        try:
            start, end = (int(number, 16) for number in fields[0].split(b"-"))
            offset, inode = int(fields[2], 16), int(fields[4])
        except ValueError:
            continue
        path = os.fsdecode(fields[5])
        deleted = path.endswith(" (deleted)")
        mappings.append(
            Mapping(
                start=start,
                end=end,
                offset=offset,
                device=fields[3].decode("ascii", "replace"),
                inode=inode,
                path=path.removesuffix(" (deleted)") if deleted else path,
                deleted=deleted,
            )
        )
    return tuple(mappings)


def open_mapped(pid: int, mapping: Mapping, root: Path = procfs.ROOT) -> IO[bytes]:
    """Opens the file behind a mapping, also when it was deleted or lies in another mount namespace. Raises OSError.

    /proc/PID/map_files leads to the very file, but asks for CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE; the path under
    /proc/PID/root serves the rest.
    """
    by_address = procfs.proc_path(root, pid, "map_files", f"{mapping.start:x}-{mapping.end:x}")
    by_path = procfs.proc_path(root, pid, "root") + mapping.path
    problem: OSError | None = None
    for path in (by_address, by_path):
        try:
            return _open_regular(path)
        except OSError as error:
            problem = error
    raise problem or FileNotFoundError(mapping.path)


def _open_regular(path: str) -> IO[bytes]:
    # The path is the target's: O_NONBLOCK, lest it be a FIFO.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path}: not a regular file")
    return os.fdopen(descriptor, "rb")


def read_facts(file: IO[bytes], names: Iterable[str]) -> ElfFacts:
    """Looks up `names` in an open ELF file; remembered by (device, inode, mtime). Raises ValueError for other files."""
    wanted = tuple(names)
    status = os.fstat(file.fileno())
    key = (status.st_dev, status.st_ino, status.st_mtime_ns, wanted)
    known = _cache.get(key)
    if known is None:
        known = parse_elf(file, wanted)
        _cache[key] = known
        if len(_cache) > _CACHE_FILES:
            _cache.popitem(last=False)
    return known


def parse_elf(file: IO[bytes], names: tuple[str, ...]) -> ElfFacts:
    """Looks up `names` in an ELF file. Raises ValueError for anything that is not a sound 64-bit ELF file."""
    try:
        header = _content(file, 0, _HEADER.size)
        magic, kind, segments_at, sections_at, segment_count, section_count, names_index = _HEADER.unpack(header)
        if magic[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        segments = tuple(
            Segment(offset, address, size)
            for type_, _, offset, address, _, size, _, _ in _SEGMENT.iter_unpack(
                _content(file, segments_at, segment_count * _SEGMENT.size)
            )
            if type_ == _PT_LOAD
        )
        sections = _sections(file, sections_at, section_count, names_index)
        runtime = sections.get(b".PyRuntime")
        found = {}
        for name in names:
            value = _dynamic_symbol(file, sections, name.encode())
            if value:
                found[name] = value
        missing = [name for name in names if name not in found]
        if missing:
            found.update(_static_symbols(file, sections, missing))
    except (OSError, OverflowError, struct.error) as error:
        raise ValueError(f"not a sound ELF file: {error}") from error
    return ElfFacts(
        position_independent=kind == _ET_DYN,
        segments=segments,
        runtime_section=runtime.address if runtime is not None else 0,
        symbols=tuple(found.items()),
    )


def _sections(file: IO[bytes], at: int, count: int, names_index: int) -> dict[bytes, _Section]:
    """The sections by name, the first of each name."""
    headers = [
        (name, _Section(address, offset, size))
        for name, _, _, address, offset, size, _, _, _, _ in _SECTION.iter_unpack(
            _content(file, at, count * _SECTION.size)
        )
    ]
    if not names_index < len(headers):
        return {}
    table = headers[names_index][1]
    text = _content(file, table.offset, min(table.size, 1 << 20))
    sections: dict[bytes, _Section] = {}
    for start, section in headers:
        sections.setdefault(text[start : text.find(b"\0", start)], section)
    return sections


def _dynamic_symbol(file: IO[bytes], sections: dict[bytes, _Section], name: bytes) -> int:
    """Looks up one name in the GNU hash table (https://flapenguin.me/elf-dt-gnu-hash). 0 where it is not defined."""
    table, symbols, strings = (sections.get(key) for key in (b".gnu.hash", b".dynsym", b".dynstr"))
    if table is None or symbols is None or strings is None:
        return 0
    buckets, first, words, _ = struct.unpack("<4I", _content(file, table.offset, 16))
    if not buckets:
        return 0
    wanted = 5381
    for byte in name:
        wanted = (wanted * 33 + byte) & 0xFFFF_FFFF
    buckets_at = table.offset + 16 + 8 * words
    index = struct.unpack("<I", _content(file, buckets_at + 4 * (wanted % buckets), 4))[0]
    if index < first:
        return 0
    chain = _content(file, buckets_at + 4 * buckets + 4 * (index - first), 4 * _CHAIN_CAP, cut=True)
    for (hashed,) in struct.iter_unpack("<I", chain[: len(chain) & ~3]):
        if (hashed ^ wanted) < 2:
            start, _, _, section, value, _ = _SYMBOL.unpack(
                _content(file, symbols.offset + index * _SYMBOL.size, _SYMBOL.size)
            )
            text = _content(file, strings.offset + start, len(name) + 1)
            if text == name + b"\0" and section:
                return int(value)
        if hashed & 1:
            break
        index += 1
    return 0


def _static_symbols(file: IO[bytes], sections: dict[bytes, _Section], names: Iterable[str]) -> dict[str, int]:
    """Searches .symtab for the few entries whose name offset is that of a wanted name."""
    found: dict[str, int] = {}
    table, strings = sections.get(b".symtab"), sections.get(b".strtab")
    if table is None or strings is None or max(strings.size, table.size) > _SYMTAB_CAP_BYTES:
        return found
    text = _content(file, strings.offset, strings.size)
    entries = b""
    for name in names:
        at = text.find(b"\0" + name.encode() + b"\0")
        if at < 0:
            continue
        entries = entries or _content(file, table.offset, table.size)
        needle = struct.pack("<I", at + 1)
        position = entries.find(needle)
        while position >= 0:
            if position % _SYMBOL.size == 0 and position + _SYMBOL.size <= len(entries):
                _, _, _, section, value, _ = _SYMBOL.unpack_from(entries, position)
                if section and value:
                    found[name] = value
                    break
            position = entries.find(needle, position + 1)
    return found


def _content(file: IO[bytes], offset: int, size: int, cut: bool = False) -> bytes:
    """`size` bytes of the file; fewer only if they may be `cut` by its end. Raises ValueError, OSError."""
    file.seek(offset)
    data = file.read(size)
    if len(data) < size and not cut:
        raise ValueError("not a sound ELF file: it ends too early")
    return data


def load_bias(facts: ElfFacts, mappings: Iterable[Mapping]) -> int | None:
    """What must be added to an address of the file to get that in the process. `mappings` are those of the file.

    None where no mapping fits a segment. Zero for an executable linked at a fixed address.
    """
    if not facts.position_independent:
        return 0
    for mapping in mappings:
        for segment in facts.segments:
            if segment.offset & -_PAGE_BYTES == mapping.offset and segment.size:
                return mapping.start - (segment.address & -_PAGE_BYTES)
    return None
