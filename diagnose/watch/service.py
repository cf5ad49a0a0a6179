"""The loop of `rankscope watch`: a beat of tier 0 a second, alarms, looks, one line for each thing that happened.

  Tier0.poll ──► JobWatch.take ──► alarm ──► Allowance ──► Look (a child: window, verdict) ──► line, JSON line, hook
                                  relief ─────────────────────────────────────────────────────► "regained …"
       └─► black box, metrics

One thread, and one look at a time: what a window costs the job is paid once. Whatever ends this process, the kernel takes its probes back.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankscope.diagnose.severity import CRITICAL, OK
from rankscope.diagnose.watch import events, look
from rankscope.diagnose.watch.alarms import STANDSTILLS, Alarm, AlarmKind, JobWatch, Relief, ranks_text
from rankscope.diagnose.watch.events import Event
from rankscope.diagnose.watch.hosts import others
from rankscope.diagnose.watch.hosts.others import Others
from rankscope.diagnose.watch.hosts.share import Share
from rankscope.diagnose.watch.hosts.together import Alone, Begin, Remark, Turn
from rankscope.diagnose.watch.limits import WINDOWS_PER_HOUR, Allowance, NotNow, OverBudget, OwnCost
from rankscope.diagnose.watch.look import Look, Seen, Wanted
from rankscope.diagnose.watch.prepared import Standby
from rankscope.diagnose.watch.sick import Sickness
from rankscope.diagnose.watch.signals import ENDING
from rankscope.diagnose.watch.states import box_line, rank_state, usual_s
from rankscope.diagnose.watch.tell import watchdog
from rankscope.diagnose.watch.tell.drain import reason_of
from rankscope.diagnose.watch.tell.metrics import JobState, ServiceState, as_prometheus, families
from rankscope.diagnose.watch.tell.otlp import Otlp
from rankscope.diagnose.xids import by_application, meaning
from rankscope.observer.live.limits import give_back
from rankscope.observer.watch.blackbox import BlackBox
from rankscope.observer.watch.marker import StepMarker
from rankscope.observer.watch.shares import user_of
from rankscope.observer.watch.tier0 import Beat, Tier0
from rankscope.probes.errors import RankscopeError
from rankscope.probes.gpu.xid import logged_xids
from rankscope.probes.host.kmsg import KernelMessage
from rankscope.probes.host.oom import memory_kills

BEAT_S = 1.0
_BOX_EVERY_S = 5.0
_METRICS_EVERY_S = 15.0
_HARDWARE_EVERY_S = 5.0
_COST_EVERY_S = 30.0
_ROUTINE_FIRST_S = 60.0  # after the baseline is known: a healthy window to compare with
_ROUTINE_S = (1800.0, 5400.0)
_ALARM_KEPT_S = 60.0  # one that waits for another look; then it is old
_ALLOWANCES_MOST = 256
_FAILED_MOST = 300  # rounds, one after the other: then it is started anew
_SILENT_S = 2.0  # of a job, before it is asked what its ranks write
_LASTING = (AlarmKind.SLOWER, AlarmKind.SILENT, AlarmKind.STOPPED, AlarmKind.DEAD)  # until they are over


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """`metrics`: a file to write; `routine`: whether a window is taken about once an hour for the history; `per_hour`: looks at one job
    that nobody asked for."""

    history: Path
    metrics: Path | None = None
    routine: bool = True
    window_s: float | None = None
    per_hour: int = WINDOWS_PER_HOUR


@dataclass(slots=True)
class _Job:
    """One job with ranks here."""

    watch: JobWatch
    title: str
    allowance: Allowance
    user: str = ""
    marker: StepMarker | None = None
    steps: int = 0
    windows: int = 0
    alarms: Counter[str] = field(default_factory=Counter)
    named: str = ""
    lost_s: float = 0.0
    troubles: set[AlarmKind] = field(default_factory=set)
    frozen: Path | None = None
    routine_s: float | None = None
    earlier: float | None = None  # when the last window of all hosts began in which nobody was accused
    refused: Alarm | None = None  # there was no look at it
    known: bool = False  # how long its steps are
    said: str = ""  # why its steps are not seen, when that was said


@dataclass(slots=True)
class Service:
    """`say` gets each event, `complain` what went wrong with us; `triggers`: jobs that were asked for since the last call, '' for all;
    `logged`: what the kernel logged since; `swept`: what a sweep found critical since; `sick`: hardware that turned bad; `scraped`: answers
    scrapes of the metrics; `others`: the way to the other hosts of jobs, None where they share no store; `otlp`: to a
    collector; `tend`: once a round, for what waits to be said; `put_off`: rounds that were not done to their end."""

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
    put_off: int = 0
    jobs: dict[str, _Job] = field(default_factory=dict)
    cost: OwnCost = field(default_factory=OwnCost)
    _allowances: dict[str, Allowance] = field(default_factory=dict)  # of jobs that are gone too: they may come back
    _look: Look | None = None
    _standby: Standby = field(default_factory=Standby)
    _waiting: dict[str, Alarm] = field(default_factory=dict)
    _alone: set[str] = field(default_factory=set)  # of these: the other hosts cannot be told
    _due: dict[str, float] = field(default_factory=dict)
    _failed: int = 0

    def run(self, wait: Callable[[float], Collection[int]]) -> None:
        """Until somebody ends it. `wait` waits so many seconds, or for signals, and says which. Raises OverBudget, NotNow."""
        self.say(Event("started", time.time(), "watching"))
        watchdog.tell(watchdog.READY)
        try:
            while True:
                began = time.monotonic()
                self._one_round()
                watchdog.tell(watchdog.ALIVE)
                if ENDING & self._wait(wait, began + BEAT_S):
                    return
        finally:
            watchdog.tell(watchdog.STOPPING)
            if self._look is not None:
                self._look.kill()
            self._standby.close()
            if self.others is not None:
                self.others.close()
            if self.otlp is not None:
                self.otlp.close()
            self.tier0.close()
            self.say(Event("ended", time.time(), "no longer watching; nothing was left behind"))

    def _wait(self, wait: Callable[[float], Collection[int]], until_s: float) -> set[int]:
        """For the next round, or for signals; what a look has seen is told at once."""
        while True:
            left_s = max(until_s - time.monotonic(), 0.01)
            signals = set(wait(min(left_s, BEAT_S / 10) if self._look is not None else left_s))
            if signals or time.monotonic() >= until_s:
                return signals
            self._done(lambda: self._looks(time.monotonic()))

    def _one_round(self) -> None:
        self._failed = 0 if self._done(self.beat) else self._failed + 1
        if self._failed >= _FAILED_MOST:
            raise NotNow(f"{_FAILED_MOST} rounds one after the other could not be done")

    def _done(self, work: Callable[[], None]) -> bool:
        """Whether it could be done. What this host refuses now (a process, say: any user can use them up) is no reason to end."""
        try:
            work()
        except OverBudget:
            raise
        except (OSError, MemoryError, RankscopeError) as error:
            self.put_off += 1
            why = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
            self._complain_once("round", f"not done now, and tried again: {why}", time.monotonic())
            return False
        return True

    def beat(self) -> None:
        """One round."""
        beat = self.tier0.poll()
        logged = self._log_since(beat.at_s)
        beat = _with_reasons(beat, logged)
        self._come_and_go(beat)
        for words in beat.notes:
            self._say(beat.at_s, "note", words)
        for name, job in list(self.jobs.items()):
            self._take(name, job, beat)
            if name not in self.tier0.jobs():
                self._gone(name, job, beat)
        self._hear_triggers(beat.at_s)
        self._hear_hardware(beat.at_s, logged)
        self._looks(beat.at_s)
        self._hear_others(beat.at_s)
        if self._look is None and not self._waiting and self._is_due("prepare", beat.at_s, _HARDWARE_EVERY_S):
            self._prepare()
        self._keep(beat)
        self.tend()

    def _log_since(self, now_s: float) -> Sequence[KernelMessage]:
        try:
            return self.logged()
        except OSError as error:
            self._complain_once("log", f"the kernel's log is not heard: {error.strerror}", now_s)
            return ()

    # ---- jobs --------------------------------------------------------------------------------------------------------

    def _come_and_go(self, beat: Beat) -> None:
        for name in dict.fromkeys(rank.identity.job for rank in beat.born):
            mine = [rank for rank in beat.born if rank.identity.job == name]
            known = self.jobs.get(name)
            if known is None:
                allowance = self._allowances.setdefault(name, Allowance(self.options.per_hour))
                self.jobs[name] = _Job(JobWatch(name), mine[0].identity.title, allowance, user_of(mine[0]))
            else:  # ranks were started again: what was usual is learnt anew
                known.watch, known.known = JobWatch(name), False
                known.troubles.clear()
            who = ranks_text(sorted(rank.identity.rank for rank in mine))
            self._say(beat.at_s, "job", f"{who} of {mine[0].identity.world_size}, {mine[0].identity.title}", name)

    def _take(self, name: str, job: _Job, beat: Beat) -> None:
        ranks = self.tier0.of_job(name)
        self._follow_marker(name, job, beat.at_s)
        quiet = beat.at_s - max((one.last_s for one in ranks), default=beat.at_s) >= _SILENT_S
        told = job.watch.take(
            beat.at_s,
            ranks,
            beat.steps,
            beat.still,
            [death for death in beat.died if death.job == name],
            self.tier0.write_hz(name) if quiet else 0.0,
        )
        job.steps += sum(len(beat.steps.get(one.found.pid, ())) for one in ranks[:1])
        if not job.known and job.watch.step_s is not None:
            self._say(beat.at_s, "job", f"a step takes {job.watch.step_s:.3f} s; watched from now on", name)
        job.known = job.watch.step_s is not None
        for each in told:
            if isinstance(each, Alarm):
                self._alarm(job, each, beat.at_s)
            else:
                self._over(job, each, beat.at_s)
        self._again(name, job, beat.at_s)
        self._routine(name, job, beat.at_s)

    def _follow_marker(self, name: str, job: _Job, now_s: float) -> None:
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
                self._say(now_s, "note", said, name)

    def _gone(self, name: str, job: _Job, beat: Beat) -> None:
        self._say(beat.at_s, "gone", f"no rank of it is left here, after {job.steps} steps", name)
        del self.jobs[name]
        self._waiting.pop(name, None)
        self._alone.discard(name)
        if len(self._allowances) > _ALLOWANCES_MOST:
            self._allowances = {
                job: one for job, one in self._allowances.items() if job in self.jobs or one.is_used(beat.at_s)
            }

    # ---- alarms and looks --------------------------------------------------------------------------------------------

    def _alarm(self, job: _Job, alarm: Alarm, now_s: float) -> None:
        job.alarms[alarm.kind.value] += 1
        if alarm.kind in _LASTING:
            job.troubles.add(alarm.kind)
        forced = alarm.kind in (AlarmKind.ASKED, AlarmKind.ROUTINE)
        why_not = "" if forced else job.allowance.allows(now_s, urgent=alarm.is_urgent)
        if not self.tier0.of_job(alarm.job):
            why_not = "no rank is left to look at"
        event = events.of_alarm(alarm, _unix(now_s), why_not)
        if alarm.kind is not AlarmKind.ROUTINE:
            self.say(event)
        if alarm.kind is AlarmKind.DEAD:
            job.named = alarm.words
            self._freeze(job, event)
        if not why_not:
            self._waiting[alarm.job] = alarm
        elif self.tier0.of_job(alarm.job):
            job.refused = alarm

    def _again(self, name: str, job: _Job, now_s: float) -> None:
        """What there could be no look at is looked at as soon as there may be, if it is not over by then."""
        alarm = job.refused
        if alarm is None:
            return
        if alarm.kind not in job.troubles:
            job.refused = None
        elif not job.allowance.allows(now_s, urgent=alarm.is_urgent):
            job.refused = None
            self._waiting[name] = replace(alarm, at_s=now_s)

    def _over(self, job: _Job, relief: Relief, now_s: float) -> None:
        self.say(events.of_relief(relief, _unix(relief.at_s, now_s), _unix(relief.since_s, now_s), job.named))
        job.troubles.discard(relief.kind)
        if not job.troubles:
            job.named, job.lost_s, job.frozen = "", 0.0, None

    def _routine(self, name: str, job: _Job, now_s: float) -> None:
        """A window about once an hour, at random: what to compare with, and what no alarm tells."""
        if not self.options.routine or job.watch.step_s is None or job.troubles:
            return
        if job.routine_s is None:
            job.routine_s = now_s + _ROUTINE_FIRST_S
        if now_s >= job.routine_s and self._look is None:
            job.routine_s = now_s + random.uniform(*_ROUTINE_S)
            self._alarm(job, Alarm(AlarmKind.ROUTINE, name, now_s, "a window for the history"), now_s)

    def _hear_triggers(self, now_s: float) -> None:
        for wanted in self.triggers():
            meant = [name for name, job in self.jobs.items() if wanted in ("", name, job.title)]
            if not meant:
                self._say(now_s, "note", f"asked to look at {wanted or 'all jobs'}, and there is no such job")
            for name in meant:
                self._alarm(self.jobs[name], Alarm(AlarmKind.ASKED, name, now_s, "somebody asked for a look"), now_s)

    def _hear_hardware(self, now_s: float, logged: Sequence[KernelMessage]) -> None:
        for xid in logged_xids(logged):
            what, state, action = meaning(xid.number)
            words = f"GPU {xid.bus}: Xid {xid.number}, {what}. {action}"
            broken = ("", reason_of("gpu", "xid", f"{xid.bus} {xid.number}")) if state == CRITICAL else None
            details = {"xid": xid.number, "bus": xid.bus}
            self.say(Event("hardware", _unix(xid.time_s), words, state=state, details=details, drain=broken))
            if not by_application(xid.number):
                self._suspect_hardware(now_s, f"after Xid {xid.number}")
        if self._is_due("hardware", now_s, _HARDWARE_EVERY_S):
            for words in self.swept():
                self.say(Event("hardware", _unix(now_s), f"the sweep of this host: {words}", state=CRITICAL))
                self._suspect_hardware(now_s, words)
            for one in self.sick():
                details = {"component": one.component, "cause": one.cause, "instance": one.instance}
                broken = ("", one.drain) if one.drain else None
                self.say(Event("hardware", _unix(now_s), one.words, state=one.state, details=details, drain=broken))
                if one.state != OK:
                    self._suspect_hardware(now_s, one.words)

    def _suspect_hardware(self, now_s: float, words: str) -> None:
        for name, job in self.jobs.items():
            if name not in self._waiting:
                self._alarm(job, Alarm(AlarmKind.HARDWARE, name, now_s, words), now_s)

    def _looks(self, now_s: float) -> None:
        if self._look is not None:
            seen = self._look.done()
            if seen is None:
                return
            self._look = None
            self._learn(seen, now_s)
        for name, alarm in list(self._waiting.items()):
            job = self.jobs.get(name)
            del self._waiting[name]
            if job is None or now_s - alarm.at_s > max(_ALARM_KEPT_S, 10 * (job.watch.step_s or 0.0)):
                self._alone.discard(name)
                continue
            seconds = self.options.window_s or look.window_s(job.watch.step_s, alarm.kind in STANDSTILLS)
            ranks = self.tier0.of_job(name)
            if self.others is not None and name not in self._alone and others.hosts_of(ranks) > 1:
                self.others.propose(alarm, seconds)
                continue
            self._alone.discard(name)
            self._begin(job, alarm, seconds, now_s)
            return

    def _begin(
        self,
        job: _Job,
        alarm: Alarm,
        seconds: float,
        now_s: float,
        share: Share | None = None,
        only_judge: bool = False,
    ) -> None:
        wanted = Wanted(alarm, seconds, self.options.history, share, only_judge)
        try:
            self._look = self._standby.begin(wanted, self._pids(alarm.job))
        except OSError as error:
            self.complain(f"no look is possible: {error.strerror}")
            return
        if only_judge:
            return
        job.windows += 1
        if alarm.kind is not AlarmKind.ROUTINE:
            job.allowance.looked(now_s)

    def _prepare(self) -> None:
        """The next look stands by, as soon as it is known what a job's ranks and steps are."""
        known = (name for name in self.jobs if not self.tier0.is_learning(name))
        self._standby.keep({name: self._pids(name) for name in known})

    def _pids(self, job: str) -> frozenset[int]:
        return frozenset(one.found.pid for one in self.tier0.of_job(job))

    # ---- other hosts -------------------------------------------------------------------------------------------------

    def _hear_others(self, now_s: float) -> None:
        if self.others is None:
            return
        for task in self.others.take({name: others.hosts_of(self.tier0.of_job(name)) for name in self.jobs}):
            if isinstance(task, Seen):
                self._learn(task, now_s)
                continue
            job = self.jobs.get(task.job)
            if isinstance(task, Remark):
                self._say(now_s, "note", task.words, task.job)
            elif job is None:
                continue
            elif isinstance(task, Alone):
                self._say(now_s, "note", f"this host looks alone: {task.why}", task.job)
                self._alone.add(task.job)
                self._waiting[task.job] = replace(task.alarm, at_s=now_s)
            elif isinstance(task, Turn):
                alarm = task.trigger.alarm(now_s)
                if self._look is None:
                    self._say(now_s, "note", f"{task.trigger.host} has not judged: this host does", task.job)
                    self._begin(
                        job, alarm, task.trigger.seconds, now_s, self.others.share(task, job.earlier), only_judge=True
                    )
            else:
                self._join(job, task, now_s)

    def _join(self, job: _Job, task: Begin, now_s: float) -> None:
        """A look of all hosts."""
        assert self.others is not None
        routine = task.trigger.kind is AlarmKind.ROUTINE
        forced = routine or task.trigger.kind is AlarmKind.ASKED
        why_not = "" if forced or task.alarm else job.allowance.allows(now_s, urgent=True)
        if self._look is not None:
            why_not = "another look is not over"
            if task.alarm is not None:
                self._waiting[task.job] = replace(task.alarm, at_s=now_s)
        if routine:
            job.routine_s = now_s + random.uniform(*_ROUTINE_S)
        if why_not or not (routine or task.ours):
            then = f"no window: {why_not}" if why_not else "looks with all hosts"
            self._say(now_s, "note", f"{task.trigger.words}, says {task.trigger.host}: {then}", task.job)
        if not why_not:
            alarm = task.alarm or task.trigger.alarm(now_s)
            self._begin(job, alarm, task.trigger.seconds, now_s, self.others.share(task, job.earlier))

    def _learn(self, seen: Seen, now_s: float) -> None:
        job = self.jobs.get(seen.alarm.job)
        if seen.waits and not seen.trouble and self.others is not None:
            self.others.sent(seen)
            return
        event = events.of_look(seen, _unix(now_s))
        self.say(event)
        if job is None:
            return
        if seen.share is not None and seen.verdict is not None and seen.verdict["status"] == "healthy":
            job.earlier = seen.share.trigger.start
        if seen.alarm.kind not in (AlarmKind.ROUTINE, AlarmKind.ASKED):
            job.allowance.learnt(now_s, seen.accuses)
        if seen.verdict is not None and seen.accuses:
            job.named = events.verdict_words(seen.verdict)
            job.lost_s = float(seen.verdict["suspects"][0]["lost_seconds_per_step"] or 0.0)
        if seen.verdict is not None and seen.verdict["status"] == "hang":
            self._freeze(job, event)

    # ---- evidence ----------------------------------------------------------------------------------------------------

    def _freeze(self, job: _Job, event: Event) -> None:
        content = event.as_json(os.uname().nodename)
        try:
            if job.frozen is not None:
                self.box.add(job.frozen, "verdict.json", _json(content))
                return
            job.frozen = self.box.freeze(job.watch.job, content, event.at, job.user)
        except (OSError, RankscopeError) as error:
            self.complain(f"the black box cannot be written: {error}")
            return
        self.say(Event("frozen", event.at, f"the last minutes are kept in {job.frozen}", event.job))

    def _keep(self, beat: Beat) -> None:
        if self._is_due("box", beat.at_s, _BOX_EVERY_S):
            try:
                for name, job in self.jobs.items():
                    about = {"title": job.title, "usual_s": job.watch.step_s, "named": job.named}
                    troubles = sorted(kind.value for kind in job.troubles)
                    line = box_line(name, self.tier0.of_job(name), beat, _BOX_EVERY_S)
                    self.box.append(line | about | {"troubles": troubles}, time.time())
            except (OSError, RankscopeError) as error:
                self._complain_once("box", f"the black box cannot be written: {error}", beat.at_s)
        if self._is_due("cost", beat.at_s, _COST_EVERY_S):
            self.cost.measure(beat.at_s, len(self.tier0.ranks))
            self._standby.weigh(self.cost.resident_bytes)
        if self.scraped is not None:
            self.scraped(lambda: as_prometheus(self._states(beat), self._own()))
        if self._is_due("metrics", beat.at_s, _METRICS_EVERY_S):
            self._tell_metrics(beat)

    def _tell_metrics(self, beat: Beat) -> None:
        if self.options.metrics is not None:
            try:
                self.write_metrics(self.options.metrics, as_prometheus(self._states(beat), self._own()))
            except (OSError, RankscopeError) as error:
                self._complain_once("metrics", f"the metrics cannot be written: {error}", beat.at_s)
        if self.otlp is not None:
            trouble = self.otlp.send(families(self._states(beat), self._own()))
            if trouble:
                self._complain_once("otlp", f"no metrics over OTLP: {trouble}", beat.at_s)

    def _states(self, beat: Beat) -> list[JobState]:
        return [
            JobState(
                job=name,
                ranks=[rank_state(one, beat) for one in self.tier0.of_job(name)],
                step_s=usual_s(self.tier0.of_job(name)),
                baseline_s=job.watch.step_s or float("nan"),
                steps=job.steps,
                slow=AlarmKind.SLOWER in job.troubles,
                hung=bool(job.troubles - {AlarmKind.SLOWER}),
                named=bool(job.named),
                alarms=dict(job.alarms),
                windows=job.windows,
                lost_s=job.lost_s,
            )
            for name, job in self.jobs.items()
        ]

    def _own(self) -> ServiceState:
        probe_s = sum(cost.run_time_ns for cost in self.tier0.pulse.costs()) / 1e9
        pulse = self.tier0.pulse
        return ServiceState(
            self.cost.cpu_s, self.cost.resident_bytes, probe_s, pulse.lost(), pulse.put_off + self.put_off, self.tier0.left_out
        )  # fmt: skip

    def _is_due(self, what: str, now_s: float, every_s: float) -> bool:
        if now_s < self._due.get(what, 0.0):
            return False
        self._due[what] = now_s + every_s
        return True

    def _complain_once(self, what: str, words: str, now_s: float) -> None:
        if self._is_due(f"complain {what}", now_s, 600.0):
            self.complain(words)

    def _say(self, now_s: float, kind: str, words: str, job: str = "") -> None:
        self.say(Event(kind, _unix(now_s), words, job))


def _unix(at_s: float, now_s: float | None = None) -> float:
    """Unix time of an instant of CLOCK_MONOTONIC."""
    return time.time() - (time.monotonic() - at_s)


def _with_reasons(beat: Beat, logged: Sequence[KernelMessage]) -> Beat:
    """The same, with what the kernel logged of processes that it ended."""
    killed = {kill.pid: kill.words for kill in memory_kills(logged)} if beat.died and logged else {}
    return replace(beat, died=tuple(replace(one, why=killed.get(one.pid, "")) for one in beat.died)) if killed else beat


def _json(content: object) -> bytes:
    return json.dumps(content, indent=2).encode()
