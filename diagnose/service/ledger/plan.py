"""Plan short windows for pauses that recur and have no name, where the next pause is expected. Pure.

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
    """The next window, times in CLOCK_MONOTONIC.

    `number`: of the entry; `begin_s`, `seconds`: of the window; `pause_s`: when the pause is expected.
    """

    number: int
    begin_s: float
    seconds: float
    pause_s: float
    words: str


@dataclass(slots=True)
class Plan:
    """Plans the next window of one job."""

    _next: _Next | None = None
    _planned: tuple[int, float] = (-1, -math.inf)  # version of the entries, and when

    def due(self, job: str, account: Account, now_s: float) -> Alarm | None:
        """Return the alarm that requests the window that is to begin now; None if none is due."""
        version, at_s = self._planned
        if version != account.entries.version or now_s - at_s >= _PLAN_S or self._is_past(now_s):
            self._planned = account.entries.version, now_s
            self._next = min(_windows(account, now_s), key=lambda one: one.begin_s, default=None)
        one = self._next
        if one is None or now_s < one.begin_s:
            return None
        return Alarm(AlarmKind.PAUSE, job, one.pause_s, one.words, seconds=one.seconds)

    def _is_past(self, now_s: float) -> bool:
        """Tell whether the pause of the planned window should have begun already; False if none is planned."""
        return self._next is not None and now_s >= self._next.pause_s

    def begun(self, account: Account) -> None:
        """Count the planned window, as it has begun, and forget it."""
        if self._next is not None:
            account.entries.asked(self._next.number)
            self._next = None


def _windows(account: Account, now_s: float) -> Iterator[_Next]:
    """Yield a window for each unnamed pause that recurs, costs enough time, and was not tried `TRIES` times."""
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
    """Plan a window (Unix time) of at most `LONGEST_S` around the next pause; None if no step fits on each side.

    `number`: of the entry; `step_s`: usual duration of a step; `now`: Unix time.
    """
    margin_s = max(_STEPS * step_s, _LEAST_S, rhythm.jitter_s)
    length_s = min(2 * margin_s + entry.longest_s, LONGEST_S)
    margin_s = min(margin_s, (length_s - min(entry.mean_s, length_s)) / 2)
    if margin_s < step_s:
        return None
    at = rhythm.next(now + margin_s)
    words = f"a pause of {seconds(entry.mean_s)} that comes every {minutes(rhythm.seconds)} is expected"
    return _Next(number, at - margin_s, length_s, at, words)
