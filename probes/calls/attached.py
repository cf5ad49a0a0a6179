"""Which functions of which files are attached for a row, and which files go where it costs too much. Pure.

What is called is counted for each file apart, as far as there are places (RS_MAX_PLACES in calls.bpf.c), and each file has its part of
what a row may cost: by how many of the watched processes map it. So what is called too often in a file goes there, and stays for those
who map others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from rankscope.probes.calls.row import MAX_PLACES, MAX_ROWS
from rankscope.probes.fair import Fair

FileKey = tuple[str, int]  # device and inode
# Of the MAX_PLACES - MAX_ROWS: whosever they are; of a user when these are used up.
PLACES_FREELY, PLACES_EACH = 1024, 128


@dataclass(frozen=True, slots=True)
class Untimed:
    """Functions of a file that were to be timed and are not; `roles` of their rows. `refused`: never were; else some of the time."""

    file: FileKey
    roles: frozenset[str]
    why: str
    refused: bool = True


@dataclass(slots=True)
class Row:
    """What `release` takes, by file: of its functions, and of the places that they are called from. `seen`: files that had it ever;
    `places`: under which number the calls of each are counted."""

    links: dict[FileKey, list[int]] = field(default_factory=dict)
    sites: dict[FileKey, list[int]] = field(default_factory=dict)
    seen: set[FileKey] = field(default_factory=set)
    places: dict[FileKey, int] = field(default_factory=dict)

    def parts(self, mapped_by: Mapping[FileKey, AbstractSet[int]]) -> dict[int, float]:
        """What each place that is still attached has of what the row may cost where all are: as many of all processes as map its files.
        Who maps several counts for each of them in part."""
        everybody = len(processes_of(self.seen, mapped_by))
        maps_of: dict[int, list[int]] = {}
        for file in self.links:
            for pid in mapped_by.get(file, ()):
                maps_of.setdefault(pid, []).append(self.places[file])
        found = dict.fromkeys((self.places[file] for file in self.links), 0.0)
        for places in maps_of.values():
            for place in places:
                found[place] += 1 / len(places) / everybody
        return found

    def in_places(self, places: Iterable[int]) -> tuple[FileKey, ...]:
        """The files that are attached there."""
        chosen = set(places)
        return tuple(file for file in self.links if self.places[file] in chosen)

    def take(self, files: Sequence[FileKey]) -> tuple[int, ...]:
        """These are let go of: their descriptors."""
        taken = [self.links.pop(file, []) + self.sites.pop(file, []) for file in files]
        return tuple(one for links in taken for one in links)

    def take_sites(self, files: Sequence[FileKey]) -> tuple[int, ...]:
        """The same of the places that they are called from alone."""
        return tuple(one for file in files for one in self.sites.pop(file, ()))


@dataclass(slots=True)
class Places:
    """Numbers under which the calls of a row in one file are counted. Nobody's many files take those of others."""

    _next: int = MAX_ROWS
    _fair: Fair = field(default_factory=lambda: Fair(PLACES_FREELY, PLACES_EACH))

    def take(self, row: int, user: Callable[[], str]) -> int:
        """One for a file of his; where he has none left, that of the row, which all such files have together: dozens of containers on one
        host have a file each."""
        if self._next >= MAX_PLACES or self._fair.left(user) <= 0:
            return row
        self._fair.took(1, user)
        self._next += 1
        return self._next - 1


def processes_of(files: Iterable[FileKey], mapped_by: Mapping[FileKey, AbstractSet[int]]) -> set[int]:
    """Who maps one of these files."""
    return {pid for file in files for pid in mapped_by.get(file, ())}


def too_often(calls: Mapping[int, float], parts: Mapping[int, float], allowed: float) -> tuple[int, ...]:
    """The places that go so that the rest has no more `calls` than it may, its parts of what is `allowed`: those that have most beyond
    their own, and none that is within it."""
    rest, may = float(sum(calls.values())), allowed * sum(parts[place] for place in calls)
    gone: list[int] = []
    for place in sorted(calls, key=lambda one: -calls[one] / max(parts[one], 1e-9)):
        if rest <= may or calls[place] <= allowed * parts[place]:
            break
        gone.append(place)
        rest, may = rest - calls[place], may - allowed * parts[place]
    return tuple(gone)
