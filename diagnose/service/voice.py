"""Output of the service: events, rate-limited complaints, and periodic tasks. Times are CLOCK_MONOTONIC."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rankscope.diagnose.service.events import Event
from rankscope.observer.watch.users import OfUsers

_AGAIN_S = 600.0
_HOUR_S = 3600.0
SAID_AN_HOUR = 600  # of one user's jobs; eight jobs that restart every ten minutes make 200


@dataclass(slots=True)
class Voice:
    """Sends events to `tell` and the service's own problems to `complain`; `whose`: the owner of a job, '' if unknown.

    Events about jobs that come and go, and their alarms, are limited per hour and user, so that one user's do not
    push others out of the log. Verdicts and drains are always sent.
    """

    tell: Callable[[Event], None]
    complain: Callable[[str], None]
    whose: Callable[[str], str] = lambda _: ""
    _due: dict[str, float] = field(default_factory=dict)
    _said: OfUsers[tuple[float, int]] = field(default_factory=OfUsers)  # since when, and how many

    def say(self, event: Event) -> None:
        """Send an event, unless its user's limit is reached."""
        user = self.whose(event.job) if event.job else ""
        if user and event.kind != "verdict" and event.drain is None:
            left = SAID_AN_HOUR - self._count(user, time.monotonic())
            if left == 0:
                self.tell(Event("note", event.at, f"more of the jobs of {user} is not reported in this hour"))
            if left <= 0:
                return
        self.tell(replace(event, user=user))

    def _count(self, user: str, now_s: float) -> int:
        """Count an event of this user; return how many came before it in the hour that began with the first."""
        since_s, count = self._said.get(user, (now_s, 0))
        if now_s - since_s >= _HOUR_S:
            since_s, count = now_s, 0
        self._said.keep(user, (since_s, count + 1))
        return count

    def note(self, now_s: float, kind: str, words: str, job: str = "") -> None:
        """Send an event of state ok, and of this kind."""
        self.say(Event(kind, unix(now_s), words, job))

    def complain_once(self, what: str, words: str, now_s: float) -> None:
        """Send a complaint, at most every ten minutes for each `what`, a key."""
        if self.is_due(f"complain {what}", now_s, _AGAIN_S):
            self.complain(words)

    def is_due(self, what: str, now_s: float, every_s: float) -> bool:
        """Tell whether the periodic task `what` (a key) is due; if so, it is due again after `every_s`."""
        if now_s < self._due.get(what, 0.0):
            return False
        self._due[what] = now_s + every_s
        return True


def unix(at_s: float) -> float:
    """Convert a time of CLOCK_MONOTONIC to Unix time."""
    return time.time() - (time.monotonic() - at_s)
