"""How the service speaks: events, complaints that are made once in a while, and what is due again. Times are CLOCK_MONOTONIC."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rankscope.diagnose.watch.events import Event
from rankscope.observer.watch.users import OfUsers

_AGAIN_S = 600.0
_HOUR_S = 3600.0
SAID_AN_HOUR = 600  # of one user's jobs; of eight that start again every ten minutes it is 200


@dataclass(slots=True)
class Voice:
    """`tell` gets each event, `complain` what went wrong with us; `whose`: the user of a job, '' where nobody knows.

    Jobs that come and go, and their alarms, are told so often an hour for each user: nobody's drive out of the log what was said of others.
    Verdicts, and what wants a host drained, always are.
    """

    tell: Callable[[Event], None]
    complain: Callable[[str], None]
    whose: Callable[[str], str] = lambda _: ""
    _due: dict[str, float] = field(default_factory=dict)
    _said: OfUsers[tuple[float, int]] = field(default_factory=OfUsers)  # since when, and how many

    def say(self, event: Event) -> None:
        """An event, if there may be one more of this user's."""
        user = self.whose(event.job) if event.job else ""
        if user and event.kind != "verdict" and event.drain is None:
            left = SAID_AN_HOUR - self._count(user, time.monotonic())
            if left == 0:
                self.tell(Event("note", event.at, f"more of the jobs of {user} is not reported in this hour"))
            if left <= 0:
                return
        self.tell(replace(event, user=user))

    def _count(self, user: str, now_s: float) -> int:
        """How many were said, or were to be, before this one in this hour, which begins with the first."""
        since_s, count = self._said.get(user, (now_s, 0))
        if now_s - since_s >= _HOUR_S:
            since_s, count = now_s, 0
        self._said.keep(user, (since_s, count + 1))
        return count

    def note(self, now_s: float, kind: str, words: str, job: str = "") -> None:
        """An event that is all well."""
        self.say(Event(kind, unix(now_s), words, job))

    def complain_once(self, what: str, words: str, now_s: float) -> None:
        """Of one thing every ten minutes at most."""
        if self.is_due(f"complain {what}", now_s, _AGAIN_S):
            self.complain(words)

    def is_due(self, what: str, now_s: float, every_s: float) -> bool:
        """Whether it is time for it; then not again for `every_s`."""
        if now_s < self._due.get(what, 0.0):
            return False
        self._due[what] = now_s + every_s
        return True


def unix(at_s: float) -> float:
    """Unix time of an instant of CLOCK_MONOTONIC."""
    return time.time() - (time.monotonic() - at_s)
