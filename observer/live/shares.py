"""Select what is observed where there is no room for all: each user in turn, the largest jobs first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from rankscope.observer.census.found import FoundRank, user_of
from rankscope.observer.live import limits
from rankscope.observer.live.process_watch import ProcessWatch
from rankscope.probes.host.fair import group_by, interleave

_PARTS = 8


@dataclass(slots=True)
class Places:
    """A fair number of places: half for anybody, the rest reserved in equal parts per user.

    A part is an eighth, or less with more than four users. With one user all places are free for
    him.
    """

    most: int
    users: Collection[str]
    _taken: int = 0
    _of_each: Counter[str] = field(default_factory=Counter)
    _reserved: int = 0  # reserved places not used yet

    def __post_init__(self) -> None:
        self._reserved = self._part * len(self.users)

    @property
    def _part(self) -> int:
        """Number of places reserved for each user; 0 if there is one user alone."""
        return self.most // max(_PARTS, 2 * len(self.users)) if len(self.users) > 1 else 0

    @property
    def freely(self) -> int:
        """Number of places taken before anybody may be refused one."""
        return self.most - self._part * len(self.users)

    def left(self, user: str) -> int:
        """Return the places left for a user: the free ones, and the rest of his part."""
        return self.most - self._taken - self._reserved + self._own(user)

    def take(self, user: str, many: int = 1) -> None:
        """Take `many` places for a user; below 0: return them."""
        own = self._own(user)
        self._taken += many
        self._of_each[user] += many
        self._reserved += self._own(user) - own

    def _own(self, user: str) -> int:
        """Return how many of a user's reserved places are left; 0 for users without any."""
        return max(self._part - self._of_each[user], 0) if user in self.users else 0


@dataclass(frozen=True, slots=True)
class Room:
    """Places for processes: of a window (ended ones included), in the kernel, and for their
    threads.
    """

    watched: Places
    alive: Places
    threads: Places

    def for_one(self, user: str, again: bool) -> bool:
        """Tell whether a user may have one more process; `again`: it reuses the pid of an ended
        one.
        """
        return self.alive.left(user) > 0 and (again or self.watched.left(user) > 0)

    def enter(self, process: ProcessWatch, user: str, again: bool = False) -> None:
        """Count one more process and its threads; `again`: it reuses the pid of an ended one."""
        self.watched.take(user, int(not again))
        if not process.gone:
            self.alive.take(user)
            self.threads.take(user, entries(process))


def entries(process: ProcessWatch) -> int:
    """Return a process's number of threads in the kernel's map, at least its main thread."""
    return max(len(process.threads), 1)


def room_left(
    processes: Iterable[ProcessWatch], users: Collection[str], whose: Callable[[ProcessWatch], str], alive: int, threads: int
) -> Room:  # fmt: skip
    """Compute the room that `processes` leave, of the limit per window and of `alive` and `threads`
    in the kernel.
    """
    room = Room(Places(limits.PROCESSES, users), Places(alive, users), Places(threads, users))
    for process in processes:
        room.enter(process, whose(process))
    return room


def ranks_with_room(ranks: Sequence[FoundRank]) -> tuple[tuple[FoundRank, ...], str]:
    """Select at most RANKS ranks, each user's in turn, largest jobs first; and a note on the
    others.
    """
    if len(ranks) <= limits.RANKS:
        return tuple(ranks), ""
    sizes = Counter(rank.identity.job for rank in ranks)
    ordered = sorted(ranks, key=lambda one: (-sizes[one.identity.job], one.identity.job, one.identity.rank))
    kept = {id(rank) for rank in interleave(group_by(ordered, user_of), limits.RANKS)}
    left = len(ranks) - len(kept)
    said = f"{left} of the {len(ranks)} ranks of this host were not observed: there is room for {len(kept)}"
    return tuple(rank for rank in ranks if id(rank) in kept), said


def jobs_with_room(ranks: Sequence[FoundRank]) -> tuple[tuple[FoundRank, ...], str]:
    """Select the ranks of at most JOBS jobs, and a note on the others; '' where there are none.

    A user can create any number of jobs, one rank each: each user's largest job comes before
    another's second.
    """
    sizes = Counter(rank.identity.job for rank in ranks)
    if len(sizes) <= limits.JOBS:
        return tuple(ranks), ""
    whose = {rank.identity.job: user_of(rank) for rank in reversed(ranks)}
    of_users = group_by(sorted(sizes, key=lambda one: (-sizes[one], one)), whose.__getitem__)
    kept = frozenset(interleave(of_users, limits.JOBS))
    said = f"{len(sizes) - len(kept)} of the {len(sizes)} jobs of this host were not observed: there is room for {limits.JOBS}"
    return tuple(rank for rank in ranks if rank.identity.job in kept), said


def choose_sampled(unknown: Sequence[FoundRank]) -> tuple[list[int], str]:
    """Select the pids of ranks to run py-spy on, and a note on the others; '' where there are none."""
    kept = [rank.pid for rank in interleave(group_by(unknown, user_of), limits.SAMPLED_MOST)]
    left = len(unknown) - len(kept)
    return kept, f"py-spy was run on {len(kept)} ranks alone: {left} more are without stacks" if left else ""
