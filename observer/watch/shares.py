"""What each user may have of tier 0, so that nobody takes the others' part: ranks that are watched, seconds for looking into libraries,
notes. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rankscope.observer.census.found import FoundRank
from rankscope.observer.watch.users import USERS_KNOWN, OfUsers
from rankscope.probes.fair import in_turn

RANKS_MOST = 1024  # room in the kernel: RS_MAX_PROCESSES (probes/bpf/common.bpf.h)
RANKS_EACH = 256  # of one user; a host with eight GPUs has eight, one without as many as cores
LOOK_EACH_S = 60.0  # an hour and user; a job that brings jaxlib, the largest library, takes 1 s
CROWD_EACH_S = 60.0  # an hour and user in which the calls of jobs that are learnt may crowd others out: two jobs, as long as it takes
# Notes of an hour: so many whosever they are, then of a user, and of all together, as anybody may be many users.
_NOTES_FREELY, _NOTES_EACH, _NOTES_MOST = 32, 8, 256
_NOTES_WAITING = 33  # of a user: as many as may be told of one, and one that says that there are more
_NOTES_KNOWN = 256  # of a user, by their hashes
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
    """What is not seen, and why: each told once, and so many an hour, as much of it is text of jobs. Of whom much is told leaves others
    theirs. `user`: as `user_of` calls him whose processes it is about; '' of the host."""

    _waiting: dict[str, dict[str, None]] = field(default_factory=dict)
    _known: OfUsers[dict[int, None]] = field(default_factory=OfUsers)  # told, or left out
    _counts: OfUsers[int] = field(default_factory=OfUsers)  # in this hour
    _over: OfUsers[bool] = field(default_factory=OfUsers)  # of whom was said in this hour that there are more
    _since_s: float = float("-inf")
    _count: int = 0

    def add(self, words: str, user: str = "") -> None:
        """To be told, unless it was."""
        words = words[:_NOTE_CHARACTERS]
        room = user in self._waiting or len(self._waiting) < USERS_KNOWN
        if not room or hash(words) in self._known.get(user, {}):
            return
        mine = self._waiting.setdefault(user, {})
        if len(mine) < _NOTES_WAITING:
            mine[words] = None

    def take(self, now_s: float) -> tuple[str, ...]:
        """What is to be told now, of each user in turn; what others leave no room for waits for the next hour."""
        if not self._waiting:
            return ()
        if now_s - self._since_s >= _HOUR_S:
            self._since_s, self._count, self._counts, self._over = now_s, 0, OfUsers(), OfUsers()
        if self._count >= _NOTES_MOST:
            return ()
        of_users = {user: [(user, words) for words in mine] for user, mine in self._waiting.items()}
        told: list[str] = []
        for user, words in in_turn(of_users, len(of_users) * _NOTES_WAITING):
            if self._count >= _NOTES_MOST:
                break
            del self._waiting[user][words]
            self._know(user, words)
            said = self._told_of(user, words)
            self._count += len(said)
            told += said
        self._waiting = {user: mine for user, mine in self._waiting.items() if mine}
        return tuple(told)

    def _told_of(self, user: str, words: str) -> list[str]:
        count = self._counts.get(user, 0)
        if self._count < _NOTES_FREELY or count < _NOTES_EACH:
            self._counts.keep(user, count + 1)
            return [words]
        if self._over.get(user, False):
            return []
        self._over.keep(user, True)
        return [f"more of {user or 'this kind'} is not told in this hour"]

    def _know(self, user: str, words: str) -> None:
        known = self._known.get(user, {})
        known[hash(words)] = None
        if len(known) > _NOTES_KNOWN:
            del known[next(iter(known))]
        self._known.keep(user, known)
