"""Account for all time of one job, from what tier 0 reports of it. Pure: times and steps in, a ledger out.

A cursor runs along the job's time; all before it is accounted for:

        process starts   first step              long step              killed      starts again
cursor ─┴───── start-up ─┴─ productive ─ … ──────┴─ productive + pause ─┴── down ───┴─ start-up ─ …

A step is productive for as long as steps are usually; the rest of it is a pause, or a hang where
the service had an alarm of silence meanwhile. While the detector of changes says that steps are
longer than before, the difference is a slow stretch. Steps since the last checkpoint of a run that
did not end by itself are done twice if the job starts again. Times are CLOCK_MONOTONIC; what a
ledger holds is Unix time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rankscope.diagnose.service.alarms import STANDSTILLS, Alarm, AlarmKind, Relief
from rankscope.diagnose.service.ledger.entries import Entries
from rankscope.diagnose.service.ledger.entry import UNKNOWN, Event, Kind, Ledger, Scope, Whose
from rankscope.diagnose.service.ledger.naming import NAME_MOST, SeenPause
from rankscope.diagnose.service.ledger.pace import LongSteps, Pace
from rankscope.diagnose.text import clean
from rankscope.observer.watch.ranks import Steps

WhoseOf = Callable[[LongSteps], Whose]
_UNDECIDED_S = 180.0  # how long a verdict about a standstill is waited for: a window, and judging it
_UNDECIDED_MOST = 8
_SAME_S = 2.0  # between alarms of one standstill on several hosts
_HANG = "hang"  # status of a verdict
_LATEST_MOST = 512  # steps before an alarm that may belong to a slow stretch
_EPSILON_S = 1e-6
_END_STEPS, _END_S = 3.0, 1.0  # before a run ends: longer is no step any more


@dataclass(slots=True)
class _Still:
    """A standstill that an alarm reported.

    `what`: in words; `verdict`: the status of its window's verdict, '' if there is none yet.
    """

    alarm: Alarm
    what: str
    verdict: str = ""


@dataclass(slots=True)
class _Undecided:
    """A long pause with an alarm that was over at `ended_s`, booked as a pause or a hang once a verdict comes, or at `until_s`."""

    event: Event
    still: _Still
    ended_s: float

    @property
    def until_s(self) -> float:
        """Time from which no verdict is waited for (CLOCK_MONOTONIC)."""
        return self.ended_s + _UNDECIDED_S


@dataclass(slots=True)
class _Slow:
    """A slow stretch since `since_s`: steps took `before_s` before it; `seconds`: what they took more since, in total."""

    since_s: float
    before_s: float
    seconds: float = 0.0
    what: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(slots=True)
class Account:
    """The account of one job: books every second of its time as productive or as an event.

    `unix`: Unix time at zero of CLOCK_MONOTONIC; `cursor_s`: all time before it is booked; `ledger`: what does not
    change with each step; the rest is in `entries` and the fields below.
    """

    ledger: Ledger
    unix: float
    cursor_s: float
    entries: Entries = field(default_factory=Entries)
    starting: bool = True
    productive_s: float = 0.0
    steps: int = 0
    wrote: bool = False  # since the last step
    pace: Pace = field(default_factory=Pace)
    _first: int = 0  # number of the first step of this run
    _still: _Still | None = None
    _slow: _Slow | None = None
    _undecided: list[_Undecided] = field(default_factory=list)
    _latest: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_LATEST_MOST))

    @staticmethod
    def of(ledger: Ledger, unix: float) -> Account:
        """Continue a stored ledger. `unix`: Unix time at zero of CLOCK_MONOTONIC."""
        entries = Entries.of(ledger.entries, ledger.others)
        entries.saved_steps = ledger.saved_steps
        made = Account(ledger, unix, ledger.until - unix, entries, False, ledger.productive_s, ledger.steps)
        made._first = ledger.first_step
        made.entries.step_s = ledger.step_s
        return made

    # ---- runs --------------------------------------------------------------------------------------------------------

    def again(self, started_s: float, how: str) -> None:
        """Begin another run of the job, whose first process started at `started_s`; `how`: how the last one ended.

        Books the time between as down, and the last run's steps since its checkpoint as redone.
        """
        self._end_stretches()
        self._redone()
        down_s = max(started_s - self.cursor_s, 0.0)
        self._book(Event(Kind.DOWN, self.unix + self.cursor_s, down_s or _EPSILON_S, self.steps, _cut(how)))
        self.cursor_s += down_s
        self.ledger = replace(self.ledger, runs=self.ledger.runs + 1, ended="")
        self.starting, self._first = True, self.steps
        self.pace = Pace()
        self._latest.clear()

    def not_seen(self, until_s: float, why: str) -> None:
        """Book the time from the cursor until `until_s`, in which the service saw nothing; `why`: in words."""
        if until_s > self.cursor_s:
            seconds = until_s - self.cursor_s
            self._book(Event(Kind.UNSEEN, self.unix + self.cursor_s, seconds, self.steps, _cut(why)))
            self.cursor_s = until_s

    def end(self, at_s: float, how: str) -> None:
        """End the run at `at_s`, and book the time since its last step as start-up, hang, pause or productive.

        `how`: how it ended, in words.
        """
        self._close(UNKNOWN)
        left_s = at_s - self.cursor_s
        if left_s > 0 and self.starting:
            self._book(Event(Kind.STARTUP, self.unix + self.cursor_s, left_s, self.steps))
        elif left_s > 0 and self._still is not None and at_s - self._still.alarm.at_s > _END_S:
            lost_s = min(at_s - self._still.alarm.at_s, left_s)
            self.productive_s += left_s - lost_s
            self._book(Event(Kind.HANG, self.unix + at_s - lost_s, lost_s, self.steps, self._still.what))
        elif left_s > _END_STEPS * (self.pace.usual_s or 0.0) + _END_S:
            self._book(Event(Kind.PAUSE, self.unix + self.cursor_s, left_s, self.steps, "the end of a run"))
        elif left_s > 0:
            self.productive_s += left_s
        self._still = None
        self.cursor_s = max(self.cursor_s, at_s)
        self._end_stretches()
        self.ledger = replace(self.ledger, ended=_cut(how))

    def _redone(self) -> None:
        """Move the time of steps after the last checkpoint from productive to redone; nothing without a checkpoint."""
        saved = self._saved()
        begin = max(saved, self._first)
        lost = self.steps - begin
        if lost <= 0 or not saved:  # without a checkpoint nobody knows where it goes on
            return
        lost_s = min(lost * (self.pace.usual_s or self.entries.step_s or 0.0), self.productive_s)
        self.productive_s -= lost_s
        words = f"steps {begin + 1}-{self.steps}"
        self._book(Event(Kind.REDONE, self.unix + self.cursor_s - lost_s, lost_s, begin, words))

    # ---- steps -------------------------------------------------------------------------------------------------------

    def take(self, steps: Steps, whose: WhoseOf) -> None:
        """Account for ended steps, in order. `whose`: finds the ranks that work in a pause."""
        for end_s, seconds in zip(steps.end_s.tolist(), steps.seconds.tolist(), strict=True):
            if end_s <= self.cursor_s:
                continue
            begin_s = end_s - seconds
            if begin_s > self.cursor_s + _EPSILON_S:
                self._before_step(begin_s)
            self._step(end_s, end_s - self.cursor_s, seconds, whose)
        if self.pace.usual_s is not None:
            self.entries.step_s = self.pace.usual_s

    def _before_step(self, begin_s: float) -> None:
        """Book the time from the cursor to the begin of a step: as start-up before the first, else as not timed."""
        if self.starting:
            event = Event(Kind.STARTUP, self.unix + self.cursor_s, begin_s - self.cursor_s, self.steps)
            self._book(event)
        else:
            self.not_seen(begin_s, "steps were not timed")
        self.cursor_s = begin_s

    def _step(self, end_s: float, spent_s: float, seconds: float, whose: WhoseOf) -> None:
        """Book `spent_s` of a step of `seconds`, the part after the cursor: productive, slow stretch or pause.

        `end_s`: the step's end; `whose`: finds the ranks that work in a pause, which is booked when it ends.
        """
        self.starting = False
        self.steps += 1
        learnt = self.pace.usual_s is not None
        excess_s, ended = self.pace.take(end_s, seconds, self.steps)
        excess_s = min(excess_s, spent_s)
        if ended is not None:
            self._pause(ended, whose(ended), end_s)
        if not learnt and self.pace.usual_s is not None:
            self._first_steps()
        if not excess_s and ended is None and self._still is not None and end_s - seconds >= self._still.alarm.at_s:
            self._still = None  # steps go on, and none was longer for it
        slow_s = 0.0
        if self._slow is not None:
            slow_s = min(max(spent_s - excess_s - self._slow.before_s, 0.0), spent_s - excess_s)
            self._slow.seconds += slow_s
        self.productive_s += spent_s - excess_s - slow_s
        self._latest.append((end_s, spent_s - excess_s - slow_s))
        self.cursor_s = end_s
        if self.pace.is_level and self._slow is None:
            self._changes_level(end_s)

    def _first_steps(self) -> None:
        """Move the seconds that the first steps took above the usual from productive to start-up, if that has an entry."""
        more_s = min(self.pace.first_excess_s(), self.productive_s)
        if more_s > 0 and any(one.kind is Kind.STARTUP for one in self.entries):
            self.productive_s -= more_s
            self.entries.extend(Kind.STARTUP, more_s)

    def _pause(self, long: LongSteps, whose: Whose, now_s: float) -> None:
        """Book long steps as a pause in which `whose` ranks work; with an alarm in it only after its verdict."""
        event = Event(Kind.PAUSE, self.unix + long.begin_s, long.excess_s, long.first, "", whose, self.wrote)
        still, self.wrote = self._still, False
        if still is None or not long.begin_s - 1.0 <= still.alarm.at_s <= long.end_s:
            self._book(event)
            return
        self._still = None
        self._undecided.append(_Undecided(event, still, now_s))
        if len(self._undecided) > _UNDECIDED_MOST:
            self._decide(self._undecided.pop(0))

    def _changes_level(self, end_s: float) -> None:
        """Make the length of steps that stay long without an alarm the usual one; book their excess as slow."""
        long = self.pace.close()
        if long is not None:
            self._book(Event(Kind.SLOW, self.unix + long.begin_s, long.excess_s, long.first, "steps became longer"))
            self.pace.move((self.pace.usual_s or 0.0) + long.excess_s / long.steps)

    def other_steps(self) -> None:
        """Forget the usual length of steps, as other calls end them now; book what is open."""
        self._close(UNKNOWN)
        self._end_slow()
        self.pace = Pace()
        self._latest.clear()

    def _close(self, whose: Whose) -> None:
        """Book the long steps that are still open as a pause in which `whose` ranks work."""
        long = self.pace.close()
        if long is not None:
            self._pause(long, whose, self.cursor_s)

    # ---- alarms ------------------------------------------------------------------------------------------------------

    def raised(self, alarm: Alarm, shifted: tuple[float, float] | None) -> None:
        """Take note of an alarm: a standstill begins, or a slow stretch.

        `shifted`: seconds per step before and since, if the detector of changes sees a shift; else None.
        """
        if alarm.kind in STANDSTILLS and self._still is None:
            self._still = _Still(alarm, _cut("no step" if alarm.kind is AlarmKind.SILENT else alarm.words))
        elif alarm.kind is AlarmKind.SLOWER and shifted is not None:
            self._slower(alarm, *shifted)

    def _slower(self, alarm: Alarm, before_s: float, after_s: float) -> None:
        """Begin or continue a slow stretch; steps since the alarm's begin are moved to it as far as they took longer.

        `before_s`, `after_s`: seconds per step before and since; `after_s` is the usual duration from now on.
        """
        long = self.pace.close()
        if self._slow is None:
            self._slow = _Slow(alarm.at_s, before_s)
            for end_s, productive_s in self._latest:
                if end_s > alarm.at_s and productive_s > before_s:
                    self._slow.seconds += productive_s - before_s
                    self.productive_s -= productive_s - before_s
        if long is not None:
            self._slow.seconds += long.excess_s
        self._latest.clear()
        self.pace.move(after_s)

    def relieved(self, relief: Relief) -> None:
        """End the slow stretch if this is the end of slower steps; any other relief changes nothing."""
        if relief.kind is AlarmKind.SLOWER and self._slow is not None:
            self._end_slow()
            if relief.after_s is not None:
                self.pace.move(relief.after_s)

    def _end_slow(self) -> None:
        """End the slow stretch, if there is one, and book it."""
        slow, self._slow = self._slow, None
        if slow is not None:
            self._book(_slow_event(slow, self.unix, self.steps))

    def _end_stretches(self) -> None:
        """Book the slow stretch and all undecided pauses."""
        self._end_slow()
        for one in self._undecided:
            self._decide(one)
        self._undecided.clear()

    def decide(self, now_s: float) -> None:
        """Book the undecided pauses whose verdict did not come in time."""
        due = [one for one in self._undecided if now_s >= one.until_s]
        for one in due:
            self._undecided.remove(one)
            self._decide(one)

    def _decide(self, one: _Undecided) -> None:
        """Book a long pause with an alarm as what it is by now: a pause or a hang (`_decided`)."""
        self._book(_decided(one, self.entries))

    # ---- what windows saw --------------------------------------------------------------------------------------------

    def judged(self, alarm: Alarm, status: str, words: str, ranks: Sequence[int]) -> None:
        """Use the verdict of a window that an alarm caused: name the slow stretch, or decide pauses it is about.

        `status`: of the verdict; `words`: what it names, '' if nothing; `ranks`: of its first suspect.
        """
        if alarm.kind is AlarmKind.SLOWER and words:
            if self._slow is not None:
                self._slow.what, self._slow.ranks = _cut(words), tuple(ranks)
            else:  # it was over before the verdict was there
                self.entries.call(Kind.SLOW, _cut(words), Whose(Scope.SOME, tuple(ranks)))
        if alarm.kind not in STANDSTILLS:
            return
        about = [one for one in self._undecided if _is_about(alarm, one.still) and alarm.at_s <= one.ended_s + _SAME_S]
        pending = [self._still] if self._still is not None and _is_about(alarm, self._still) else []
        for still in (*(one.still for one in about), *pending):
            still.verdict = status
            still.what = _cut(words) or still.what
        for one in about:
            self._undecided.remove(one)
            self._decide(one)

    def named(self, seen: Sequence[SeenPause]) -> bool:
        """Name pauses by what a window saw; return False if it saw none of them."""
        return self.entries.name(seen)

    # ---- out ---------------------------------------------------------------------------------------------------------

    def _book(self, event: Event) -> None:
        """Add an event to the entries."""
        self.entries.add(event)

    def _saved(self) -> int:
        """Return the number of the step at the last checkpoint, 0 if none was seen."""
        return max((*(one.saved_step for one in self.entries), self.entries.saved_steps))

    def snapshot(self, now_s: float) -> Ledger:
        """Return the ledger as of `now_s` (CLOCK_MONOTONIC), with what is still open counted; changes nothing."""
        open_events = [_decided(one, self.entries) for one in self._undecided]
        if self._slow is not None and self._slow.seconds > 0:
            open_events.append(_slow_event(self._slow, self.unix, self.steps))
        long = self.pace.open
        if long is not None:
            open_events.append(Event(Kind.PAUSE, self.unix + long.begin_s, long.excess_s, long.first))
        until_s = self.cursor_s
        waits_s = now_s - self.cursor_s
        if not self.ledger.ended and waits_s > 0 and (self.starting or self._still is not None):
            kind, what = (Kind.STARTUP, "") if self.starting else (Kind.HANG, self._still.what if self._still else "")
            open_events.append(Event(kind, self.unix + self.cursor_s, waits_s, self.steps, what))
            until_s = now_s
        kept = Entries.of(self.entries, self.entries.others)
        for event in open_events:
            kept.add(event)
        return replace(
            self.ledger, until=self.unix + until_s, productive_s=self.productive_s, steps=self.steps,
            step_s=self.pace.usual_s or self.ledger.step_s, entries=tuple(kept), others=kept.others, saved_steps=self._saved(),
            first_step=self._first,
        )  # fmt: skip


def _is_about(alarm: Alarm, still: _Still) -> bool:
    """Tell whether an alarm came at most `_SAME_S` before the one that reported the standstill, or any time after it.

    It may be another host's. Its kind, and whether the standstill was over by then, are not checked.
    """
    return alarm.at_s >= still.alarm.at_s - _SAME_S


def _decided(one: _Undecided, entries: Entries) -> Event:
    """Decide what a long pause with an alarm was: a pause if a window says that it was no hang, if a
    rank wrote to disk, or if it is as long as earlier pauses; else a hang.
    """
    still, event = one.still, one.event
    silent = still.alarm.kind is AlarmKind.SILENT
    if still.verdict != _HANG and silent and (still.verdict or event.wrote or entries.knows(event)):
        return event
    return replace(event, kind=Kind.HANG, what=still.what)


def _slow_event(slow: _Slow, unix: float, step: int) -> Event:
    """Make the event of a slow stretch. `unix`: Unix time at zero of CLOCK_MONOTONIC; `step`: number of the last step."""
    whose = Whose(Scope.SOME, slow.ranks) if slow.ranks else UNKNOWN
    return Event(Kind.SLOW, unix + slow.since_s, slow.seconds, step, slow.what, whose)


def _cut(words: str) -> str:
    """Clean words for printing, and cut them to `NAME_MOST` characters."""
    return clean(words, NAME_MOST)
