"""Window folders: written whole or not at all, read back with every reason to distrust them.

A folder is written under a temporary name beside its destination, flushed, and renamed; so a reader sees a complete window
or none, and a crash of the observer leaves at most a `.partial-…` folder, which the next write there removes.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rankscope.observer.window import upgrade
from rankscope.observer.window.manifest import SCHEMAS, Manifest, from_json, to_json
from rankscope.observer.window.schema import FIRST_SCHEMA, TABLES, YOUNGER
from rankscope.observer.window.tables import cast, check_stacks, read_table, with_absent, write_table
from rankscope.probes.errors import BadData, OutputFailed

MANIFEST = "window.json"
_PARTIAL = ".partial-"
_PARTIAL_KEPT_S = 3600.0
_LEAST_FREE_BYTES = 1 << 20
_MAX_MANIFEST_BYTES = 4 << 20
_MAX_TABLE_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Window:
    """One host's window. Tables follow schema.py."""

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
    """`<host>-<start, UTC>-<seconds>s-<job>`, safe as a file name whatever host and job are called."""
    host, job = _safe(manifest.host) or "host", _safe("+".join(manifest.jobs)) or "job"
    start = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(manifest.start))
    return f"{host}-{start}-{manifest.seconds:.4g}s-{job}"


def _safe(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in text).lstrip(".")[:64]


def write_window(window: Window, into: Path) -> Path:
    """Write one window folder below `into` (made if missing), return it. OutputFailed, with nothing half-written."""
    name = folder_name(window.manifest)
    staging = into / f"{_PARTIAL}{name}-{os.getpid()}"
    try:
        into.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep_partials(into)
        staging.mkdir(mode=0o700)
        with _private_files():
            tables = {table: getattr(window, table) for table in TABLES}
            for table, data in tables.items():
                write_table(data, staging / f"{table}.parquet")
            rows = {table: data.num_rows for table, data in tables.items()}
            text = json.dumps(to_json(window.manifest, rows), indent=1)
            (staging / MANIFEST).write_text(text, encoding="utf-8")
        for path in (*staging.iterdir(), staging):
            _flush(path)
        target = into / name
        for attempt in range(2, 100):
            if not target.exists():
                break
            target = into / f"{name}.{attempt}"
        staging.rename(target)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise OutputFailed(f"cannot write the window into {into}: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return target


def prepare_place(into: Path) -> None:
    """Make `into` and see that a window can be written there. OutputFailed where it cannot."""
    try:
        into.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep_partials(into)
        with tempfile.TemporaryFile(dir=into) as file:
            file.write(bytes(_LEAST_FREE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OutputFailed(f"cannot write into {into}: {error.strerror or error}") from error


def _sweep_partials(into: Path) -> None:
    """Remove what an observer that was killed left behind: its process is gone, or it is older than any window."""
    for entry in into.glob(f"{_PARTIAL}*"):
        pid = entry.name.rpartition("-")[2]
        alive = pid.isdigit() and Path("/proc", pid).exists()
        if not alive or time.time() - entry.stat().st_mtime > _PARTIAL_KEPT_S:
            shutil.rmtree(entry, ignore_errors=True)


@contextmanager
def _private_files() -> Iterator[None]:
    old = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(old)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_window(folder: Path) -> bool:
    """Whether `folder` looks like a window folder (it holds a manifest)."""
    return (folder / MANIFEST).is_file()


def find_windows(place: Path) -> tuple[Path, ...]:
    """`place` itself if it is a window folder, else the window folders directly in it, by name. BadData if none."""
    if not place.is_dir():
        raise BadData(f"{place} is not a folder")
    if is_window(place):
        return (place,)
    try:
        found = tuple(sorted(p for p in place.iterdir() if not p.name.startswith(_PARTIAL) and is_window(p)))
    except OSError as error:
        raise BadData(f"{place} cannot be read: {error.strerror}") from error
    if not found:
        raise BadData(f"{place} holds no window (no {MANIFEST} in it or in a folder of it)")
    return found


def read_window(folder: Path) -> Window:
    """The window in `folder`, of whatever version, as one of today's. BadData, in one line, where it cannot be read so."""
    manifest, rows = _read_manifest(folder)
    old = manifest.schema == FIRST_SCHEMA
    tables = {}
    for name, schema in (upgrade.TABLES if old else TABLES).items():
        if name in YOUNGER and name not in rows:
            continue
        path = folder / f"{name}.parquet"
        try:
            if path.stat().st_size > _MAX_TABLE_BYTES:
                raise BadData(f"{path} is absurdly large")
            table = with_absent(read_table(path, schema), schema)
        except (OSError, pa.ArrowException) as error:
            raise BadData(f"{path} cannot be read: {_first_line(error)}") from error
        missing = [field.name for field in schema if field.name not in table.column_names]
        if missing:
            raise BadData(f"{path} lacks the column {missing[0]}")
        try:
            tables[name] = cast(table, schema)
        except (pa.ArrowException, ValueError) as error:
            raise BadData(f"{path} has columns of another type: {_first_line(error)}") from error
        if tables[name].num_rows != rows.get(name):
            raise BadData(f"{path} has {tables[name].num_rows} rows, its manifest says {rows.get(name)}")
    try:
        if old:
            manifest, tables = upgrade.upgrade(manifest, tables)
        check_stacks(tables["patterns"], tables["stacks"])
    except (pa.ArrowException, ValueError) as error:
        raise BadData(f"{folder} is no window: {_first_line(error)}") from error
    without = {name: TABLES[name].empty_table() for name in YOUNGER - tables.keys()}
    return Window(manifest, **tables, **without)


def _read_manifest(folder: Path) -> tuple[Manifest, dict[str, Any]]:
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_MAX_MANIFEST_BYTES))
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not JSON (truncated?)") from error
    if not isinstance(content, dict) or content.get("schema") not in SCHEMAS:
        said = content.get("schema") if isinstance(content, dict) else None
        raise BadData(f"{path} is of schema {str(said)[:60]!r}, this version reads {' and '.join(SCHEMAS)}")
    try:
        return from_json(content)
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{path} is not a window manifest: {type(error).__name__} {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
