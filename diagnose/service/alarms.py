"""Decide from tier 0's data when to record a window of a job. Pure: times in, alarms out.

slower   its steps last longer than before (diagnose/stats/change.py)
silent   no rank here has ended a step for 5 usual steps and 5 s, and for 1.5 times the longest pause of those that recur,
        and no calls were lost in that time, among which its calls may have been;
        while a rank writes to disk, as for a checkpoint, after ten times as long
stopped  a rank is stopped (SIGSTOP, a debugger)
dead     a rank ended neither with exit code 0 nor by a request to end; or it did, and the others make steps without it, or
        are silent: ranks of a job that finishes end together, but ending a process takes seconds on a busy host
hardware the kernel logged an Xid that is not the application's doing, or a sweep of the host found something critical
asked    a user called `rankscope trigger`
pause    a pause that recurs, and that no window has named yet, is expected (ledger/plan.py)

A job that is compiling, loading or finished raises no alarm: none before its first steps were
learnt, or after its last rank ended.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rankscope.diagnose import limits
from rankscope.diagnose.stats.change import Change, ChangeDetector, State
from rankscope.diagnose.text import rank_list
from rankscope.observer.watch.ranks import Death, RankPulse, Steps

SILENT_S = 5.0
_PAUSES = 1.5
_WRITING = 10.0  # multiple of the usual limit of silence
_SURVIVED_S = 2.0  # a step that ends this long after a rank's end was begun without it


class AlarmKind(Enum):
    """Reason for recording a window."""

    SLOWER = "slower"
    SILENT = "silent"
    STOPPED = "stopped"
    DEAD = "dead"
    HARDWARE = "hardware"
    ASKED = "asked"
    ROUTINE = "routine"  # for the history: nothing is wrong
    PAUSE = "pause"  # for the ledger: a pause that recurs is expected


STANDSTILLS = (AlarmKind.SILENT, AlarmKind.STOPPED, AlarmKind.DEAD)  # no rank makes a step in these


@dataclass(frozen=True, slots=True)
class Alarm:
    """A reason to record a window of a job.

    `at_s`: when it began, CLOCK_MONOTONIC, or when a pause is expected; `again`: a reported trouble got worse
    by as much again; `seconds`: length of the window, None to fit it to the steps.
    """

    kind: AlarmKind
    job: str
    at_s: float
    words: str
    ranks: tuple[int, ...] = ()
    again: bool = False
    seconds: float | None = None

    @property
    def is_urgent(self) -> bool:
        """True if not delayed after a look that named no cause: all but slower steps and pauses, and these if `again`."""
        return self.kind not in (AlarmKind.SLOWER, AlarmKind.PAUSE) or self.again


@dataclass(frozen=True, slots=True)
class Relief:
    """The end of a trouble that an alarm reported.

    `since_s`: when the trouble began, `at_s`: when it was over, CLOCK_MONOTONIC; `before_s`, `after_s`: seconds
    per step in it and now (None: unknown).
    """

    kind: AlarmKind
    job: str
    since_s: float
    at_s: float
    words: str
    before_s: float | None = None
    after_s: float | None = None


@dataclass(slots=True)
class JobWatch:
    """Watches one job of this host for trouble. Call `take` once per beat."""

    job: str
    detector: ChangeDetector = field(default_factory=ChangeDetector)
    _pace: int = -1  # pid whose steps are counted
    _silent_since_s: float | None = None
    _slow_since_s: float | None = None
    _stopped: dict[int, float] = field(default_factory=dict)
    _deaths: list[Death] = field(default_factory=list)
    _told_dead: bool = False

    def take(
        self, now_s: float, ranks: Sequence[RankPulse], steps: dict[int, Steps], stopped: Collection[int],
        died: Sequence[Death], written_hz: float,
    ) -> list[Alarm | Relief]:  # fmt: skip
        """Return alarms and their ends (reliefs) since the last beat.

        `ranks`: the living ones, by number; `steps`: steps since the last beat, by pid; `stopped`: pids of
        stopped processes; `died`: ranks that ended since the last beat; `written_hz`: bytes per second of the
        rank that writes most.
        """
        told: list[Alarm | Relief] = []
        told += self._pace_changes(ranks, steps)
        told += self._stops(now_s, ranks, stopped)
        told += self._ends(now_s, ranks, died, written_hz)
        if not self._stopped and not self._told_dead:
            told += self._silence(now_s, ranks, written_hz)
        return told

    @property
    def step_s(self) -> float | None:
        """Usual duration of a step; None while unknown."""
        base = self.detector.baseline
        return None if base is None else math.exp(base.level)

    def _pace_changes(self, ranks: Sequence[RankPulse], steps: dict[int, Steps]) -> list[Alarm | Relief]:
        """Report changes of the step time of one rank, the first that is timed: all ranks have the same steps."""
        with_marker = [one for one in ranks if one.marker is not None]
        if with_marker and self._pace not in {one.found.pid for one in with_marker}:
            self._pace = with_marker[0].found.pid
        mine = steps.get(self._pace)
        if mine is None:
            return []
        told: list[Alarm | Relief] = []
        for change in self.detector.feed(mine.seconds):
            # `change.at` is among these steps: the detector reports nothing about earlier ones.
            at_s = float(mine.end_s[min(max(change.at - self.detector.seen + len(mine), 0), len(mine) - 1)])
            told += self._slower(change, at_s)
        return told

    def _slower(self, change: Change, at_s: float) -> list[Alarm | Relief]:
        """Turn a change of the step time at `at_s` into an alarm; into a relief once it is over or has become usual."""
        words = f"{change.before:.3f} → {change.after:.3f} s/step"
        if change.state is State.HIGHER:
            again = self._slow_since_s is not None
            began_s = at_s - (change.at - change.since) * change.after
            if not again:
                self._slow_since_s = began_s
            return [Alarm(AlarmKind.SLOWER, self.job, began_s, words, again=again)]
        since_s, self._slow_since_s = self._slow_since_s or at_s, None
        if change.state is State.BACK:
            return [Relief(AlarmKind.SLOWER, self.job, since_s, at_s, words, change.before, change.after)]
        return [Relief(AlarmKind.SLOWER, self.job, since_s, at_s, f"{words} has lasted so long that it is usual now")]

    def _stops(self, now_s: float, ranks: Sequence[RankPulse], stopped: Collection[int]) -> list[Alarm | Relief]:
        """Report newly stopped ranks in one alarm at once; return one relief when no rank is stopped any more."""
        number = {one.found.pid: one.found.identity.rank for one in ranks}
        told: list[Alarm | Relief] = []
        fresh = sorted(pid for pid in stopped if pid in number and pid not in self._stopped)
        if fresh:
            who = tuple(number[pid] for pid in fresh)
            told.append(Alarm(AlarmKind.STOPPED, self.job, now_s, f"stopped: {rank_list(tuple(sorted(who)))}", who))
        over = [pid for pid in self._stopped if pid not in stopped]
        if over and not set(stopped) & number.keys():
            since_s = min(self._stopped.values())
            told.append(Relief(AlarmKind.STOPPED, self.job, since_s, now_s, "every rank runs again"))
            self._silent_since_s = None
        for pid in over:
            del self._stopped[pid]
        self._stopped.update(dict.fromkeys(fresh, now_s))
        return told

    def _ends(
        self, now_s: float, ranks: Sequence[RankPulse], died: Sequence[Death], written_hz: float
    ) -> list[Alarm | Relief]:
        """Report once, in one alarm, that a rank failed, or ended and the others go on or fall silent without it.

        The rank that ended first is named, as a launcher then kills the others. `written_hz`: as for `take`.
        """
        self._deaths += died
        if self._told_dead or not self._deaths:
            return []
        first = min(self._deaths, key=lambda one: one.at_s)
        left_alone = self._goes_on_without(first, ranks) or self._is_silent(now_s, ranks, written_hz)
        if not first.failed and not left_alone:
            return []
        self._told_dead = True
        return [Alarm(AlarmKind.DEAD, self.job, first.at_s, f"rank {first.rank} {first.words}", (first.rank,))]

    def _goes_on_without(self, ended: Death, ranks: Sequence[RankPulse]) -> bool:
        """Tell whether a rank ended a step `_SURVIVED_S` or more after this end: even a clean one then is an alarm."""
        return any(one.marker is not None and one.last_s - ended.at_s >= _SURVIVED_S for one in ranks)

    def _is_silent(self, now_s: float, ranks: Sequence[RankPulse], written_hz: float) -> bool:
        """Tell whether no step, lost call or end of a rank was seen for unusually long.

        The limit is ten times as long while a rank writes `limits.BYTES_LEAST` bytes per second or more.
        """
        signs_s = [max(one.last_s, one.missed_s) for one in ranks if one.marker is not None] + [
            one.at_s for one in self._deaths
        ]
        if not ranks or not signs_s:
            return False
        least_s = max(SILENT_S, limits.STEPS_LEAST * (self.step_s or 0.0), _PAUSES * self.detector.pauses.longest_s)
        if written_hz >= limits.BYTES_LEAST:
            least_s *= _WRITING
        return now_s - max(signs_s) >= least_s

    def _silence(self, now_s: float, ranks: Sequence[RankPulse], written_hz: float) -> list[Alarm | Relief]:
        """Return an alarm if no rank has ended a step for unusually long; a relief once steps come, or none is timed."""
        heard = [one.last_s for one in ranks if one.marker is not None]
        usual_s = self.step_s
        if not heard and ranks and self._silent_since_s is not None and all(one.unheard for one in ranks):
            since_s, self._silent_since_s = self._silent_since_s, None
            return [Relief(AlarmKind.SILENT, self.job, since_s, now_s, "it is not listened to any more")]
        if not heard or usual_s is None:
            return []
        last_s = max(heard)
        if self._silent_since_s is not None:
            if last_s <= self._silent_since_s:
                return []
            since_s, self._silent_since_s = self._silent_since_s, None
            words = f"steps again after {last_s - since_s:.0f} s"
            return [Relief(AlarmKind.SILENT, self.job, since_s, last_s, words)]
        if not self._is_silent(now_s, ranks, written_hz):
            return []
        self._silent_since_s = last_s
        return [
            Alarm(AlarmKind.SILENT, self.job, last_s, f"no step for {now_s - last_s:.0f} s, usually {usual_s:.3f} s")
        ]
