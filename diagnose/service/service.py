"""The loop of `rankscope watch`: one beat of tier 0 per second, alarms, looks, one line per event.

Tier0.poll ──► JobWatch.take ──► alarm ──► Looking ──► line, JSON line, hook
   │                          relief ──────────────► "regained …"
   └──► Evidence: black box, metrics

One thread, and one look at a time, so that a job never pays for two windows. Whatever ends this
process, the kernel removes its probes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankscope.diagnose.service import events
from rankscope.diagnose.service.alarms import Alarm, AlarmKind, JobWatch, Relief
from rankscope.diagnose.service.events import Event
from rankscope.diagnose.service.evidence import Evidence
from rankscope.diagnose.service.hosts.others import Others
from rankscope.diagnose.service.jobs import WatchedJob
from rankscope.diagnose.service.ledger.book import Book
from rankscope.diagnose.service.limits import WINDOWS_PER_HOUR, Allowance, NotNow, OverBudget, OwnCost
from rankscope.diagnose.service.looks.looking import Looking
from rankscope.diagnose.service.looks.trial import Trial
from rankscope.diagnose.service.sick import Sickness
from rankscope.diagnose.service.signals import ENDING
from rankscope.diagnose.service.tell import watchdog
from rankscope.diagnose.service.tell.metrics import ServiceState
from rankscope.diagnose.service.tell.otlp import Otlp
from rankscope.diagnose.service.voice import Voice, unix
from rankscope.diagnose.service.xid_events import XidEvents
from rankscope.diagnose.severity import CRITICAL, OK, WARNING
from rankscope.diagnose.text import rank_list
from rankscope.observer.live.limits import give_back
from rankscope.observer.watch.blackbox import BlackBox
from rankscope.observer.watch.shares import user_of
from rankscope.observer.watch.tier0 import Beat, Tier0
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.gpu.xid import logged_xids
from rankscope.probes.host.kmsg import KernelMessage
from rankscope.probes.host.oom import memory_kills

BEAT_S = 1.0
_HARDWARE_EVERY_S = 5.0
_COST_EVERY_S = 30.0
_ALLOWANCES_MOST = 256
_FAILED_MOST = 300  # consecutive failed rounds before the service restarts
_SILENT_S = 2.0  # silence of a job from which the bytes written by its ranks are read


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of the service.

    `metrics`: a file to write; `routine`: record a window about once an hour for the history; `window_s`: length of
    windows, None to fit them to the steps; `per_hour`: limit of unrequested looks at one job.
    """

    history: Path
    metrics: Path | None = None
    routine: bool = True
    window_s: float | None = None
    per_hour: int = WINDOWS_PER_HOUR


@dataclass(slots=True)
class Service:
    """The service of `rankscope watch`.

    `say` gets each event, `complain` the service's own problems; `triggers`: jobs requested since
    the last call, '' for all; `logged`: new records of the kernel's log; `swept`: new critical
    findings of a sweep; `sick`: hardware that turned bad; `scraped`: answers scrapes of the
    metrics; `others`: connection to the jobs' other hosts, None without a shared store; `otlp`:
    sends to a collector; `tend`: called once a round, for pending output; `trial`: determines what
    is observable here; `put_off`: number of incomplete rounds; `book`: the jobs' ledgers.
    """

    tier0: Tier0
    box: BlackBox
    options: WatchOptions
    say: Callable[[Event], None]
    complain: Callable[[str], None]
    write_metrics: Callable[[Path, str], None]
    triggers: Callable[[], Sequence[str]] = tuple
    logged: Callable[[], Sequence[KernelMessage]] = tuple
    swept: Callable[[], Sequence[str]] = tuple
    sick: Callable[[], Sequence[Sickness]] = tuple
    scraped: Callable[[Callable[[], str]], None] | None = None
    others: Others | None = None
    otlp: Otlp | None = None
    tend: Callable[[], None] = lambda: None
    trial: Trial | None = None
    book: Book = field(default_factory=lambda: Book(None, time.monotonic()))
    put_off: int = 0
    jobs: dict[str, WatchedJob] = field(default_factory=dict)
    cost: OwnCost = field(default_factory=OwnCost)
    # also of jobs that are gone: they may come back
    _allowances: dict[str, Allowance] = field(default_factory=dict)
    _failed: int = 0
    _xids: XidEvents = field(default_factory=XidEvents)
    _voice: Voice = field(init=False)
    _evidence: Evidence = field(init=False)
    _looking: Looking = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        self._voice = Voice(self.say, self.complain, self._user_of)
        self._evidence = Evidence(
            self.tier0, self.box, self._voice, options.metrics, self.write_metrics, self.scraped, self.otlp,
            self.book.seconds,
        )  # fmt: skip
        self._looking = Looking(
            self.tier0, self._voice, self._evidence, self.jobs,
            options.history, options.window_s, options.routine, self.others, learnt=self.book.learnt,
        )  # fmt: skip

    def _user_of(self, job: str) -> str:
        """Return the owner of a job, '' if it has no ranks here."""
        known = self.jobs.get(job)
        return known.user if known is not None else ""

    def run(self, wait: Callable[[float], Collection[int]]) -> None:
        """Run until a signal ends it. Raises OverBudget, NotNow.

        `wait` waits so many seconds, or for signals, and returns these.
        """
        self.say(Event("started", time.time(), "watching"))
        watchdog.tell(watchdog.READY)
        if self.trial is not None:
            self._done(self.trial.begin)
        try:
            while True:
                began = time.monotonic()
                self._one_round()
                watchdog.tell(watchdog.ALIVE)
                if ENDING & self._wait(wait, began + BEAT_S):
                    return
        finally:
            watchdog.tell(watchdog.STOPPING)
            if self.trial is not None:
                self.trial.close()
            self._looking.close()
            self._done(lambda: self._evidence.close(self._own))
            self._done(lambda: self.book.close(time.monotonic()))
            self.tier0.close()
            self.say(Event("ended", time.time(), "no longer watching; nothing was left behind"))

    def _wait(self, wait: Callable[[float], Collection[int]], until_s: float) -> set[int]:
        """Wait until `until_s`, or for signals, and return these; meanwhile report the result of a look at once."""
        while True:
            left_s = max(until_s - time.monotonic(), 0.01)
            signals = set(wait(min(left_s, BEAT_S / 10) if self._looking.is_looking else left_s))
            if signals or time.monotonic() >= until_s:
                return signals
            self._done(lambda: self._looking.go_on(time.monotonic()))

    def _one_round(self) -> None:
        """Run `beat` and count failed rounds in a row. Raises OverBudget, and NotNow at `_FAILED_MOST` of them."""
        self._failed = 0 if self._done(self.beat) else self._failed + 1
        if self._failed >= _FAILED_MOST:
            raise NotNow(f"{_FAILED_MOST} rounds one after the other could not be done")

    def _done(self, work: Callable[[], None]) -> bool:
        """Run `work`; report an error and return False if it failed.

        A temporary lack of resources (any user can use them up) does not end the service. Raises OverBudget only.
        """
        try:
            work()
        except OverBudget:
            raise
        except (OSError, MemoryError, RankscopeError) as error:
            self.put_off += 1
            why = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
            self._voice.complain_once("round", f"not done now, and tried again: {why}", time.monotonic())
            return False
        return True

    def beat(self) -> None:
        """Do all work of one second: poll tier 0, then update jobs, alarms, looks, hardware checks and outputs.

        Raises OSError, MemoryError, RankscopeError, OverBudget among these.
        """
        beat = self.tier0.poll()
        logged = self._log_since(beat.at_s)
        beat = _with_reasons(beat, logged)
        self.book.died(beat.died)
        self._come_and_go(beat)
        for words in beat.notes:
            self._voice.note(beat.at_s, "note", words)
        for name, job in list(self.jobs.items()):
            self._take(name, job, beat)
            if name not in self.tier0.jobs():
                self._gone(name, job, beat)
        self._hear_trial(beat.at_s)
        self._hear_triggers(beat.at_s)
        self._hear_hardware(beat.at_s, logged)
        self._looking.go_on(beat.at_s)
        self._looking.hear_others(beat.at_s)
        self._looking.prepare(beat.at_s)
        self._weigh(beat.at_s)
        self._evidence.keep(beat, self.jobs, self._own)
        self._kept(lambda: self.book.save(beat.at_s), beat.at_s)
        self.tend()

    def _kept(self, write: Callable[[], None], now_s: float) -> None:
        """Write a ledger by `write`; report once in a while that it cannot be written."""
        try:
            write()
        except (OSError, RankscopeError) as error:
            self._voice.complain_once("ledger", f"a ledger cannot be written: {error}", now_s)

    def _log_since(self, now_s: float) -> Sequence[KernelMessage]:
        """Return the kernel's messages since the last call; none, with a complaint, if the log cannot be read."""
        try:
            return self.logged()
        except OSError as error:
            self._voice.complain_once("log", f"the kernel's log is not heard: {error.strerror}", now_s)
            return ()

    # ---- jobs --------------------------------------------------------------------------------------------------------

    def _come_and_go(self, beat: Beat) -> None:
        """Add jobs with new ranks, or start known ones anew; report the ranks and pass them to the ledgers."""
        for name in dict.fromkeys(rank.identity.job for rank in beat.born):
            mine = [rank for rank in beat.born if rank.identity.job == name]
            known = self.jobs.get(name)
            if known is None:
                allowance = self._allowances.setdefault(name, Allowance(self.options.per_hour))
                self.jobs[name] = WatchedJob(JobWatch(name), mine[0].identity.title, allowance, user_of(mine[0]))
            else:
                known.started_again()
            self.book.come(name, self.jobs[name].user, mine, beat.at_s)
            who = rank_list(tuple(sorted(rank.identity.rank for rank in mine)))
            words = f"{who} of {mine[0].identity.world_size}, {mine[0].identity.title}"
            self._voice.note(beat.at_s, "job", words, name)

    def _take(self, name: str, job: WatchedJob, beat: Beat) -> None:
        """Process one beat of a job: its steps, alarms and their ends, ledger, and the looks that are due."""
        ranks = self.tier0.of_job(name)
        self._follow_marker(name, job, beat.at_s)
        quiet = beat.at_s - max((one.last_s for one in ranks), default=beat.at_s) >= _SILENT_S
        written_hz = self.tier0.write_hz(name) if quiet else 0.0
        died = [death for death in beat.died if death.job == name]
        told = job.watch.take(beat.at_s, ranks, beat.steps, beat.still, died, written_hz)
        self.book.take(name, ranks, beat, told, job.watch, written_hz)
        job.steps += sum(len(beat.steps.get(one.found.pid, ())) for one in ranks[:1])
        if not job.known and job.watch.step_s is not None:
            self._voice.note(beat.at_s, "job", f"a step takes {job.watch.step_s:.3f} s; watched from now on", name)
            if not job.troubles:
                job.cleared()  # what was named for a job that was slow from its start was of another pace
        job.known = job.watch.step_s is not None
        for each in told:
            if isinstance(each, Alarm):
                self._looking.alarm(job, each, beat.at_s)
            else:
                self._over(job, each)
        self._looking.again(name, job, beat.at_s)
        self._looking.by_routine(name, job, beat.at_s)
        expected = self.book.due(name, beat.at_s)
        if expected is not None and self._looking.expect(job, expected, beat.at_s):
            self.book.begun(expected)

    def _follow_marker(self, name: str, job: WatchedJob, now_s: float) -> None:
        """Learn the step time anew if other calls end a job's steps now; report each new reason why none is visible."""
        marker = self.tier0.markers.get(name)
        if marker != job.marker:
            if job.marker is not None:
                job.watch = JobWatch(name)  # steps by another marker are another series
            job.marker = marker
            give_back()
        said = self.tier0.notes.get(name, "")
        if said != job.said:
            job.said = said
            if said:
                self._voice.note(now_s, "note", said, name)

    def _over(self, job: WatchedJob, relief: Relief) -> None:
        """Report the end of a trouble, and clear it in the job's state."""
        self._voice.say(events.of_relief(relief, unix(relief.at_s), unix(relief.since_s), job.named))
        job.relieved(relief)

    def _gone(self, name: str, job: WatchedJob, beat: Beat) -> None:
        """Report and forget a job without ranks here; end its ledger, and keep a failed one for the metrics."""
        self._voice.note(beat.at_s, "gone", f"no rank of it is left here, after {job.steps} steps", name)
        del self.jobs[name]
        self._kept(lambda: self.book.gone(name, beat.at_s), beat.at_s)
        if AlarmKind.DEAD in job.troubles:
            self._evidence.died(job, beat.at_s)
        self._looking.forget(name)
        if len(self._allowances) > _ALLOWANCES_MOST:
            self._allowances = {
                job: one for job, one in self._allowances.items() if job in self.jobs or one.is_used(beat.at_s)
            }

    # ---- what else tells of trouble ----------------------------------------------------------------------------------

    def _hear_trial(self, now_s: float) -> None:
        """Report once what is not observable on this host; without a possible verdict no alarm starts a look."""
        found = self.trial.done() if self.trial is not None else None
        if found is None:
            return
        self._looking.blind = found.blind
        if found.blind:
            words = f"no verdict can be had on this host, and no alarm is looked at: {found.blind}; `rankscope doctor` says what to do"
            self.say(Event("note", unix(now_s), words, state=WARNING))
        elif found.missing:
            self._voice.note(
                now_s,
                "note",
                f"not seen on this host: {'; '.join(found.missing)}; `rankscope doctor` says what that means",
            )

    def _hear_triggers(self, now_s: float) -> None:
        """Raise an alarm for each job that a user asked for, by name or title; report a request for no job here."""
        for wanted in self.triggers():
            meant = [name for name, job in self.jobs.items() if wanted in ("", name, job.title)]
            if not meant:
                self._voice.note(now_s, "note", f"asked to look at {wanted or 'all jobs'}, and there is no such job")
            for name in meant:
                alarm = Alarm(AlarmKind.ASKED, name, now_s, "somebody asked for a look")
                self._looking.alarm(self.jobs[name], alarm, now_s)

    def _hear_hardware(self, now_s: float, logged: Sequence[KernelMessage]) -> None:
        """Report Xids, findings of sweeps and hardware that turned bad, and raise alarms for the jobs here.

        Xids that user code causes raise none.
        """
        for event in self._xids.of(logged_xids(logged), now_s):
            self.say(event)
            if not event.details["of_application"]:
                self._looking.suspect_hardware(now_s, f"after Xid {event.details['xid']}")
        if self._voice.is_due("hardware", now_s, _HARDWARE_EVERY_S):
            for words in self.swept():
                self.say(Event("hardware", unix(now_s), f"the sweep of this host: {words}", state=CRITICAL))
                self._looking.suspect_hardware(now_s, words)
            for one in self.sick():
                details = {"component": one.component, "cause": one.cause, "instance": one.instance}
                broken = ("", one.drain) if one.drain else None
                self.say(Event("hardware", unix(now_s), one.words, state=one.state, details=details, drain=broken))
                if one.state != OK:
                    self._looking.suspect_hardware(now_s, one.words)

    # ---- what the service itself takes -------------------------------------------------------------------------------

    def _weigh(self, now_s: float) -> None:
        """Measure the service's own cost every 30 s, and close a prepared look that is too large. Raises OverBudget."""
        if self._voice.is_due("cost", now_s, _COST_EVERY_S):
            self.cost.measure(now_s, len(self.tier0.ranks))
            self._looking.standby.weigh(self.cost.resident_bytes)

    def _own(self) -> ServiceState:
        """Return the service's own state, for the metrics."""
        pulse = self.tier0.pulse
        probe_s = sum(cost.run_time_ns for cost in pulse.costs()) / 1e9
        return ServiceState(
            self.cost.cpu_s, self.cost.resident_bytes, probe_s, pulse.lost(), pulse.put_off + self.put_off, self.tier0.left_out,
            time.time(),
        )  # fmt: skip


def _with_reasons(beat: Beat, logged: Sequence[KernelMessage]) -> Beat:
    """Add to ranks that the kernel killed for lack of memory that reason, from its log."""
    killed = {kill.pid: kill.words for kill in memory_kills(logged)} if beat.died and logged else {}
    return replace(beat, died=tuple(replace(one, why=killed.get(one.pid, "")) for one in beat.died)) if killed else beat
