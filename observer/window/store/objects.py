"""Objects of a store: put, get, list, remove.

In a bucket a PUT is atomic, and renames do not exist. In a folder an object is written under a
temporary name, flushed and renamed, 0600, below folders that nobody else can write. In both a
reader sees it completely or not at all. A window sent twice is one object.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyarrow import fs

from rankscope.observer.window.staging import PARTIAL, partial_name, put_file, remove_left
from rankscope.observer.window.store.container import MOST_OBJECT_BYTES
from rankscope.observer.window.store.keys import Key, parse, start_of_message, start_of_moment
from rankscope.observer.window.store.place import Store, StoreFailed, failures
from rankscope.probes.base.errors import BadData
from rankscope.probes.base.folders import UnsafePlace, create_file, opened_folder, read_ours, read_plain, why_not_ours

_DEEPEST = 16  # folders below the store's path; objects lie three below it
_MOST_LISTED = 4_000_000  # a million ranks give 125,000 objects per window
_FILE, _CLOSED, _FOLDER = "file", "closed", "folder"
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Found:
    """One object: its path in the store, and its parsed name. `put_s`: arrival, Unix time of the
    store; NaN: unknown.
    """

    path: str
    key: Key
    size_bytes: int
    put_s: float = math.nan


@dataclass(frozen=True, slots=True)
class Told:
    """A message between hosts. `start`: begin of the window that it is about; `put_s` as of an
    object.
    """

    path: str
    start: int
    put_s: float = math.nan


class _Thing(NamedTuple):
    """An entry in a store. `what`: a file, a folder, or unreadable (`_CLOSED`)."""

    path: str
    what: str = _FILE
    size_bytes: int = 0
    put_s: float = math.nan


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries of a store below a path, ordered by path.

    `foreign`: number of things that are no windows; `told`: messages between hosts; `closed`:
    unreadable entries; `moments`: folders of windows of one time, including empty ones.
    """

    objects: tuple[Found, ...]
    foreign: int
    told: tuple[Told, ...] = ()
    closed: tuple[str, ...] = ()
    moments: tuple[str, ...] = ()


def put(store: Store, key: str, data: bytes) -> None:
    """Write one object, or replace it. Raises StoreFailed."""
    path = f"{store.path}/{key}"
    with failures(store.shown, store.uri):
        try:
            if store.local:
                _put_file(Path(path), data)
                return
            with store.filesystem.open_output_stream(path) as stream:
                stream.write(data)
        except FileNotFoundError:
            raise StoreFailed(f"{store.shown} is not there") from None
        except pa.ArrowException as error:
            raise OSError(str(error)) from None


def put_new(store: Store, key: str, data: bytes) -> bool:
    """Write one object unless it exists; return whether it was written. Raises StoreFailed.

    In a bucket two simultaneous writers may both succeed; the last one stays, so read it back to be
    sure.
    """
    path = f"{store.path}/{key}"
    if store.local:
        with failures(store.shown, store.uri):
            return _put_file(Path(path), data, new=True)
    with failures(store.shown, store.uri):
        if store.filesystem.get_file_info(path).type == fs.FileType.File:
            return False
    put(store, key, data)
    return True


def get(store: Store, path: str, most_bytes: int = MOST_OBJECT_BYTES, *, ours: bool = False) -> bytes:
    """Read one object. FileNotFoundError where it is gone, BadData where it is too large,
    StoreFailed.

    `ours`: from a folder accept only what only root and ourselves could have written, else
    UnsafePlace; in a bucket its owner controls writing.
    """
    with failures(store.shown, store.uri):
        if store.local:  # a plain file: pyarrow's streams take 0.4 ms to open, and there are thousands
            return _read_file(store, path, most_bytes, ours)
        with store.filesystem.open_input_stream(path) as stream:
            data: bytes = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise BadData(f"{store.at(path)} is absurdly large")
    return data


def put_s(store: Store, path: str) -> float:
    """Return when an object arrived, Unix time of the store; NaN if unknown. FileNotFoundError,
    StoreFailed.
    """
    with failures(store.shown, store.uri):
        if store.local:
            return Path(path).lstat().st_mtime
        told = store.filesystem.get_file_info(path).mtime_ns
    return told / 1e9 if told is not None else math.nan


def not_ours(store: Store, path: str) -> str:
    """Say why others could have written this file or folder; '' if they could not, and in a bucket.

    Raises FileNotFoundError, StoreFailed.
    """
    with failures(store.shown, store.uri):
        return why_not_ours(*_from_top(store, path)) if store.local else ""


def _from_top(store: Store, path: str) -> tuple[Path, tuple[str, ...]]:
    """Split an object's path into the store's folder and the parts below it."""
    top = Path(store.path or "/")
    return top, Path(path).relative_to(top).parts


def _read_file(store: Store, path: str, most_bytes: int, ours: bool) -> bytes:
    """Read one object of a folder; `ours` as in `get`. Raises FileNotFoundError, BadData where it is unreadable."""
    try:
        if ours:
            return read_ours(*_from_top(store, path), most_bytes)
        return read_plain(Path(path), most_bytes)
    except FileNotFoundError:
        raise
    except OSError as error:  # concerns this one only: unreadable, or no file; there are others
        raise BadData(f"{store.at(path)}: {error.strerror}") from None


def _remove_file(path: Path) -> None:
    """Remove a file without following links of others, which may lead to files they could not
    remove themselves.
    """
    with opened_folder(path.parent, of_others=True) as place:
        os.unlink(path.name, dir_fd=place)


def remove(store: Store, path: str) -> None:
    """Remove one object; do nothing where it is gone already. Raises StoreFailed."""
    with failures(store.shown, store.uri), suppress(FileNotFoundError):
        if store.local:
            _remove_file(Path(path))
        else:
            store.filesystem.delete_file(path)


def remove_empty(store: Store, folder: str, untouched_since_s: float = math.inf) -> None:
    """Remove an empty folder of objects, with its empty subfolders. For old folders only.

    In a bucket, this removes the empty objects that represent folders, and anything added at the
    same time. In a file system nothing is removed that changed after `untouched_since_s` (Unix
    time). Failures are ignored.
    """
    with suppress(OSError, StoreFailed, UnsafePlace), failures(store.shown, store.uri):
        if store.local:
            with opened_folder(Path(folder).parent, of_others=True) as above:
                with suppress(OSError), opened_folder(Path(folder), of_others=True) as here:
                    if os.fstat(here).st_mtime > untouched_since_s:
                        return
                    for name in os.listdir(here):  # noqa: PTH208  by descriptor
                        with suppress(OSError):
                            os.rmdir(name, dir_fd=here)
                os.rmdir(Path(folder).name, dir_fd=above)
            return
        inside = store.filesystem.get_file_info(fs.FileSelector(folder, recursive=True))
        if all(info.type == fs.FileType.Directory for info in inside):
            store.filesystem.delete_dir(folder)


def clock(store: Store) -> float:
    """Return Unix time of the store's clock, from a file written and removed; NaN if unknown.
    Raises StoreFailed.

    A bucket has a clock of its own, and so has the server of a folder that hosts share.
    """
    # where there is no such store, nothing is old
    with failures(store.shown, store.uri), suppress(FileNotFoundError):
        if store.local:
            with opened_folder(Path(store.path), of_others=True) as place:
                name = partial_name()
                with os.fdopen(create_file(place, name), "wb") as file:
                    os.unlink(name, dir_fd=place)
                    return os.fstat(file.fileno()).st_mtime
        path = f"{store.path}/{partial_name()}"
        with store.filesystem.open_output_stream(path) as stream:
            stream.write(b"")
        told = store.filesystem.get_file_info(path).mtime_ns
        with suppress(FileNotFoundError):
            store.filesystem.delete_file(path)
        return told / 1e9 if told is not None else math.nan
    return math.nan


def listing(store: Store) -> Listing:
    """List all objects below the store's path, or the one that it names. StoreFailed; empty for a
    missing path.
    """
    found, told, closed, moments, foreign = [], [], [], [], 0
    with failures(store.shown, store.uri):
        for count, (path, what, size, put_s) in enumerate(_files(Path(store.path)) if store.local else _objects(store)):
            if count >= _MOST_LISTED:
                raise StoreFailed(f"{store.shown} holds more than {_MOST_LISTED} things: name a job or a window of it")
            if what == _CLOSED:
                closed.append(path)
                continue
            if what == _FOLDER:
                if start_of_moment(path) is not None:
                    moments.append(path)
                continue
            key = parse(path)
            if path.rpartition("/")[2].startswith(PARTIAL):
                continue
            if key is not None:
                found.append(Found(path, key, size, put_s))
            elif (about := start_of_message(path)) is not None:
                told.append(Told(path, about, put_s))
            else:
                foreign += 1
    return Listing(
        tuple(sorted(found, key=_path)), foreign, tuple(sorted(told, key=_path)), tuple(sorted(closed)), tuple(sorted(moments))
    )  # fmt: skip


def _path(each: Found | Told) -> str:
    """Return the path, as a key to sort by."""
    return each.path


def _objects(store: Store) -> Iterator[_Thing]:
    """Yield the entries of a store that is not local, at any depth; or the one object that its path names."""
    infos = [store.filesystem.get_file_info(store.path)]
    if infos[0].type != fs.FileType.File:
        infos = store.filesystem.get_file_info(fs.FileSelector(store.path, recursive=True, allow_not_found=True))
    for info in infos:
        if info.type == fs.FileType.File:
            put_s = info.mtime_ns / 1e9 if info.mtime_ns is not None else math.nan
            yield _Thing(info.path, size_bytes=int(info.size or 0), put_s=put_s)
        elif info.type == fs.FileType.Directory:
            yield _Thing(info.path, _FOLDER)


def _files(top: Path) -> Iterator[_Thing]:
    """Walk a folder as deep as objects lie, without following links, which could make an endless
    tree.

    Unreadable folders are yielded as closed and hide nothing else; what disappears meanwhile is
    skipped.
    """
    if top.is_file():
        about = top.stat()
        yield _Thing(str(top), size_bytes=about.st_size, put_s=about.st_mtime)
        return
    folders = [(str(top), 0)]
    while folders:
        folder, depth = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _DEEPEST:
                            folders.append((entry.path, depth + 1))
                        yield _Thing(entry.path, _FOLDER)
                    elif entry.is_file(follow_symlinks=False) and (seen := _looked_at(entry)) is not None:
                        yield seen
        except FileNotFoundError:
            continue  # gone since it was listed
        except OSError:
            if not depth:
                raise
            yield _Thing(folder, _CLOSED)


def _looked_at(entry: os.DirEntry[str]) -> _Thing | None:
    """Stat an entry; None where it is gone since it was listed."""
    try:
        about = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError:
        return _Thing(entry.path, _CLOSED)
    return _Thing(entry.path, size_bytes=about.st_size, put_s=about.st_mtime)


def _put_file(path: Path, data: bytes, new: bool = False) -> bool:
    """Write a file, retrying if its folder is removed meanwhile (`remove_empty`); return whether it
    was written.

    False only if it must be `new` and exists.
    """
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):
            return _put_once(path, data, new)
    return _put_once(path, data, new)


def _put_once(path: Path, data: bytes, new: bool) -> bool:
    """Write a file, creating its folder; False if it must be `new` and exists.

    Raises FileNotFoundError where the folder is removed meanwhile, OSError.
    """
    with opened_folder(path.parent, make=True) as place:
        remove_left(place)
        try:
            put_file(place, path.name, lambda file: file.write(data), new=new)
        except FileExistsError:
            if new:
                return False
            raise
        with suppress(OSError):  # it is complete; a disk that cannot confirm safety cannot be helped
            os.fsync(place)
    return True
