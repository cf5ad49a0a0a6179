"""From an alarm to a closer look and what it told: who may look when, one look at a time, agreed on with the other hosts of a job.

alarm ──► Allowance ──► waiting (users in turn) ──► Look (a child: window, verdict) ──► line, JSON line, hook
                           └──► others: all hosts over one interval, one judges ──┘
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rankscope.diagnose.watch import events
from rankscope.diagnose.watch.alarms import STANDSTILLS, Alarm, AlarmKind
from rankscope.diagnose.watch.evidence import Evidence
from rankscope.diagnose.watch.hosts import others
from rankscope.diagnose.watch.hosts.others import Others
from rankscope.diagnose.watch.hosts.share import Share
from rankscope.diagnose.watch.hosts.together import Alone, Begin, Remark, Turn
from rankscope.diagnose.watch.jobs import WatchedJob
from rankscope.diagnose.watch.looks import look
from rankscope.diagnose.watch.looks.look import Look, Seen, Wanted
from rankscope.diagnose.watch.looks.prepared import Standby
from rankscope.diagnose.watch.turns import Turns
from rankscope.diagnose.watch.voice import Voice, unix
from rankscope.observer.watch.tier0 import Tier0
from rankscope.observer.window.jobs import of_user

_ROUTINE_FIRST_S = 60.0  # after the baseline is known: a healthy window to compare with
_ROUTINE_S = (1800.0, 5400.0)
_ALARM_KEPT_S = 60.0  # one that waits for another look; then it is old
_PREPARE_EVERY_S = 5.0


@dataclass(slots=True)
class Looking:
    """`jobs`: those with ranks here, by name; `others`: the way to the other hosts of jobs, None where they share no store; `window_s`: the
    length of a window, None for one that fits the steps; `routine`: whether one is taken about once an hour for the history."""

    tier0: Tier0
    voice: Voice
    evidence: Evidence
    jobs: dict[str, WatchedJob]
    history: Path
    window_s: float | None
    routine: bool
    others: Others | None
    standby: Standby = field(default_factory=Standby)
    _look: Look | None = None
    _waiting: dict[str, Alarm] = field(default_factory=dict)
    _turns: Turns = field(default_factory=Turns)
    _alone: set[str] = field(default_factory=set)  # of these: the other hosts cannot be told

    @property
    def is_looking(self) -> bool:
        """Whether a look is under way."""
        return self._look is not None

    def alarm(self, job: WatchedJob, alarm: Alarm, now_s: float) -> None:
        """It is said, and looked at where there may be a look."""
        job.raised(alarm)
        forced = alarm.kind in (AlarmKind.ASKED, AlarmKind.ROUTINE)
        why_not = "" if forced else job.allowance.allows(now_s, urgent=alarm.is_urgent)
        has_ranks = bool(self.tier0.of_job(alarm.job))
        if not has_ranks:
            why_not = "no rank is left to look at"
        event = events.of_alarm(alarm, unix(now_s), why_not)
        if alarm.kind is not AlarmKind.ROUTINE:
            self.voice.say(event)
        if alarm.kind is AlarmKind.DEAD:
            job.named = alarm.words
            self.evidence.freeze(job, event)
        if not why_not:
            self._waiting[alarm.job] = alarm
        elif has_ranks:
            job.refused = alarm

    def suspect_hardware(self, now_s: float, words: str) -> None:
        """All jobs here are looked at, but those for which a look waits."""
        for name, job in self.jobs.items():
            if name not in self._waiting:
                self.alarm(job, Alarm(AlarmKind.HARDWARE, name, now_s, words), now_s)

    def again(self, name: str, job: WatchedJob, now_s: float) -> None:
        """What there could be no look at is looked at as soon as there may be, if it is not over by then."""
        alarm = job.refused
        if alarm is None:
            return
        if alarm.kind not in job.troubles:
            job.refused = None
        elif not job.allowance.allows(now_s, urgent=alarm.is_urgent):
            job.refused = None
            self._waiting[name] = replace(alarm, at_s=now_s)

    def by_routine(self, name: str, job: WatchedJob, now_s: float) -> None:
        """A window about once an hour, at random: what to compare with, and what no alarm tells."""
        if not self.routine or job.watch.step_s is None or job.troubles:
            return
        if job.routine_s is None:
            job.routine_s = now_s + _ROUTINE_FIRST_S
        if now_s >= job.routine_s and self._look is None:
            job.routine_s = now_s + random.uniform(*_ROUTINE_S)
            self.alarm(job, Alarm(AlarmKind.ROUTINE, name, now_s, "a window for the history"), now_s)

    def go_on(self, now_s: float) -> None:
        """What a look has told is said; the next one begins."""
        if self._look is not None:
            seen = self._look.done()
            if seen is None:
                return
            self._look = None
            self._learn(seen, now_s)
        for name in self._turns.order(self._waiting, self.voice.whose):
            job, alarm = self.jobs.get(name), self._waiting.pop(name)
            if job is None or now_s - alarm.at_s > max(_ALARM_KEPT_S, 10 * (job.watch.step_s or 0.0)):
                self._alone.discard(name)
                continue
            seconds = self.window_s or look.window_s(job.watch.step_s, alarm.kind in STANDSTILLS)
            ranks = self.tier0.of_job(name)
            if self.others is not None and name not in self._alone and others.hosts_of(ranks) > 1:
                self._call(self.others)
                self.others.propose(alarm, seconds, ready=self._stands_by(name))
                continue
            self._alone.discard(name)
            self._begin(job, alarm, seconds, now_s)
            return

    def prepare(self, now_s: float) -> None:
        """The next look stands by, as soon as it is known what a job's ranks and steps are."""
        if self._look is None and not self._waiting and self.voice.is_due("prepare", now_s, _PREPARE_EVERY_S):
            self._keep([name for name in self.jobs if not self.tier0.is_learning(name)])

    def _stands_by(self, name: str) -> bool:
        """Whether a look at this job would begin at once; where not, one is being prepared, unless a look at another job comes first."""
        if not (ready := self.standby.is_ready(name, self._pids(name))):
            self._keep([name])
        return ready

    def _keep(self, known: Sequence[str]) -> None:
        """The next look stands by for one of these jobs, or for one of which a look is agreed on."""
        agreed = [name for name in self.others.agreed() if name in self.jobs] if self.others is not None else []
        self.standby.keep({name: self._pids(name) for name in (*agreed, *known)}, agreed)

    def forget(self, name: str) -> None:
        """A job that is gone."""
        self._waiting.pop(name, None)
        self._alone.discard(name)

    def close(self) -> None:
        """A look under way ends."""
        if self._look is not None:
            self._look.kill()
        self.standby.close()
        if self.others is not None:
            self.others.close()

    def hear_others(self, now_s: float) -> None:
        """What the other hosts of jobs want or have judged."""
        if self.others is None:
            return
        self._call(self.others)
        for task in self.others.take({name: others.hosts_of(self.tier0.of_job(name)) for name in self.jobs}):
            if isinstance(task, Seen):
                self._learn(task, now_s)
                continue
            job = self.jobs.get(task.job)
            if isinstance(task, Remark):
                self.voice.note(now_s, "note", task.words, task.job)
            elif job is None:
                continue
            elif isinstance(task, Alone):
                self.voice.note(now_s, "note", f"this host looks alone: {task.why}", task.job)
                self._alone.add(task.job)
                self._waiting[task.job] = replace(task.alarm, at_s=now_s)
            elif isinstance(task, Turn):
                self._judge_instead(self.others, job, task, now_s)
            else:
                self._join(self.others, job, task, now_s)

    def _call(self, hosts: Others) -> None:
        """On no other host a job may be called as here; whose it is is the same on all."""
        hosts.call(
            {
                name: of_user(name, max((one.found.owner for one in self.tier0.of_job(name)), default=-1))
                for name in self.jobs
            }
        )

    def _judge_instead(self, hosts: Others, job: WatchedJob, task: Turn, now_s: float) -> None:
        """Another host was to judge what all saw, and has not."""
        if self._look is not None:
            return
        trigger = task.trigger
        self.voice.note(now_s, "note", f"{trigger.host} has not judged: this host does", task.job)
        share = hosts.share(task, job.earlier)
        self._begin(job, trigger.alarm(now_s), trigger.seconds, now_s, share, only_judge=True)

    def _join(self, hosts: Others, job: WatchedJob, task: Begin, now_s: float) -> None:
        """A look of all hosts."""
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
            self.voice.note(now_s, "note", f"{task.trigger.words}, says {task.trigger.host}: {then}", task.job)
        if not why_not:
            alarm = task.alarm or task.trigger.alarm(now_s)
            self._begin(job, alarm, task.trigger.seconds, now_s, hosts.share(task, job.earlier))

    def _begin(
        self,
        job: WatchedJob,
        alarm: Alarm,
        seconds: float,
        now_s: float,
        share: Share | None = None,
        only_judge: bool = False,
    ) -> None:
        wanted = Wanted(alarm, seconds, self.history, share, only_judge)
        try:
            self._look = self.standby.begin(wanted, self._pids(alarm.job))
        except OSError as error:
            self.voice.complain(f"no look is possible: {error.strerror}")
            return
        self._turns.took(job.user)
        if only_judge:
            return
        job.windows += 1
        if alarm.kind is not AlarmKind.ROUTINE:
            job.allowance.looked(now_s)

    def _learn(self, seen: Seen, now_s: float) -> None:
        job = self.jobs.get(seen.alarm.job)
        if seen.waits and not seen.trouble and self.others is not None:
            self.others.sent(seen)
            return
        event = events.of_look(seen, unix(now_s))
        self.voice.say(event)
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
            self.evidence.freeze(job, event)

    def _pids(self, job: str) -> frozenset[int]:
        return frozenset(one.found.pid for one in self.tier0.of_job(job))
