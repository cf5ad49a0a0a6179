"""Bundles: windows in one small file to pass on; read back as untrusted data.

An xz of a tar: `bundle.json`, then `<number>/window.json` and the tables, plain Parquet, files of
one table together, so that xz finds what windows have in common. Measured with `rankscope bundle`
on every fourth case of the corpus: 8 ranks 17 KB (worst 23), two or three ranks of ordinary jobs,
with deep stacks, 22 KB (worst 46).
"""

from __future__ import annotations

import io
import json
import lzma
import os
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rankscope.observer.window.folder import MANIFEST, Window, read_window
from rankscope.observer.window.manifest import to_json
from rankscope.observer.window.schema import TABLES
from rankscope.probes.base.errors import BadData, UsageError
from rankscope.probes.base.folders import open_plain, read_plain
from rankscope.probes.base.scratch import scratch

BUNDLE_SCHEMA = "rankscope.bundle/1"
_ABOUT = "bundle.json"
_MAGIC = b"\xfd7zXZ\x00"
_NAME = re.compile(rf"(\d{{1,5}})/(window\.json|({'|'.join(TABLES)})\.parquet)")
_MOST_PACKED = 64 << 20  # bytes; 8 ranks have 20 KB
_MOST_UNPACKED = 512 << 20
_MOST_MEMORY = 128 << 20  # of the decompressor: 65 MB at the highest preset
_MOST_FILES = 100_000


class NewerBundle(BadData):
    """A bundle made by a later version."""

    help = "Use a newer rankscope."


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of a bundle. `baseline`: earlier windows that its verdict was made with."""

    windows: tuple[Window, ...]
    baseline: tuple[Window, ...]


def pack(windows: Sequence[Window], baseline: Sequence[Window], names_kept: bool) -> bytes:
    """Encode a bundle. `names_kept`: recorded for its reader; nothing is replaced here.

    UsageError where it would be too large to read.
    """
    about = {
        "schema": BUNDLE_SCHEMA,
        "windows": len(windows),
        "baseline": len(baseline),
        "names": "kept" if names_kept else "replaced",
    }
    files: list[tuple[str, bytes]] = []
    for number, window in enumerate([*windows, *baseline]):
        rows = {name: getattr(window, name).num_rows for name in TABLES}
        files.append((f"{number}/{MANIFEST}", json.dumps(to_json(window.manifest, rows)).encode("utf-8")))
        files += [(f"{number}/{name}.parquet", _plain(getattr(window, name))) for name in TABLES]
    files.sort(key=lambda file: file[0].partition("/")[2])
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in [(_ABOUT, json.dumps(about).encode("utf-8")), *files]:
            entry = tarfile.TarInfo(name)  # owner, mode and time are private
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    fits = len(files) < _MOST_FILES and packed.tell() <= _MOST_UNPACKED
    small = _compressed(packed.getvalue()) if fits else b""
    if not fits or len(small) > _MOST_PACKED:
        raise UsageError(f"{len(windows)} windows are more than one bundle may have: choose fewer")
    return small


def _compressed(content: bytes) -> bytes:
    """Compress as small as xz can, with a dictionary no larger than the content: a usual one takes 700 MB of memory."""
    most = {
        "id": lzma.FILTER_LZMA2,
        "preset": 9 | lzma.PRESET_EXTREME,
        "dict_size": min(max(len(content), 1 << 12), 64 << 20),
    }
    return lzma.compress(content, filters=[most])


def _plain(table: pa.Table) -> bytes:
    """Encode a table as an uncompressed Parquet file, for xz to compress."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="none", use_dictionary=False, write_statistics=False, store_schema=False)
    return buffer.getvalue()


def is_bundle(place: Path) -> bool:
    """Tell whether a path looks like a bundle: a file that begins as an xz."""
    try:
        with os.fdopen(open_plain(place), "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_bundle(place: Path) -> Bundle:
    """Read the windows of a bundle. Raises BadData, in one line."""
    files = _unpacked(place)
    about = _about(place, files.pop(_ABOUT, b""))
    windows, baseline = (_count(about, name) for name in ("windows", "baseline"))
    with scratch() as made:
        folder = made.path
        for name, content in files.items():
            target = folder / name
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(content)
        try:
            found = [read_window(folder / str(number)) for number in range(windows + baseline)]
        except BadData as error:
            said = str(error).replace(f"{folder}/", "its window ")
            raise BadData(f"{place}: {said}") from None
    return Bundle(tuple(found[:windows]), tuple(found[windows:]))


def _unpacked(place: Path) -> dict[str, bytes]:
    """Unpack names and contents within limits, accepting only files that a bundle has."""
    try:
        packed = read_plain(place, _MOST_PACKED)
        xz = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
        content = xz.decompress(packed, _MOST_UNPACKED)
        if not xz.eof:
            raise BadData(f"{place} is cut short, or would take more memory than a bundle may")
        # compressed once, not again inside
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            return _members(place, archive)
    except OSError as error:
        raise BadData(f"{place} cannot be read: {error.strerror or error}") from error
    except (lzma.LZMAError, tarfile.TarError, EOFError, ValueError, MemoryError, RecursionError) as error:
        raise BadData(f"{place} is no bundle: {type(error).__name__}") from error


def _members(place: Path, archive: tarfile.TarFile) -> dict[str, bytes]:
    """Read the files of the archive by name. Raises BadData where one cannot be of a bundle."""
    found: dict[str, bytes] = {}
    for member in archive:
        fits = member.name == _ABOUT or _NAME.fullmatch(member.name)
        # A sparse file is larger than its data in the archive.
        plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
        file = archive.extractfile(member) if fits and plain else None
        if file is None or member.name in found or len(found) >= _MOST_FILES:
            raise BadData(f"{place} is no bundle: its content does not belong there")
        found[member.name] = file.read()
    return found


def _about(place: Path, content: bytes) -> dict[str, Any]:
    """Parse bundle.json. Raises BadData where it is invalid, NewerBundle where its schema is another one."""
    try:
        about = json.loads(content)
        schema = str(about["schema"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise BadData(f"{place} is no bundle: it does not say what it is") from None
    if schema != BUNDLE_SCHEMA:
        raise NewerBundle(f"{place} is of schema {schema[:60]!r}, this version reads {BUNDLE_SCHEMA}")
    return dict(about)


def _count(about: dict[str, Any], name: str) -> int:
    """Return the number of windows that bundle.json states under `name`; 0 where it is missing or impossible."""
    count = about.get(name)
    return count if isinstance(count, int) and 0 <= count <= _MOST_FILES else 0
