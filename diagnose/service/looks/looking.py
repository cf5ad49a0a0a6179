"""From alarms to looks and verdicts: which job may be looked at, one look at a time, agreed with its other hosts.

alarm ──► Allowance ──► waiting (users in turn) ──► Look (a child: window, verdict) ──► line, JSON line, hook
     └──► others: all hosts over one interval, one judges ──┘

Looks agreed with other hosts come before this host's own: a thousand hosts wait for its window, or
its verdict. One trouble raises alarms host by host: those raised while all hosts look already wait
for that verdict.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankscope.diagnose.service import events
from rankscope.diagnose.service.alarms import STANDSTILLS, Alarm, AlarmKind
from rankscope.diagnose.service.evidence import Evidence
from rankscope.diagnose.service.hosts import others
from rankscope.diagnose.service.hosts.others import Others
from rankscope.diagnose.service.hosts.share import Share
from rankscope.diagnose.service.hosts.together import Alone, Begin, ClockSet, Remark, Turn
from rankscope.diagnose.service.hosts.trigger import Pace, Trigger
from rankscope.diagnose.service.jobs import WatchedJob
from rankscope.diagnose.service.looks import look
from rankscope.diagnose.service.looks.look import Look, Seen, Wanted
from rankscope.diagnose.service.looks.prepared import Standby
from rankscope.diagnose.service.tell.suspects import STILL_STATUSES, of_death, of_verdict
from rankscope.diagnose.service.turns import Turns
from rankscope.diagnose.service.voice import Voice, unix
from rankscope.observer.watch.tier0 import Tier0
from rankscope.observer.window import staging
from rankscope.observer.window.jobs import of_user

_ROUTINE_FIRST_S = 60.0  # after the baseline is known: a healthy window to compare with
_ROUTINE_S = (1800.0, 5400.0)
_ALARM_KEPT_S = 60.0  # how long an alarm waits for another look to end; then it is dropped
_ASKED_KEPT_S = 900.0  # somebody waits for this one, also behind those of many jobs
_PREPARE_EVERY_S = 5.0
_LEFT_FOR_ALARMS = 1  # windows an hour that pauses do not use up


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An alarm that waits for a look since `since_s`, CLOCK_MONOTONIC."""

    alarm: Alarm
    since_s: float


@dataclass(slots=True)
class Looking:
    """Starts looks and reports their verdicts.

    `jobs`: those with ranks here, by name; `others`: connection to the jobs' other hosts, None
    without a shared store; `window_s`: length of a window, None to fit it to the steps; `routine`:
    record one about once an hour for the history; `learnt`: gets each result, and says what a
    window for a pause found.
    """

    tier0: Tier0
    voice: Voice
    evidence: Evidence
    jobs: dict[str, WatchedJob]
    history: Path
    window_s: float | None
    routine: bool
    others: Others | None
    standby: Standby = field(default_factory=Standby)
    learnt: Callable[[Seen], str] = lambda _: ""
    blind: str = ""  # why no verdict is possible on this host
    _look: Look | None = None
    _waiting: dict[str, _Waiting] = field(default_factory=dict)
    # agreed with other hosts, and delayed by a running look
    _held: list[Begin | Turn] = field(default_factory=list)
    _in_common: dict[str, Trigger] = field(
        default_factory=dict
    )  # by job: the look of all hosts whose verdict is not known yet
    _turns: Turns = field(default_factory=Turns)
    _expected: str = ""  # job whose window could not begin, as nothing was prepared for it
    # jobs among these whose other hosts cannot be reached
    _alone: set[str] = field(default_factory=set)

    @property
    def is_looking(self) -> bool:
        """True while a look runs."""
        return self._look is not None

    def alarm(self, job: WatchedJob, alarm: Alarm, now_s: float) -> None:
        """Report an alarm, and queue a look if one is allowed."""
        job.raised(alarm)
        forced = alarm.kind in (AlarmKind.ASKED, AlarmKind.ROUTINE)
        why_not = "" if forced else self._why_no_look(job, alarm, now_s)
        has_ranks = bool(self.tier0.of_job(alarm.job))
        if not has_ranks:
            why_not = "no rank is left to look at"
        event = events.of_alarm(alarm, unix(now_s), why_not)
        if alarm.kind is not AlarmKind.ROUTINE:
            self.voice.say(event)
        if alarm.kind is AlarmKind.DEAD:
            job.accused(alarm.words, tuple(of_death(rank, self.evidence.host) for rank in alarm.ranks))
            self.evidence.died(job, now_s)
            self.evidence.freeze(job, event)
        if not why_not:
            self._waiting[alarm.job] = _Waiting(alarm, now_s)
        elif has_ranks:
            job.refused = alarm

    def _why_no_look(self, job: WatchedJob, alarm: Alarm, now_s: float) -> str:
        """Explain why no look is allowed now, as this host is blind or by the job's limits; '' if one is."""
        if self.blind:
            return "no verdict can be had on this host"
        return job.allowance.allows(now_s, urgent=alarm.is_urgent, standstill=alarm.kind in STANDSTILLS)

    def suspect_hardware(self, now_s: float, words: str) -> None:
        """Raise a hardware alarm for all jobs here, except those with a queued look; `words`: what was found."""
        for name, job in self.jobs.items():
            if name not in self._waiting:
                self.alarm(job, Alarm(AlarmKind.HARDWARE, name, now_s, words), now_s)

    def again(self, name: str, job: WatchedJob, now_s: float) -> None:
        """Queue a look that was refused before, once it is allowed and if its trouble is not over."""
        alarm = job.refused
        if alarm is None:
            return
        if alarm.kind not in job.troubles:
            job.refused = None
        elif not self._why_no_look(job, alarm, now_s):
            job.refused = None
            self._waiting[name] = _Waiting(alarm, now_s)

    def by_routine(self, name: str, job: WatchedJob, now_s: float) -> None:
        """Raise a routine alarm about once an hour, at random times: for comparison, and for faults without an alarm."""
        if not self.routine or self.blind or job.watch.step_s is None or job.troubles:
            return
        if job.routine_s is None:
            job.routine_s = now_s + _ROUTINE_FIRST_S
        if now_s >= job.routine_s and self._look is None:
            job.routine_s = now_s + random.uniform(*_ROUTINE_S)
            self.alarm(job, Alarm(AlarmKind.ROUTINE, name, now_s, "a window for the history"), now_s)

    def expect(self, job: WatchedJob, alarm: Alarm, now_s: float) -> bool:
        """Begin a window for an expected pause, on this host only, as it is of its ranks; return whether it began.

        False if a look or trouble comes first, if only the window for an alarm is left, if no verdict is possible, or
        while no look is prepared for it: this call then prepares one.
        """
        is_busy = self._look is not None or self._waiting or self._held or job.troubles
        if self.blind or is_busy or job.allowance.left(now_s) <= _LEFT_FOR_ALARMS:
            return False
        if self.others is not None and self.others.agreed():
            return False
        pids = self._pids(alarm.job)
        if not self.standby.is_ready(alarm.job, pids) and not self.standby.is_refused(pids):
            self._expected = alarm.job  # one that loads first would begin too late
            self._keep([alarm.job])
            return False
        self._expected = ""
        return self._begin(job, alarm, alarm.seconds or look.window_s(job.watch.step_s, False), now_s)

    def go_on(self, now_s: float) -> None:
        """Report the result of a finished look, and begin the next one."""
        if self._look is not None:
            seen = self._look.done()
            if seen is None:
                return
            self._look = None
            self._learn(seen, now_s)
        if self._begin_held(now_s):
            return
        for name in self._turns.order(self._waiting, self.voice.whose):
            job, waiting = self.jobs.get(name), self._waiting.pop(name)
            alarm = waiting.alarm
            kept_s = _ASKED_KEPT_S if alarm.kind is AlarmKind.ASKED else _ALARM_KEPT_S
            if job is None or now_s - waiting.since_s > max(kept_s, 10 * (job.watch.step_s or 0.0)):
                self._alone.discard(name)
                continue
            seconds = self.window_s or look.window_s(job.watch.step_s, alarm.kind in STANDSTILLS)
            ranks = self.tier0.of_job(name)
            if self.others is not None and name not in self._alone and others.hosts_of(ranks) > 1:
                if self._is_served(alarm):
                    self._waiting[name] = waiting
                    continue
                self._call(self.others)
                self.others.propose(alarm, seconds, ready=self._stands_by(name))
                continue
            if self.others is not None and self.others.agreed():
                # other hosts begin at a fixed time; this host's own look can wait
                self._waiting[name] = waiting
                continue
            if not self._begin(job, alarm, seconds, now_s):
                self._waiting[name] = waiting
                continue
            self._alone.discard(name)
            return

    def prepare(self, now_s: float) -> None:
        """Prepare the next look, as soon as a job's ranks and steps are known."""
        waiting = any(not self._is_served(each.alarm) for each in self._waiting.values())
        if (
            not self.blind
            and self._look is None
            and not waiting
            and self.voice.is_due("prepare", now_s, _PREPARE_EVERY_S)
        ):
            self._keep([name for name in self.jobs if not self.tier0.is_learning(name)])

    def _stands_by(self, name: str) -> bool:
        """Tell whether a look at this job would begin at once; if not, prepare one, unless another job comes first."""
        if not (ready := self.standby.is_ready(name, self._pids(name))):
            self._keep([name])
        return ready

    def _keep(self, known: Sequence[str]) -> None:
        """Have one look prepared: for a job with an agreed or expected look, else for one of the jobs `known`."""
        wanted = (*(self.others.agreed() if self.others is not None else ()), self._expected)
        agreed = [name for name in wanted if name in self.jobs]
        self.standby.keep({name: self._pids(name) for name in (*agreed, *known)}, agreed)

    def forget(self, name: str) -> None:
        """Forget a job that is gone."""
        self._waiting.pop(name, None)
        self._alone.discard(name)
        self._in_common.pop(name, None)

    def close(self) -> None:
        """Stop the running look, remove what it had half-written into the history, and release its resources."""
        if self._look is not None:
            self._look.kill()
            staging.tidy(self.history / "windows")
        self.standby.close()
        if self.others is not None:
            self.others.close()

    def hear_others(self, now_s: float) -> None:
        """Process proposals and verdicts of the jobs' other hosts, and begin agreed looks."""
        if self.others is None:
            return
        self._call(self.others)
        unready = [name for name in self.jobs if not self.standby.is_ready(name, self._pids(name))]
        for task in self.others.take({name: others.hosts_of(self.tier0.of_job(name)) for name in self.jobs}, unready):
            if isinstance(task, Seen):
                self._learn(task, now_s)
                continue
            if isinstance(task, ClockSet):  # a look begun by the old clock is no longer shared
                self.voice.note(now_s, "note", task.words)
                self._in_common.clear()
                self._forget_begins(now_s)
                continue
            job = self.jobs.get(task.job)
            if isinstance(task, Remark):
                self.voice.note(now_s, "note", task.words, task.job)
            elif job is None:
                continue
            elif isinstance(task, Alone):
                self._look_alone(task, now_s)
            else:
                self._held.append(task)
        self._begin_held(now_s)

    def _look_alone(self, task: Alone, now_s: float) -> None:
        """Report why this host looks without the others, and queue the look."""
        self.voice.note(now_s, "note", f"this host looks alone: {task.why}", task.job)
        self._alone.add(task.job)
        self._waiting[task.job] = _Waiting(task.alarm, now_s)

    def _forget_begins(self, now_s: float) -> None:
        """Drop delayed looks of all hosts after this host's clock was set, as they would begin at another time here.

        If this host had an alarm of its own, it looks alone. A host that judges can do so later, from the windows of
        the others.
        """
        begins = [task for task in self._held if isinstance(task, Begin)]
        self._held = [task for task in self._held if isinstance(task, Turn)]
        for task in begins:
            if task.alarm is not None and task.job in self.jobs:
                self._look_alone(Alone(task.alarm, "the clock of this host was set"), now_s)

    def _begin_held(self, now_s: float) -> bool:
        """Begin an agreed look as soon as no other one runs; return True if one runs or must begin first."""
        while self._held and self._look is None and self.others is not None:
            task = self._held[0]
            job = self.jobs.get(task.job)
            if job is None:
                done = True
            elif isinstance(task, Turn):
                done = self._judge_instead(self.others, job, task, now_s)
            else:
                done = self._join(self.others, job, task, now_s)
            if not done:
                return True
            self._held.pop(0)
        return self._look is not None

    def _is_served(self, alarm: Alarm) -> bool:
        """Tell whether a look of all hosts at the same kind of trouble covers this alarm, its verdict not yet known."""
        trigger = self._in_common.get(alarm.job)
        if trigger is None or alarm.again or unix(alarm.at_s) >= trigger.start + trigger.seconds:
            return False
        same = trigger.kind is alarm.kind is AlarmKind.SLOWER
        return same or (trigger.kind in STANDSTILLS and alarm.kind in STANDSTILLS)

    def _call(self, hosts: Others) -> None:
        """Give the connection each job's common name, which contains the owner: local names may differ, owners do not."""
        hosts.call(
            {
                name: of_user(name, max((one.found.owner for one in self.tier0.of_job(name)), default=-1))
                for name in self.jobs
            }
        )

    def _judge_instead(self, hosts: Others, job: WatchedJob, task: Turn, now_s: float) -> bool:
        """Judge in place of the host that should have, or without a window of this host's own.

        Returns False if not possible now, to be tried again; True also if it is too late to judge.
        """
        trigger, share = task.trigger, hosts.share(task, job.earlier)
        if unix(now_s) > hosts.pace.given_up_at(trigger, share.hosts):
            return True
        if not self._begin(job, trigger.alarm(now_s), trigger.seconds, now_s, share, only_judge=True):
            return False
        what = "this host judges what the others saw"
        words = what if trigger.host == hosts.host else f"{trigger.host} has not judged: {what}"
        self.voice.note(now_s, "note", words, task.job)
        return True

    def _join(self, hosts: Others, job: WatchedJob, task: Begin, now_s: float) -> bool:
        """Take part in a look of all hosts, or report why not; return False, to be tried again, if no child can start."""
        trigger = task.trigger
        routine = trigger.kind is AlarmKind.ROUTINE
        forced = routine or trigger.kind is AlarmKind.ASKED
        still = trigger.kind in STANDSTILLS
        why_not = "" if forced or task.alarm else job.allowance.allows(now_s, urgent=True, standstill=still)
        late = unix(now_s) - trigger.start > _may_be_late_s(trigger, hosts.pace)
        if late:
            why_not = "another look was not over"
        if routine:
            job.routine_s = now_s + random.uniform(*_ROUTINE_S)
        alarm, share = task.alarm or trigger.alarm(now_s), hosts.share(task, job.earlier)
        if not why_not and not self._begin(job, alarm, trigger.seconds, now_s, share):
            return False
        if why_not or not (routine or task.ours):
            then = f"no window: {why_not}" if why_not else "looks with all hosts"
            self.voice.note(now_s, "note", f"{trigger.words}, says {trigger.host}: {then}", task.job)
        if why_not and not late:
            return True
        self._in_common[task.job] = trigger
        if late and task.ours:
            self._held.insert(1, Turn(trigger))
        elif late:
            hosts.sent(Seen(alarm, None, "", None, share=share))
        return True

    def _begin(
        self,
        job: WatchedJob,
        alarm: Alarm,
        seconds: float,
        now_s: float,
        share: Share | None = None,
        only_judge: bool = False,
    ) -> bool:
        """Begin a look at a job; return False if no child can be started now.

        `seconds`: of its window; `share`: settings of a look of all hosts; `only_judge`: judge finished windows only.
        """
        wanted = Wanted(alarm, seconds, self.history, share, only_judge)
        try:
            self._look = self.standby.begin(wanted, self._pids(alarm.job))
        except OSError as error:
            self.voice.complain_once("look", f"no look is possible now, and tried again: {error.strerror}", now_s)
            return False
        self._turns.took(job.user)
        if only_judge:
            return True
        job.windows += 1
        if alarm.kind is not AlarmKind.ROUTINE:
            job.allowance.looked(now_s, standstill=alarm.kind in STANDSTILLS)
        return True

    def _learn(self, seen: Seen, now_s: float) -> None:
        """Handle a look's result: await another host's verdict, or report it and update ledger, allowance and job."""
        job = self.jobs.get(seen.alarm.job)
        if seen.waits and self.others is not None:
            if seen.trouble:  # the others judge without it, and may find that this host is the cause
                words = f"no window of this host for the others: {seen.trouble}"
                self.voice.note(now_s, "note", words, seen.alarm.job)
            self.others.sent(replace(seen, trouble=""))
            return
        found = self.learnt(seen)
        if seen.alarm.kind is AlarmKind.PAUSE:
            self.voice.note(now_s, "note", found, seen.alarm.job)
            return
        event = events.of_look(seen, unix(now_s))
        if job is None or self._is_news(job, seen):
            self.voice.say(event)
        waiting = self._waiting.get(seen.alarm.job)
        if waiting is not None and seen.verdict is not None and self._is_served(waiting.alarm):
            del self._waiting[seen.alarm.job]
        if seen.share is not None and seen.share.trigger == self._in_common.get(seen.alarm.job):
            del self._in_common[seen.alarm.job]
        if job is None:
            return
        if seen.share is not None and seen.verdict is not None and seen.verdict["status"] == "healthy":
            job.earlier = seen.share.trigger.start
        if seen.alarm.kind not in (AlarmKind.ROUTINE, AlarmKind.ASKED):
            job.allowance.learnt(now_s, seen.accuses)
        if seen.verdict is not None:
            _name(job, seen, seen.verdict)
        if seen.verdict is not None and seen.verdict["status"] == "hang":
            self.evidence.freeze(job, event)

    def _is_news(self, job: WatchedJob, seen: Seen) -> bool:
        """Store what a job wastes; return False if a routine window shows the same waste again, which is not reported."""
        before, job.wasted = job.wasted, job.wasted if seen.verdict is None else events.waste_words(seen.verdict)
        routine = seen.alarm.kind is AlarmKind.ROUTINE
        return not (routine and seen.wastes and job.wasted == before)

    def _pids(self, job: str) -> frozenset[int]:
        """Return the pids of a job's ranks on this host."""
        return frozenset(one.found.pid for one in self.tier0.of_job(job))


def _name(job: WatchedJob, seen: Seen, verdict: dict[str, Any]) -> None:
    """Set the job's named cause by a verdict; clear it if nothing is wrong and no trouble lasts.

    Suspects of another host's verdict are left to its metrics: once in the whole cluster.
    """
    suspects = () if seen.judged_by else of_verdict(verdict)
    if seen.accuses:
        still = verdict["status"] in STILL_STATUSES
        lost_s = 0.0 if still else float(verdict["suspects"][0]["lost_seconds_per_step"] or 0.0)
        job.accused(events.verdict_words(verdict), suspects, lost_s)
    elif verdict["status"] in ("healthy", "inefficient") and not job.troubles:
        job.cleared()
        job.suspects = suspects


def _may_be_late_s(trigger: Trigger, pace: Pace) -> float:
    """Return how late a look of all hosts may begin here and still be useful, in seconds.

    So long the judging host waits for it, and it covers half of the others' steps; a standstill
    looks the same later.
    """
    most_s = 2 * pace.slot_s
    return most_s if trigger.kind in STANDSTILLS else min(most_s, trigger.seconds / 2)
