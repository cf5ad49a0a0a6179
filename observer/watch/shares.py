"""What each user may have of tier 0, so that nobody takes the others' part: ranks that are watched, seconds for looking into libraries,
notes. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rankscope.observer.census.found import FoundRank
from rankscope.observer.watch.users import OfUsers

RANKS_MOST = 1024  # room in the kernel: RS_MAX_PROCESSES (probes/bpf/common.bpf.h)
RANKS_EACH = 256  # of one user; a host with eight GPUs has eight, one without as many as cores
LOOK_EACH_S = 60.0  # an hour and user; a job that brings jaxlib, the largest library, takes 1 s
CROWD_EACH_S = 60.0  # an hour and user in which the calls of jobs that are learnt may crowd others out: two jobs, as long as it takes
_NOTES_AN_HOUR = 32
_NOTES_KNOWN = 256
_NOTE_CHARACTERS = 400
_HOUR_S = 3600.0


def user_of(rank: FoundRank) -> str:
    """Whose a rank is. Most containers run as root, so that of root and of users that nobody knows each container counts as one."""
    if rank.owner <= 0 and rank.container is not None:
        return f"container {rank.container.container_id[:12]}"
    return f"user {rank.owner}"


def over_share(told: Mapping[int, int], users: Mapping[int, str], most: float) -> tuple[int, ...]:
    """Pids without which no user would have told more than `most`: of each user who did, those that told most."""
    sums = Counter[str]()
    for pid, count in told.items():
        sums[users[pid]] += count
    out = []
    for pid in sorted(told, key=lambda one: -told[one]):
        if sums[users[pid]] > most:
            sums[users[pid]] -= told[pid]
            out.append(pid)
    return tuple(out)


@dataclass(slots=True)
class Looking:
    """How long libraries of each user were looked into in this hour, or what else such time was counted for. Times are seconds of one
    clock."""

    _spent: OfUsers[tuple[float, float]] = field(default_factory=OfUsers)  # since when, and how long

    def spent_s(self, user: str, now_s: float) -> float:
        """Of this hour, which begins with the first look."""
        since_s, spent_s = self._spent.get(user, (now_s, 0.0))
        return spent_s if now_s - since_s < _HOUR_S else 0.0

    def took(self, user: str, now_s: float, seconds: float) -> None:
        """A look has."""
        spent_s = self.spent_s(user, now_s)
        since_s = self._spent.get(user, (now_s, 0.0))[0] if spent_s else now_s
        self._spent.keep(user, (since_s, spent_s + seconds))


@dataclass(slots=True)
class Notes:
    """What is not seen, and why: each told once, and so many an hour, as much of it is text of jobs."""

    _waiting: dict[str, None] = field(default_factory=dict)
    _told: dict[str, None] = field(default_factory=dict)
    _since_s: float = float("-inf")
    _count: int = 0

    def add(self, words: str) -> None:
        """To be told, unless it was."""
        words = words[:_NOTE_CHARACTERS]
        if words not in self._told and len(self._waiting) < _NOTES_KNOWN:
            self._waiting[words] = None

    def take(self, now_s: float) -> tuple[str, ...]:
        """What is to be told now."""
        if not self._waiting:
            return ()
        if now_s - self._since_s >= _HOUR_S:
            self._since_s, self._count = now_s, 0
        room = max(_NOTES_AN_HOUR - self._count, 0)
        fresh = tuple(self._waiting)[:room]
        if fresh and len(self._waiting) >= room:
            fresh = (*fresh, "more of this kind is not told in this hour")
        self._count += len(fresh)
        self._told.update(self._waiting)
        self._waiting.clear()
        for old in tuple(self._told)[: max(len(self._told) - _NOTES_KNOWN, 0)]:
            del self._told[old]
        return fresh
