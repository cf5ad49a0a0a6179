"""What the unwinder wants from ELF files: the addresses of a few symbols and one section, and where segments were loaded.

Symbols are looked up through the GNU hash table of .dynsym, and only where that fails by searching the bytes of .symtab: no
table is ever parsed whole (libpython has 8,000 symbols, a static binary with torch inside 100,000).
"""

from __future__ import annotations

import os
import stat
import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from probes import procfs

_PAGE_BYTES = 4096
_STRTAB_CAP_BYTES = 256 * 1024 * 1024
_SYMBOL = struct.Struct("<IBBHQQ")
_CACHE_FILES = 256


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
        elf = ELFFile(file)
        if elf.elfclass != 64 or not elf.little_endian:
            raise ValueError("not a 64-bit little-endian ELF file")
        segments = tuple(
            Segment(header["p_offset"], header["p_vaddr"], header["p_filesz"])
            for header in (segment.header for segment in elf.iter_segments())
            if header["p_type"] == "PT_LOAD"
        )
        section = elf.get_section_by_name(".PyRuntime")
        found = _dynamic_symbols(elf, names)
        missing = [name for name in names if name not in found]
        if missing:
            found.update(_static_symbols(elf, file, missing))
        return ElfFacts(
            position_independent=elf.header["e_type"] == "ET_DYN",
            segments=segments,
            runtime_section=section["sh_addr"] if section is not None else 0,
            symbols=tuple((name, found[name]) for name in names if name in found),
        )
    except ValueError:
        raise
    except (ELFError, OSError, KeyError, TypeError, IndexError, AttributeError, OverflowError, struct.error) as error:
        # A forged or cut file shows in whatever pyelftools stumbles over first.
        raise ValueError(f"not a sound ELF file: {error or type(error).__name__}") from error


def _dynamic_symbols(elf: Any, names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    table = elf.get_section_by_name(".gnu.hash")
    if table is None:
        return found
    for name in names:
        symbol = table.get_symbol(name)
        if symbol is not None and symbol["st_shndx"] != "SHN_UNDEF":
            found[name] = cast(int, symbol["st_value"])
    return found


def _static_symbols(elf: Any, file: IO[bytes], names: Iterable[str]) -> dict[str, int]:
    """Searches .symtab for the few entries whose name offset is that of a wanted name."""
    found: dict[str, int] = {}
    table = elf.get_section_by_name(".symtab")
    if table is None or table["sh_entsize"] != _SYMBOL.size:
        return found
    strings = elf.get_section(table["sh_link"])
    if max(strings["sh_size"], table["sh_size"]) > _STRTAB_CAP_BYTES:
        return found
    text = _content(file, strings["sh_offset"], strings["sh_size"])
    entries: bytes | None = None
    for name in names:
        at = text.find(b"\0" + name.encode() + b"\0")
        if at < 0:
            continue
        if entries is None:
            entries = _content(file, table["sh_offset"], table["sh_size"])
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


def _content(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


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
