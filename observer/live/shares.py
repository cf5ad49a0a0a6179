"""What of many jobs and ranks is observed where there is no room for all: each user in turn, the largest first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from rankscope.observer.census.found import FoundRank, user_of
from rankscope.observer.live import limits
from rankscope.observer.live.process_watch import ProcessWatch
from rankscope.probes.fair import by_kind, in_turn

_PARTS = 8


@dataclass(slots=True)
class Places:
    """So many places for all that is observed. A part of them is each user's own, an eighth, or less where there are more than four
    users: half is anybody's. Of one user alone all are."""

    most: int
    users: Collection[str]
    _taken: int = 0
    _of_each: Counter[str] = field(default_factory=Counter)
    _owed: int = 0  # kept for users who have not used their part up

    def __post_init__(self) -> None:
        self._owed = self._part * len(self.users)

    @property
    def _part(self) -> int:
        return self.most // max(_PARTS, 2 * len(self.users)) if len(self.users) > 1 else 0

    @property
    def freely(self) -> int:
        """So many are taken before anybody may be refused one."""
        return self.most - self._part * len(self.users)

    def left(self, user: str) -> int:
        """For a user: what is anybody's, and what is left of his part."""
        return self.most - self._taken - self._owed + self._own(user)

    def take(self, user: str, many: int = 1) -> None:
        """So many are his; below 0: are his no more."""
        own = self._own(user)
        self._taken += many
        self._of_each[user] += many
        self._owed += self._own(user) - own

    def _own(self, user: str) -> int:
        return max(self._part - self._of_each[user], 0) if user in self.users else 0


@dataclass(frozen=True, slots=True)
class Room:
    """Places of processes in a window, those that have ended among them; in the kernel, of processes and of their threads."""

    watched: Places
    alive: Places
    threads: Places

    def for_one(self, user: str, again: bool) -> bool:
        """Whether a user may have one more process; `again`: its number is that of one that has ended."""
        return self.alive.left(user) > 0 and (again or self.watched.left(user) > 0)

    def enter(self, process: ProcessWatch, user: str, again: bool = False) -> None:
        """It is one more."""
        self.watched.take(user, int(not again))
        if not process.gone:
            self.alive.take(user)
            self.threads.take(user, entries(process))


def entries(process: ProcessWatch) -> int:
    """Of a process among the threads in the kernel: one has its main thread there at least."""
    return max(len(process.threads), 1)


def room_beside(
    processes: Iterable[ProcessWatch], users: Collection[str], whose: Callable[[ProcessWatch], str], alive: int, threads: int
) -> Room:  # fmt: skip
    """What these leave of as many as may be watched, and of places in the kernel for so many that are `alive` and their `threads`."""
    room = Room(Places(limits.PROCESSES, users), Places(alive, users), Places(threads, users))
    for process in processes:
        room.enter(process, whose(process))
    return room


def ranks_with_room(ranks: Sequence[FoundRank]) -> tuple[tuple[FoundRank, ...], str]:
    """As many ranks as one observation is of, each user's in turn, of his largest jobs first; and what to say of the others."""
    if len(ranks) <= limits.RANKS:
        return tuple(ranks), ""
    sizes = Counter(rank.identity.job for rank in ranks)
    ordered = sorted(ranks, key=lambda one: (-sizes[one.identity.job], one.identity.job, one.identity.rank))
    kept = {id(rank) for rank in in_turn(by_kind(ordered, user_of), limits.RANKS)}
    left = len(ranks) - len(kept)
    said = f"{left} of the {len(ranks)} ranks of this host were not observed: there is room for {len(kept)}"
    return tuple(rank for rank in ranks if id(rank) in kept), said


def jobs_with_room(ranks: Sequence[FoundRank]) -> tuple[tuple[FoundRank, ...], str]:
    """The ranks of as many jobs as windows are made of, and what to say of the others; '' where there are none.

    Anybody has as many jobs as he names, a rank each: a user's largest is taken before another's second.
    """
    sizes = Counter(rank.identity.job for rank in ranks)
    if len(sizes) <= limits.JOBS:
        return tuple(ranks), ""
    whose = {rank.identity.job: user_of(rank) for rank in reversed(ranks)}
    of_users = by_kind(sorted(sizes, key=lambda one: (-sizes[one], one)), whose.__getitem__)
    kept = frozenset(in_turn(of_users, limits.JOBS))
    said = f"{len(sizes) - len(kept)} of the {len(sizes)} jobs of this host were not observed: there is room for {limits.JOBS}"
    return tuple(rank for rank in ranks if rank.identity.job in kept), said


def sampled_beside(unknown: Sequence[FoundRank]) -> tuple[list[int], str]:
    """Pids of as many of these ranks as py-spy runs beside at once, and what to say of the others; '' where there are none."""
    kept = [rank.pid for rank in in_turn(by_kind(unknown, user_of), limits.SAMPLED_BESIDE)]
    left = len(unknown) - len(kept)
    return kept, f"py-spy was run on {len(kept)} ranks alone: {left} more are without stacks" if left else ""
