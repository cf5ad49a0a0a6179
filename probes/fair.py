"""What the processes of one user may cost who looks at all. Pure but for `whose` and the clock.

A user says how many processes he has, how many files they map and hold, and how long reading that takes. While all together cost little
nobody is held to anything; beyond that those go on who have cost little themselves.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rankscope.probes.host import procfs
from rankscope.probes.host.namespaces import owner_uid

_CGROUP_CAP = 4096
_User = TypeVar("_User", bound=Hashable)
_Thing = TypeVar("_Thing")


def by_kind(things: Iterable[_Thing], kind: Callable[[_Thing], _User]) -> dict[_User, list[_Thing]]:
    """Things of each kind (of each user, say), for `in_turn`: the kind that comes first has the first turn."""
    of_users: dict[_User, list[_Thing]] = {}
    for thing in things:
        of_users.setdefault(kind(thing), []).append(thing)
    return of_users


def in_turn(of_users: Mapping[_User, Iterable[_Thing]], most: int | None = None) -> list[_Thing]:
    """At most so many things, or all: the first of each user, then the second of each, and so on. Nobody's many keep out another's few."""
    found: list[_Thing] = []
    waiting = [iter(things) for things in of_users.values()]
    while waiting and (most is None or len(found) < most):
        still = []
        for things in waiting:
            for thing in things:
                found.append(thing)
                still.append(things)
                break
        waiting = still
    return found[:most]


def least_first(of_users: Mapping[_User, Iterable[_Thing]]) -> Iterator[_Thing]:
    """All things, of each user in order: the next is always of the user on whose things the least time went (CLOCK_MONOTONIC), which is
    what passes until the one after it is asked for."""
    waiting = [(0.0, place, iter(things)) for place, things in enumerate(of_users.values())]
    while waiting:
        spent_s, place, things = waiting[0]
        began_s = time.monotonic()
        for thing in things:
            yield thing
            heapq.heapreplace(waiting, (spent_s + time.monotonic() - began_s, place, things))
            break
        else:
            heapq.heappop(waiting)


@dataclass(slots=True)
class Fair:
    """Seconds, or things that were read. `freely`: of all together; `each`: of a user when that is used up."""

    freely: float
    each: float
    _all: float = 0.0
    _by_user: dict[str, float] = field(default_factory=dict)

    def left(self, user: Callable[[], str]) -> float:
        """How much of it there is for a user, of what is free or of his own; nobody is asked who it is while there is plenty."""
        free = self.freely - self._all
        return free if free >= self.each else max(free, self.each - self._by_user.get(user(), 0.0))

    def took(self, amount: float, user: Callable[[], str]) -> None:
        """So much went for a process of that user. While there is plenty what is next to nothing is nobody's: to ask whose it is costs
        more."""
        self._all += amount
        if amount > self.each / 1000 or self._all >= self.freely:
            mine = user()
            self._by_user[mine] = self._by_user.get(mine, 0.0) + amount


def whose(pid: int, root: Path) -> str:
    """The user of the host to whom a process belongs; root's, which may be in many containers, by control group."""
    uid = owner_uid(pid, root)
    if uid:
        return f"user {uid}"
    try:
        return f"root in {procfs.read_file(procfs.proc_path(root, pid, 'cgroup'), _CGROUP_CAP)!r}"
    except OSError:
        return "root"


class About(str):
    """A note about some processes, as much of it is text of theirs (names of libraries, of files). `pids`: which; looked at when it is
    read, as others may map the same file later."""

    pids: Collection[int]


def about(pids: Collection[int], note: str) -> About:
    """The note, which only windows with one of these processes carry."""
    made = About(note)
    made.pids = pids
    return made


def concerning(notes: Iterable[str], pids: Set[int]) -> list[str]:
    """Those of the host, and those about one of these processes."""
    return [str(note) for note in notes if not isinstance(note, About) or not pids.isdisjoint(note.pids)]
