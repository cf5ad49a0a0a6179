"""Window folders: written completely or not at all; read back as untrusted data.

A folder is written under a temporary name next to its destination, flushed, and renamed
(`staging.py`): a reader sees a complete window or none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO

import pyarrow as pa

from rankscope.observer.window import staging, upgrade
from rankscope.observer.window.manifest import FIRST_SCHEMA, SCHEMAS, Manifest, from_json, to_json
from rankscope.observer.window.schema import TABLES, YOUNGER
from rankscope.observer.window.staging import PARTIAL, safe_name
from rankscope.observer.window.tables import (
    QUICK,
    SMALL,
    cast,
    check_rows,
    check_stacks,
    check_texts,
    read_table,
    with_absent,
    write_table,
)
from rankscope.probes.base.errors import BadData, NoSuchPlace, OutputFailed
from rankscope.probes.base.folders import read_plain

MANIFEST = "window.json"
_LEAST_FREE_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Window:
    """One host's window: manifest and tables (schema.py)."""

    manifest: Manifest
    ranks: pa.Table
    steps: pa.Table
    patterns: pa.Table
    stacks: pa.Table
    pauses: pa.Table
    collectives: pa.Table
    flows: pa.Table
    counters: pa.Table


def folder_name(manifest: Manifest) -> str:
    """Build `<host>-<start, UTC>-<seconds>s-<job>`, safe as a file name for any host and job."""
    host, job = safe_name(manifest.host) or "host", safe_name("+".join(manifest.jobs)) or "job"
    start = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(manifest.start))
    return f"{host}-{start}-{manifest.seconds:.4g}s-{job}"


def write_window(window: Window, into: Path, beside: Mapping[str, bytes] = MappingProxyType({})) -> Path:
    """Write one window folder below `into` (created if missing) and return it; nothing half-written
    on OutputFailed.

    `beside`: more files in it, by name.
    """
    files = window_files(window)
    for name, content in beside.items():
        files[name] = partial(_write_bytes, content)
    try:
        return staging.write_folder(into, folder_name(window.manifest), files)
    except OSError as error:
        raise OutputFailed(f"cannot write the window into {into}: {error.strerror or error}") from error


def window_files(window: Window, *, brief: bool = False) -> dict[str, staging.Writer]:
    """Return the writer of each file of a window, by name. `brief`: compress less, to save time."""
    tables = {table: getattr(window, table) for table in TABLES}
    rows = {table: data.num_rows for table, data in tables.items()}
    text = json.dumps(to_json(window.manifest, rows), indent=1)
    level = QUICK if brief else SMALL
    files: dict[str, staging.Writer] = {
        f"{table}.parquet": partial(write_table, data, level=level) for table, data in tables.items()
    }
    return {**files, MANIFEST: partial(_write_bytes, text.encode("utf-8"))}


def _write_bytes(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def prepare_folder(into: Path) -> None:
    """Create `into` and test that a window can be written there. Raises OutputFailed."""
    try:
        staging.check_writable(into, _LEAST_FREE_BYTES)
    except OSError as error:
        raise OutputFailed(f"cannot write into {into}: {error.strerror or error}") from error


def is_window(folder: Path) -> bool:
    """Tell whether `folder` looks like a window folder (it has a manifest)."""
    return (folder / MANIFEST).is_file()


def find_windows(place: Path) -> tuple[Path, ...]:
    """Return `place` itself if it is a window folder, else the window folders directly in it, by
    name. BadData if none.
    """
    if not place.is_dir():
        raise NoSuchPlace(f"{place} is not a folder" if place.exists() else f"there is no {place}")
    if is_window(place):
        return (place,)
    try:
        found = tuple(sorted(p for p in place.iterdir() if not p.name.startswith(PARTIAL) and is_window(p)))
    except OSError as error:
        raise BadData(f"{place} cannot be read: {error.strerror}") from error
    if not found:
        raise BadData(f"{place} holds no window (no {MANIFEST} in it or in a folder of it)")
    return found


def read_window(folder: Path) -> Window:
    """Read the window in `folder`, of any version, as the current one. Raises BadData, in one line."""
    return read_files(folder, lambda name: folder / name)


def read_files(place: Path, path_of: Callable[[str], Path]) -> Window:
    """Read a window from files found by `path_of`; `place` is named in errors. Raises BadData."""
    manifest, rows = read_manifest(path_of(MANIFEST))
    old = manifest.schema == FIRST_SCHEMA
    tables = {}
    for name, schema in (upgrade.TABLES if old else TABLES).items():
        if name in YOUNGER and name not in rows:
            continue
        path = path_of(f"{name}.parquet")
        try:
            check_rows(name, rows.get(name, 0))
            table = read_table(path, schema)
        except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
            raise BadData(f"{path} cannot be read: {_first_line(error)}") from error
        tables[name] = fitted(table, schema, str(path))
        if tables[name].num_rows != rows.get(name):
            raise BadData(f"{path} has {tables[name].num_rows} rows, its manifest says {rows.get(name)}")
    if old:
        try:
            manifest, tables = upgrade.upgrade(manifest, tables)
        except (pa.ArrowException, ValueError) as error:
            raise BadData(f"{place} is no window: {_first_line(error)}") from error
    return window_of(manifest, tables, str(place))


def fitted(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Convert a table to `schema` and check it. BadData where it does not fit, or no observer can
    have written it.
    """
    table = with_absent(table, schema)
    missing = sorted(set(schema.names) - set(table.column_names))
    if missing:
        raise BadData(f"{where} lacks the column {missing[0]}")
    try:
        table = cast(table, schema)
    except (pa.ArrowException, ValueError) as error:
        raise BadData(f"{where} has columns of another type: {_first_line(error)}") from error
    try:
        check_texts(table)
    except ValueError as error:
        raise BadData(f"{where} has {_first_line(error)}") from error
    return table


def window_of(manifest: Manifest, tables: Mapping[str, pa.Table], where: str) -> Window:
    """Build the window from these tables, with empty ones for missing younger tables; BadData for
    invalid stacks.
    """
    without = {name: TABLES[name].empty_table() for name in YOUNGER - tables.keys()}
    try:
        check_stacks(tables["patterns"], tables["stacks"])
    except (pa.ArrowException, ValueError) as error:
        raise BadData(f"{where} is no window: {_first_line(error)}") from error
    return Window(manifest, **tables, **without)


def read_manifest(path: Path) -> tuple[Manifest, dict[str, int]]:
    """Read a manifest, and the number of rows that it states for each table. Raises BadData."""
    try:
        content = json.loads(read_plain(path, _MAX_MANIFEST_BYTES))
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not JSON (truncated?)") from error
    if not isinstance(content, dict) or content.get("schema") not in SCHEMAS:
        said = content.get("schema") if isinstance(content, dict) else None
        raise BadData(f"{path} is of schema {str(said)[:60]!r}, this version reads {' and '.join(SCHEMAS)}")
    try:
        return from_json(content)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadData(f"{path} is not a window manifest: {type(error).__name__} {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text, of at most 200 characters; its type's name where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
