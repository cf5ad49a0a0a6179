"""How the service speaks: events, complaints that are made once in a while, and what is due again. Times are CLOCK_MONOTONIC."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rankscope.diagnose.watch.events import Event

_AGAIN_S = 600.0


@dataclass(slots=True)
class Voice:
    """`say` gets each event, `complain` what went wrong with us."""

    say: Callable[[Event], None]
    complain: Callable[[str], None]
    _due: dict[str, float] = field(default_factory=dict)

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
