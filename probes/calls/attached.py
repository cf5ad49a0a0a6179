"""Which files are attached for a row of the call table, and which to detach when calls cost too much. Pure.

Calls are counted per file, as far as there are places (RS_MAX_PLACES in calls.bpf.c). Each file has
a share of the row's budget, by how many of the watched processes map it. A file whose functions are
called too often is detached; the row remains attached in the files of other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from rankscope.probes.calls.row import MAX_PLACES, MAX_ROWS
from rankscope.probes.host.fair import Fair

FileKey = tuple[str, int]  # device and inode
# Limits of the MAX_PLACES - MAX_ROWS places: the first are for anybody; then each user has so many.
PLACES_FREELY, PLACES_EACH = 1024, 128


@dataclass(frozen=True, slots=True)
class Untimed:
    """Functions of a file that are not timed, with the `roles` of their rows and the reason `why`.

    `refused`: they were never timed; else only part of the time.
    """

    file: FileKey
    roles: frozenset[str]
    why: str
    refused: bool = True


@dataclass(slots=True)
class Row:
    """Descriptors of one row by file: of its functions (`links`) and of its call sites (`sites`).

    `seen`: files that were ever attached; `places`: index under which the calls of each are
    counted.
    """

    links: dict[FileKey, list[int]] = field(default_factory=dict)
    sites: dict[FileKey, list[int]] = field(default_factory=dict)
    seen: set[FileKey] = field(default_factory=set)
    places: dict[FileKey, int] = field(default_factory=dict)

    def parts(self, mapped_by: Mapping[FileKey, AbstractSet[int]]) -> dict[int, float]:
        """Return each attached place's share of the row's budget, by the processes that map its
        files.

        All files together have 1 while all are attached. A process that maps several splits its
        share among them.
        """
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
        """List the attached files counted under these places."""
        chosen = set(places)
        return tuple(file for file in self.links if self.places[file] in chosen)

    def take(self, files: Sequence[FileKey]) -> tuple[int, ...]:
        """Remove files from the row; return the descriptors of their functions and call sites, for the caller to close."""
        taken = [self.links.pop(file, []) + self.sites.pop(file, []) for file in files]
        return tuple(one for links in taken for one in links)

    def take_sites(self, files: Sequence[FileKey]) -> tuple[int, ...]:
        """Remove only the call sites of files from the row; return their descriptors, for the caller to close."""
        return tuple(one for file in files for one in self.sites.pop(file, ()))


@dataclass(slots=True)
class Places:
    """Allocates indices under which the calls of a row in one file are counted, fairly between
    users.
    """

    _next: int = MAX_ROWS
    _fair: Fair = field(default_factory=lambda: Fair(PLACES_FREELY, PLACES_EACH))

    def take(self, row: int, user: Callable[[], str]) -> int:
        """Allocate an index for a file of `user`; once exhausted, return the index `row`, shared by
        such files.

        Dozens of containers on one host have a file each.
        """
        if self._next >= MAX_PLACES or self._fair.left(user) <= 0:
            return row
        self._fair.spend(1, user)
        self._next += 1
        return self._next - 1


def processes_of(files: Iterable[FileKey], mapped_by: Mapping[FileKey, AbstractSet[int]]) -> set[int]:
    """Return the pids of the processes that map at least one of these files."""
    return {pid for file in files for pid in mapped_by.get(file, ())}


def too_often(calls: Mapping[int, float], parts: Mapping[int, float], allowed: float) -> tuple[int, ...]:
    """Choose the places to detach so that the rest stays within its budget.

    `calls`: how many each place had; `allowed`: how many all together may have; `parts`: each place's share
    of `allowed`. Those furthest above their share are chosen first; none within its share is chosen.
    """
    rest, may = float(sum(calls.values())), allowed * sum(parts[place] for place in calls)
    gone: list[int] = []
    for place in sorted(calls, key=lambda one: -calls[one] / max(parts[one], 1e-9)):
        if rest <= may or calls[place] <= allowed * parts[place]:
            break
        gone.append(place)
        rest, may = rest - calls[place], may - allowed * parts[place]
    return tuple(gone)
