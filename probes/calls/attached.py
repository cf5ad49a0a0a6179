"""Which functions of which files are attached for a row, and which files go first where it costs too much. Pure.

How often a file's functions are called nobody counts apart: a look into one more map would cost every call of everybody. So the files go
by halves, those that the fewest watched processes map first, until the rest is within its budget: what one process has for itself costs
the others nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

FileKey = tuple[str, int]  # device and inode


@dataclass(slots=True)
class Row:
    """What `release` takes, by file: of its functions, and of the places that they are called from. `seen`: files that had it ever."""

    links: dict[FileKey, list[int]] = field(default_factory=dict)
    sites: dict[FileKey, list[int]] = field(default_factory=dict)
    seen: set[FileKey] = field(default_factory=set)

    def share(self, mapped_by: Mapping[FileKey, AbstractSet[int]]) -> float:
        """How many of the processes that map its files map one that is still attached."""
        if len(self.links) == len(self.seen):
            return 1.0
        all_of_them = len(processes_of(self.seen, mapped_by))
        return len(processes_of(self.links, mapped_by)) / all_of_them if all_of_them else 1.0

    def take(self, files: Sequence[FileKey]) -> tuple[int, ...]:
        """These are let go of: their descriptors."""
        taken = [self.links.pop(file, []) + self.sites.pop(file, []) for file in files]
        return tuple(one for links in taken for one in links)


def processes_of(files: Iterable[FileKey], mapped_by: Mapping[FileKey, AbstractSet[int]]) -> set[int]:
    """Who maps one of these files."""
    return {pid for file in files for pid in mapped_by.get(file, ())}


def first_to_go(row: Row, mapped_by: Mapping[FileKey, AbstractSet[int]]) -> tuple[FileKey, ...]:
    """The half of its files that the fewest processes map; all of them where no file is another's equal in that."""
    count = {file: len(mapped_by.get(file, ())) for file in row.links}
    if len(set(count.values())) < 2:
        return tuple(count)
    most = max(count.values())
    files = sorted((file for file in count if count[file] < most), key=lambda file: count[file])
    return tuple(files[: max(len(count) // 2, 1)])
