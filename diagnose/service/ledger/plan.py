"""Plan windows for pauses that recur and have no name: short ones, where the next pause is
expected. Pure.

A window begins before the expected time by three steps, and by as much as the pause has strayed; it
ends as long after its end. At most `TRIES` windows are recorded for an entry, the costliest first,
and only where it takes `SHARE` of the time; of the windows an hour of a job one is left for alarms
(looking.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rankscope.diagnose import limits
from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.service.ledger.account import Account
from rankscope.diagnose.service.ledger.entry import PAUSES, TRIES, Entry
from rankscope.diagnose.service.ledger.recurrence import Recurrence
from rankscope.diagnose.text import minutes, seconds

SHARE = limits.NOTHING / 5  # of the time: 7 s an hour
LONGEST_S = 60.0  # of a window, as of all others (look.py)
_STEPS, _LEAST_S = 3, 2.0
_PLAN_S = 30.0


@dataclass(frozen=True, slots=True)
class _Next:
    """The next window: number of the entry, its begin and length, and the pause that is expected.
    Times in CLOCK_MONOTONIC.
    """

    number: int
    begin_s: float
    seconds: float
    pause_s: float
    words: str


@dataclass(slots=True)
class Plan:
    """The next window of one job."""

    _next: _Next | None = None
    _planned: tuple[int, float] = (-1, -math.inf)  # version of the entries, and when

    def due(self, job: str, account: Account, now_s: float) -> Alarm | None:
        """Return the request for the window that is to begin now, if there is one."""
        version, at_s = self._planned
        if version != account.entries.version or now_s - at_s >= _PLAN_S or self._is_past(now_s):
            self._planned = account.entries.version, now_s
            self._next = min(_windows(account, now_s), key=lambda one: one.begin_s, default=None)
        one = self._next
        if one is None or now_s < one.begin_s:
            return None
        return Alarm(AlarmKind.PAUSE, job, one.pause_s, one.words, seconds=one.seconds)

    def _is_past(self, now_s: float) -> bool:
        return self._next is not None and now_s >= self._next.pause_s

    def begun(self, account: Account) -> None:
        """Count the window that was due, as it has begun."""
        if self._next is not None:
            account.entries.asked(self._next.number)
            self._next = None


def _windows(account: Account, now_s: float) -> Iterator[_Next]:
    step_s = account.entries.step_s
    if step_s is None or account.starting:
        return
    total_s = max(now_s + account.unix - account.ledger.began, 1.0)
    for number, entry in account.entries.numbered():
        if entry.kind not in PAUSES or entry.named or entry.asked >= TRIES or entry.seconds < SHARE * total_s:
            continue
        rhythm = account.entries.recurs(entry)
        if rhythm is not None and (found := _window(number, entry, rhythm, step_s, now_s + account.unix)) is not None:
            yield _Next(number, found.begin_s - account.unix, found.seconds, found.pause_s - account.unix, found.words)


def _window(number: int, entry: Entry, rhythm: Recurrence, step_s: float, now: float) -> _Next | None:
    """Plan a window, in Unix time; None where a pause comes so often that any window sees one, or
    is too long for one.
    """
    margin_s = max(_STEPS * step_s, _LEAST_S, rhythm.jitter_s)
    length_s = min(2 * margin_s + entry.longest_s, LONGEST_S)
    margin_s = min(margin_s, (length_s - min(entry.mean_s, length_s)) / 2)
    if margin_s < step_s:
        return None
    at = rhythm.next(now + margin_s)
    words = f"a pause of {seconds(entry.mean_s)} that comes every {minutes(rhythm.seconds)} is expected"
    return _Next(number, at - margin_s, length_s, at, words)
