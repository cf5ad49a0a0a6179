"""List the files that a process has mapped: /proc/PID/maps.

In: a pid, or the bytes of the file. Out: Mapping. Paths are the target's: they lie in its mount
namespace, may hold any byte, and are never opened; the file behind a mapping is (probes/mapped).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.host.procfs import ROOT, proc_path, read_file

# A training process with many GPUs has some thousands of mappings of ~100 bytes each.
MAPS_CAP_BYTES = 16 * 1024 * 1024
_DELETED = b" (deleted)"


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapped file range: one line of /proc/PID/maps. Addresses and the file position `offset` are
    bytes.
    """

    start: int
    end: int
    perms: str  # 'r-xp'
    offset: int
    device: str  # 'fd:00'; with the inode it distinguishes copies of a file in different containers
    inode: int
    path: str
    deleted: bool = False


def read_maps(pid: int, root: Path = ROOT, wanted: Callable[[str], bool] | None = None) -> tuple[Mapping, ...]:
    """List a process's file mappings, one per line of /proc/PID/maps. Raises OSError.

    `wanted`: filter by path, called once per path.
    """
    return parse_maps(_read(pid, root), wanted)


def mapped_files(pid: int, root: Path = ROOT) -> tuple[str, ...]:
    """List the distinct paths of the files mapped into a process, in order of address. Raises OSError."""
    return parse_mapped_files(_read(pid, root))


def _read(pid: int, root: Path) -> bytes:
    """Read /proc/PID/maps, MAPS_CAP_BYTES at most. Raises OSError."""
    return read_file(proc_path(root, pid, "maps"), MAPS_CAP_BYTES)


def parse_maps(data: bytes, wanted: Callable[[str], bool] | None = None) -> tuple[Mapping, ...]:
    """Parse the file mappings in /proc/PID/maps, in order of address. Never raises.

    `wanted`: filter, called once per path; other mappings cost little. Lines that make no sense are
    left out.
    """
    known: dict[bytes, tuple[str, bool] | None] = {}
    mappings = []
    for line, raw in _lines(data):
        if raw not in known:
            path = os.fsdecode(raw.removesuffix(_DELETED))
            known[raw] = (path, raw.endswith(_DELETED)) if wanted is None or wanted(path) else None
        if (file := known[raw]) is None:
            continue
        fields = line.split(None, 5)
        if len(fields) < 6 or fields[5] != raw:
            continue
        try:
            start, end = (int(number, 16) for number in fields[0].split(b"-"))
            offset, inode = int(fields[2], 16), int(fields[4])
        except ValueError:
            continue
        perms, device = (fields[place].decode("ascii", "replace") for place in (1, 3))
        mappings.append(Mapping(start, end, perms, offset, device, inode, *file))
    return tuple(mappings)


def parse_mapped_files(data: bytes) -> tuple[str, ...]:
    """List the distinct paths in /proc/PID/maps, in order, without ' (deleted)'. Never raises."""
    raw = dict.fromkeys(raw.removesuffix(_DELETED) for _, raw in _lines(data))
    return tuple(path.decode("utf-8", "replace") for path in raw)


def _lines(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (line, path) of the lines of /proc/PID/maps that have a path.

    Nothing before the path holds a slash, and no anonymous mapping's name begins with one.
    """
    for line in data.split(b"\n"):
        slash = line.find(b"/")
        if slash > 0 and line[slash - 1 : slash] == b" ":
            yield line, line[slash:]
