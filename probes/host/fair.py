"""Share limited time and reads fairly between users. Pure but for `whose` and the clock.

A user decides how many processes he has, how many files they map and hold, and so how long reading
them takes. While the total cost is small there is no limit; beyond a threshold only users who have
cost little themselves go on.
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


def group_by(things: Iterable[_Thing], kind: Callable[[_Thing], _User]) -> dict[_User, list[_Thing]]:
    """Group things by kind (by user, say), for `interleave`; kinds are ordered by their first thing.

    `kind`: returns a thing's kind.
    """
    of_users: dict[_User, list[_Thing]] = {}
    for thing in things:
        of_users.setdefault(kind(thing), []).append(thing)
    return of_users


def interleave(of_users: Mapping[_User, Iterable[_Thing]], most: int | None = None) -> list[_Thing]:
    """Interleave the things of all users: each user's first, then each user's second, and so on.

    At most `most` things (None: all): so one user's many leave room for another's few.
    """
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
    """Yield all things, always next from the user with the least time spent so far
    (CLOCK_MONOTONIC).

    The time between two yields counts for the user of the first. A user's own things remain in
    order.
    """
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
    """A budget of seconds or of reads: `freely` for all users together, then `each` for every user."""

    freely: float
    each: float
    _all: float = 0.0
    _by_user: dict[str, float] = field(default_factory=dict)

    def left(self, user: Callable[[], str]) -> float:
        """Return the budget left for a user, negative if overspent.

        `user` returns the user's name; it is called only when little of the shared budget is left.
        """
        free = self.freely - self._all
        return free if free >= self.each else max(free, self.each - self._by_user.get(user(), 0.0))

    def spend(self, amount: float, user: Callable[[], str]) -> None:
        """Record that `amount` was spent for a process of `user` (called for the name).

        While plenty is left, tiny amounts are not booked to a user: finding out which user costs more.
        """
        self._all += amount
        if amount > self.each / 1000 or self._all >= self.freely:
            mine = user()
            self._by_user[mine] = self._by_user.get(mine, 0.0) + amount


def whose(pid: int, root: Path) -> str:
    """Return a text that identifies the host's user that owns a process: 'user 1000'. Never raises.

    For root, which may be in many containers: 'root in' and the control group.
    """
    uid = owner_uid(pid, root)
    if uid:
        return f"user {uid}"
    try:
        return f"root in {procfs.read_file(procfs.proc_path(root, pid, 'cgroup'), _CGROUP_CAP)!r}"
    except OSError:
        return "root"


class About(str):
    """A note that concerns only the processes `pids`, as it holds names that they chose (of libraries, files).

    `pids` is evaluated when the note is read, as other processes may map the same file later.
    """

    pids: Collection[int]


def about(pids: Collection[int], note: str) -> About:
    """Return `note` marked as concerning only these processes; windows of other processes leave it out."""
    made = About(note)
    made.pids = pids
    return made


def concerning(notes: Iterable[str], pids: Set[int]) -> list[str]:
    """Select the notes about the host (unmarked ones) and those about at least one of `pids`."""
    return [str(note) for note in notes if not isinstance(note, About) or not pids.isdisjoint(note.pids)]
