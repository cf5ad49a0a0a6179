"""Caches of code objects, bounded by bytes over all processes together.

A process decides how long its names and line tables are, and how many. While there is room, caches
grow freely; then a cache that grows evicts its own oldest entries. Each may use a little, however
much others use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# A function takes one or two kilobytes, one process of a job some hundreds of functions.
ALL_BYTES = 64 << 20
LEAST_BYTES = 1 << 20  # of one process, also when the others have used up all

What = TypeVar("What")


@dataclass(slots=True)
class Room:
    """Counter of bytes that several `BoundedCache` use together."""

    taken: int = 0


ROOM = Room()


@dataclass(slots=True)
class _Entry(Generic[What]):
    """A cached value and its size in bytes."""

    what: What
    size: int


@dataclass(slots=True)
class BoundedCache(Generic[What]):
    """Cache by key, least recently used evicted first; callers read evicted entries again."""

    room: Room = field(default_factory=lambda: ROOM)
    _entries: OrderedDict[Hashable, _Entry[What]] = field(default_factory=OrderedDict)
    _mine: int = 0

    def get(self, key: Hashable) -> What | None:
        """Return the entry of `key`, None where it is not cached."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.what

    def put(self, key: Hashable, what: What, size: int) -> None:
        """Store an entry of `size` bytes, evicting old ones where there is no room."""
        self._drop(key)
        self._entries[key] = _Entry(what, size)
        self._count(size)
        self._make_room()

    def grew(self, key: Hashable, size: int) -> None:
        """Add `size` bytes to the recorded size of an entry."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.size += size
            self._count(size)
            self._make_room()

    def _make_room(self) -> None:
        """Evict this cache's oldest entries while it exceeds LEAST_BYTES and all caches together ALL_BYTES."""
        while self._mine > LEAST_BYTES and self.room.taken > ALL_BYTES:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Hashable) -> None:
        """Remove the entry of `key`, if there is one, and subtract its size."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._count(-entry.size)

    def _count(self, size: int) -> None:
        """Add `size` bytes (negative: subtract) to the sizes of this cache and of all together."""
        self._mine += size
        self.room.taken += size

    def __del__(self) -> None:
        self.room.taken -= self._mine
