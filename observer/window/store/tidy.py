"""Remove old windows, and merge those of one time: both can be stopped at any point and repeated.

Windows of one shard at one time are merged: a store with a million small objects is slow to list
and expensive to read. The new object exists before the old ones are removed; a reader in between
sees a window twice, and uses it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rankscope.observer.window.folder import Window
from rankscope.observer.window.store import objects
from rankscope.observer.window.store.age import Clocks, old_in
from rankscope.observer.window.store.container import MOST_OBJECT_BYTES, decode, encode
from rankscope.observer.window.store.keys import fits, folder_of_moment, key_of_several, start_of_moment
from rankscope.observer.window.store.objects import Found, Listing
from rankscope.observer.window.store.place import Store, StoreFailed
from rankscope.probes.base.errors import BadData
from rankscope.probes.base.folders import UnsafePlace

# a host whose store was unreachable sends its spool; later arrivals are merged the next time
SETTLED_S = 3600.0
_MOST_TOGETHER_BYTES = MOST_OBJECT_BYTES // 8


@dataclass(frozen=True, slots=True)
class Tidied:
    """Results of a cleanup: objects and bytes removed, objects made.

    `unreadable`: skipped because they cannot be read, listed or removed, or because their names do
    not match; `foreign`: number of things that are no windows; `ahead`: remaining windows with
    future names.
    """

    removed: int
    removed_bytes: int
    made: int
    unreadable: tuple[str, ...]
    foreign: int
    ahead: int = 0


def prune(
    store: Store, older_than_s: float, clocks: Clocks, *, dry: bool = False, clock_is_right: bool = False
) -> Tidied:
    """Remove windows older than `older_than_s`, and messages about them (age.py). Raises
    ClockInDoubt, StoreFailed.

    Other things are left alone, and so are folders that contain any.
    """
    there = objects.listing(store)
    old = old_in(there, older_than_s, clocks, clock_is_right=clock_is_right)
    left = [store.at(path) for path in there.closed]
    gone = [path for path in old.sizes_bytes if dry or _removed(store, path, left)]
    if not dry:
        for folder in sorted({moment for path in gone if (moment := folder_of_moment(path))}):
            objects.remove_empty(store, folder)
        for folder in _empty(
            there, clocks.earlier_s - older_than_s
        ):  # left by an interrupted run, or by a simultaneous writer
            objects.remove_empty(store, folder, clocks.earlier_s - SETTLED_S)
    return Tidied(len(gone), sum(old.sizes_bytes[path] for path in gone), 0, tuple(left), there.foreign, old.ahead)


def _empty(there: Listing, before_s: float) -> list[str]:
    """List the folders of old windows without objects."""
    full = {folder_of_moment(found.path) for found in there.objects}
    return [folder for folder in there.moments if folder not in full and (start_of_moment(folder) or 0) < before_s]


def compact(store: Store, now_s: float, settled_s: float = SETTLED_S) -> Tidied:
    """Merge the settled windows of each shard at each time into one object."""
    there = objects.listing(store)
    removed, freed, made = 0, 0, 0
    unreadable = [store.at(path) for path in there.closed]
    for folder, members in _shards(there.objects, now_s - settled_s):
        windows, read, whole = _read(store, members, unreadable)
        if len(read) < 2 or not whole:  # a simultaneous prune or merge must not be undone
            continue
        hosts = [f"{window.manifest.host}/{window.manifest.machine}/{window.manifest.start!r}" for window in windows]
        key = key_of_several(folder.removeprefix(store.path).lstrip("/"), hosts)
        data = encode(windows)
        if not any(found.path == f"{store.path}/{key}" for found in read):
            objects.put(store, key, data)
            made += 1
            freed -= len(data)
        for found in read:
            if found.path != f"{store.path}/{key}" and _removed(store, found.path, unreadable):
                removed += 1
                freed += found.size_bytes
    return Tidied(removed, freed, made, tuple(unreadable), there.foreign)


def _removed(store: Store, path: str, left: list[str]) -> bool:
    """Remove an object; return False, and list it as left, where a local path is unsafe or fails.

    In a folder that others can write a path may have been redirected: that must not stop the rest.
    """
    try:
        objects.remove(store, path)
    except (UnsafePlace, StoreFailed):
        if not store.local:
            raise
        left.append(store.at(path))
        return False
    return True


def once(windows: Iterable[Window]) -> list[Window]:
    """Return each window once, however many objects contain it."""
    seen: dict[object, Window] = {}
    for window in windows:
        about = window.manifest
        seen.setdefault((about.host, about.machine, about.jobs, about.start), window)
    return list(seen.values())


def _shards(found: tuple[Found, ...], before_s: float) -> Iterator[tuple[str, list[Found]]]:
    """Yield folders with several objects of settled times, in parts that fit into one object."""
    folders: dict[str, list[Found]] = {}
    for each in found:
        if each.key.start < before_s:
            folders.setdefault(each.path.rpartition("/")[0], []).append(each)
    for folder, members in sorted(folders.items()):
        part: list[Found] = []
        for each in members:
            if part and sum(one.size_bytes for one in part) + each.size_bytes > _MOST_TOGETHER_BYTES:
                yield folder, part
                part = []
            part.append(each)
        if len(part) > 1:
            yield folder, part


def _read(store: Store, members: list[Found], unreadable: list[str]) -> tuple[list[Window], list[Found], bool]:
    """Read the windows of these objects, each once; also return the readable objects, and whether
    all still existed.
    """
    windows: list[Window] = []
    read, whole = [], True
    for found in members:
        try:
            # Merged objects are ours from then on: nothing that others could have written may
            # become so.
            inside = decode(objects.get(store, found.path, ours=True))
        except FileNotFoundError:
            whole = False
        except (BadData, UnsafePlace):
            unreadable.append(store.at(found.path))
        else:
            # Readers compare a single window's object with its name, which is impossible for merged
            # ones: so check before.
            if found.key.host and not all(fits(found.path, window.manifest) for window in inside):
                unreadable.append(store.at(found.path))
                continue
            windows += inside
            read.append(found)
    return sorted(once(windows), key=lambda window: (window.manifest.host, window.manifest.start)), read, whole
