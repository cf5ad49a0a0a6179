"""Old windows removed, and those of one moment put together: both may be stopped at any point and done again.

Put together are the windows of one shard of one moment: a store with a million small objects is slow to list and dear to read. The new
object is there before the old ones go; who reads meanwhile sees a window twice, and takes it once.
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
from rankscope.probes.errors import BadData
from rankscope.probes.host.folders import UnsafePlace

SETTLED_S = 3600.0  # a host whose store was away sends what it spooled; what comes later is put together the next time
_MOST_TOGETHER_BYTES = MOST_OBJECT_BYTES // 8


@dataclass(frozen=True, slots=True)
class Tidied:
    """How many objects went, how many bytes, how many came in their place; what was left alone because it cannot be read, looked at or
    removed, or is of another host or moment than its name says; how many things there are no windows; and how many windows that stay are of
    a moment to come, by their names."""

    removed: int
    removed_bytes: int
    made: int
    unreadable: tuple[str, ...]
    foreign: int
    ahead: int = 0


def prune(
    store: Store, older_than_s: float, clocks: Clocks, *, dry: bool = False, clock_is_right: bool = False
) -> Tidied:
    """Remove the moments whose windows began more than `older_than_s` ago, and what hosts told each other about them (age.py). What is
    neither is left alone, and so is a folder of an old moment in which anything lies. ClockInDoubt, StoreFailed."""
    there = objects.listing(store)
    old = old_in(there, older_than_s, clocks, clock_is_right=clock_is_right)
    left = [store.at(path) for path in there.closed]
    gone = [path for path in old.sizes_bytes if dry or _removed(store, path, left)]
    if not dry:
        for folder in sorted({moment for path in gone if (moment := folder_of_moment(path))}):
            objects.remove_empty(store, folder)
        for folder in _empty(
            there, clocks.earlier_s - older_than_s
        ):  # of one that was stopped, or beside which another wrote
            objects.remove_empty(store, folder, clocks.earlier_s - SETTLED_S)
    return Tidied(len(gone), sum(old.sizes_bytes[path] for path in gone), 0, tuple(left), there.foreign, old.ahead)


def _empty(there: Listing, before_s: float) -> list[str]:
    """Folders of old moments in which no object was."""
    full = {folder_of_moment(found.path) for found in there.objects}
    return [folder for folder in there.moments if folder not in full and (start_of_moment(folder) or 0) < before_s]


def compact(store: Store, now_s: float, settled_s: float = SETTLED_S) -> Tidied:
    """Put the windows of each shard of each moment that is over into one object."""
    there = objects.listing(store)
    removed, freed, made = 0, 0, 0
    unreadable = [store.at(path) for path in there.closed]
    for folder, members in _shards(there.objects, now_s - settled_s):
        windows, read, whole = _read(store, members, unreadable)
        if len(read) < 2 or not whole:  # who prunes, or puts together beside us, is not to be undone
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
    """Whether it went. In a folder that others can write somebody may have turned the way to it: that keeps no other one from going."""
    try:
        objects.remove(store, path)
    except (UnsafePlace, StoreFailed):
        if not store.local:
            raise
        left.append(store.at(path))
        return False
    return True


def once(windows: Iterable[Window]) -> list[Window]:
    """Each window once, however many objects hold it."""
    seen: dict[object, Window] = {}
    for window in windows:
        about = window.manifest
        seen.setdefault((about.host, about.machine, about.jobs, about.start), window)
    return list(seen.values())


def _shards(found: tuple[Found, ...], before_s: float) -> Iterator[tuple[str, list[Found]]]:
    """Folders with more than one object of moments that are over; not more at a time than an object may hold."""
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
    """The windows of these objects, each once, the objects that could be read, and whether none has gone since it was listed."""
    windows: list[Window] = []
    read, whole = [], True
    for found in members:
        try:
            # What is put together is ours from then on: nothing that others could have written becomes so.
            inside = decode(objects.get(store, found.path, ours=True))
        except FileNotFoundError:
            whole = False
        except (BadData, UnsafePlace):
            unreadable.append(store.at(found.path))
        else:
            # Readers ask of one host's object whose its windows are, and of those put together they cannot.
            if found.key.host and not all(fits(found.path, window.manifest) for window in inside):
                unreadable.append(store.at(found.path))
                continue
            windows += inside
            read.append(found)
    return sorted(once(windows), key=lambda window: (window.manifest.host, window.manifest.start)), read, whole
