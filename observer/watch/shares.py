"""Fair shares of tier 0 per user: watched ranks, seconds for searching libraries, notes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from rankscope.observer.census.found import FoundRank
from rankscope.observer.watch.users import USERS_KNOWN, OfUsers
from rankscope.probes.host.fair import interleave

RANKS_MOST = 1024  # room in the kernel: RS_MAX_PROCESSES (probes/bpf/common.bpf.h)
RANKS_EACH = 256  # per user; a host with eight GPUs has eight, one without as many as cores
LOOK_EACH_S = 60.0  # per hour and user; a job with jaxlib, the largest library, takes 1 s
# per hour and user in which calls of jobs with unknown marker may crowd others out: enough for two
# jobs
CROWD_EACH_S = 60.0
# Notes per hour: so many for anybody, then per user, and a total limit, as anybody may be many
# users.
_NOTES_FREELY, _NOTES_EACH, _NOTES_MOST = 32, 8, 256
_NOTES_WAITING = 33  # per user: as many as may be reported, and one that says that there are more
_NOTES_KNOWN = 256  # per user, by their hashes
_NOTE_CHARACTERS = 400
_HOUR_S = 3600.0


def user_of(rank: FoundRank) -> str:
    """Name the owner of a rank; each container counts separately for root and unknown users, as
    most run as root.
    """
    if rank.owner <= 0 and rank.container is not None:
        return f"container {rank.container.container_id[:12]}"
    return f"user {rank.owner}"


def over_share(told: Mapping[int, int], users: Mapping[int, str], most: float) -> tuple[int, ...]:
    """Select pids to exclude so that no user's counts exceed `most` in sum: of a user above it, the largest first.

    `told`: count by pid; `users`: user by pid.
    """
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
    """Seconds spent on each user in this hour, for searching libraries or for other purposes. Times
    of one clock.
    """

    # user -> (start of the hour, seconds)
    _spent: OfUsers[tuple[float, float]] = field(default_factory=OfUsers)

    def spent_s(self, user: str, now_s: float) -> float:
        """Return the seconds spent on a user in the current hour, which begins with the first call of `took`."""
        since_s, spent_s = self._spent.get(user, (now_s, 0.0))
        return spent_s if now_s - since_s < _HOUR_S else 0.0

    def took(self, user: str, now_s: float, seconds: float) -> None:
        """Add seconds spent on a user at `now_s`."""
        spent_s = self.spent_s(user, now_s)
        since_s = self._spent.get(user, (now_s, 0.0))[0] if spent_s else now_s
        self._spent.keep(user, (since_s, spent_s + seconds))


@dataclass(slots=True)
class Notes:
    """Notes on what is not seen, and why: each reported once, and limited per hour and user, as
    their text is the jobs'.

    `user`: name from `user_of` of the owner concerned; '' for the host.
    """

    _waiting: dict[str, dict[str, None]] = field(default_factory=dict)
    # hashes of reported or dropped notes
    _known: OfUsers[dict[int, None]] = field(default_factory=OfUsers)
    _counts: OfUsers[int] = field(default_factory=OfUsers)  # in this hour
    # users with a note in this hour that there are more
    _over: OfUsers[bool] = field(default_factory=OfUsers)
    _since_s: float = float("-inf")
    _count: int = 0

    def add(self, words: str, user: str = "") -> None:
        """Queue a note about a user ('': the host), unless it was reported or dropped before, or too many wait."""
        words = words[:_NOTE_CHARACTERS]
        room = user in self._waiting or len(self._waiting) < USERS_KNOWN
        if not room or hash(words) in self._known.get(user, {}):
            return
        mine = self._waiting.setdefault(user, {})
        if len(mine) < _NOTES_WAITING:
            mine[words] = None

    def take(self, now_s: float) -> tuple[str, ...]:
        """Return the notes to report now, each user's in turn.

        What exceeds a user's limit is dropped, with one note that there is more; what exceeds the
        limit of all waits for the next hour.
        """
        if not self._waiting:
            return ()
        if now_s - self._since_s >= _HOUR_S:
            self._since_s, self._count, self._counts, self._over = now_s, 0, OfUsers(), OfUsers()
        if self._count >= _NOTES_MOST:
            return ()
        of_users = {user: [(user, words) for words in mine] for user, mine in self._waiting.items()}
        told: list[str] = []
        for user, words in interleave(of_users, len(of_users) * _NOTES_WAITING):
            if self._count >= _NOTES_MOST:
                break
            del self._waiting[user][words]
            self._know(user, words)
            said = self._limit_notes(user, words)
            self._count += len(said)
            told += said
        self._waiting = {user: mine for user, mine in self._waiting.items() if mine}
        return tuple(told)

    def _limit_notes(self, user: str, words: str) -> list[str]:
        """Return the note if this hour's limits admit it; else once a note that this user has more; else nothing."""
        count = self._counts.get(user, 0)
        if self._count < _NOTES_FREELY or count < _NOTES_EACH:
            self._counts.keep(user, count + 1)
            return [words]
        if self._over.get(user, False):
            return []
        self._over.keep(user, True)
        return [f"more of {user or 'this kind'} is not reported in this hour"]

    def _know(self, user: str, words: str) -> None:
        """Remember that a note was reported or dropped; of each user the last `_NOTES_KNOWN`."""
        known = self._known.get(user, {})
        known[hash(words)] = None
        if len(known) > _NOTES_KNOWN:
            del known[next(iter(known))]
        self._known.keep(user, known)
