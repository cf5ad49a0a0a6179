"""One host's part in the looks that all hosts of a job take together: when to look, who judges.

Pure: times and answers in, tasks out; it has no clock and no store.

  propose ─► put trigger ─┐                                   ┌─ ours ────► Begin, and judge what all have sent
                          ├─► before each slot: ask trigger ──┤
  (other hosts)  ─────────┘                                   └─ another's ► Begin, send ─► Sent ─► ask verdict ─► Judged
                                                                  nobody judged in time ─► put turn ─► ours: Turn
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.service.hosts.courier import Answer, Courier
from rankscope.diagnose.service.hosts.trigger import Pace, Trigger, trigger_of


@dataclass(frozen=True, slots=True)
class Begin:
    """Task: begin a look of all hosts at `trigger.start`.

    `alarm`: this host's own, None if another host raised it; `ours`: this host judges.
    """

    trigger: Trigger
    alarm: Alarm | None
    ours: bool

    @property
    def job(self) -> str:
        """This host's own name of the job."""
        return self.trigger.job


@dataclass(frozen=True, slots=True)
class Alone:
    """Task: look now, alone, as the others could not be reached."""

    alarm: Alarm
    why: str

    @property
    def job(self) -> str:
        """This host's own name of the job."""
        return self.alarm.job


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict of the judging host, unchecked."""

    trigger: Trigger
    content: Mapping[str, Any]

    @property
    def job(self) -> str:
        """This host's own name of the job."""
        return self.trigger.job


@dataclass(frozen=True, slots=True)
class Turn:
    """Task: judge the look of all hosts that `trigger` began, as no other host has."""

    trigger: Trigger

    @property
    def job(self) -> str:
        """This host's own name of the job."""
        return self.trigger.job


@dataclass(frozen=True, slots=True)
class ClockSet:
    """This host's clock was set, by `by_s` seconds: times recorded by it are no longer valid."""

    by_s: float

    @property
    def words(self) -> str:
        """The step of the clock in words, for a message."""
        return f"the clock of this host was set by {self.by_s:+.1f} s: what was agreed on with other hosts by then is forgotten"


@dataclass(frozen=True, slots=True)
class Remark:
    """A message about a job, to be reported once."""

    job: str
    words: str


Task = Begin | Alone | Judged | Turn | Remark


@dataclass(slots=True)
class _Awaited:
    """A verdict expected from another host. `asked`: when it was last requested; `claimed`: the turn was requested."""

    trigger: Trigger
    until: float  # after that another host may take the turn
    asked: float
    claimed: bool = False
    set_by: float = 0.0  # step of this host's clock since; all other times are by the clock before


@dataclass(slots=True)
class _Job:
    """State of one job's looks: this host's pending proposal, the last trigger accepted, and the awaited verdicts."""

    proposed: tuple[Alarm, Trigger] | None = None
    asked: float | None = None  # the slot whose trigger was last requested
    taken: Trigger | None = None
    awaited: dict[float, _Awaited] = field(
        default_factory=dict
    )  # by begin of the look: one may be judged while the next one runs


@dataclass(slots=True)
class Together:
    """Coordinates the looks of all hosts of the jobs; pure, times are Unix seconds.

    `host`: this one's name in the store; `in_common`: job -> its name on all hosts, if different.
    """

    host: str
    courier: Courier
    pace: Pace = field(default_factory=Pace)
    complain_every_s: float = 600.0
    in_common: Mapping[str, str] = field(default_factory=dict)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _complained: float = float("-inf")

    def propose(self, alarm: Alarm, seconds: float, now: float, ready: bool = True) -> None:
        """Propose a look of `seconds` to the other hosts; `take` returns what comes of it. `now`: Unix time.

        If not `ready`, as when the job has just begun, the others are hardly ready either: then it is a slot
        later.
        """
        start = self.pace.slot_after(now) + (0.0 if ready else self.pace.slot_s)
        trigger = Trigger(alarm.job, start, seconds, alarm.kind, alarm.words, self.host)
        self._of(alarm.job).proposed = alarm, trigger
        self._ask("trigger", alarm.job, start, {**trigger.as_json(), "job": self._called(alarm.job)})

    def is_proposed(self, job: str) -> bool:
        """Tell whether a look at the job that this host proposed is still pending."""
        return job in self._jobs and self._jobs[job].proposed is not None

    def agreed(self) -> list[str]:
        """List the jobs with a pending look that this host proposed, the soonest first."""
        starts = {name: job.proposed[1].start for name, job in self._jobs.items() if job.proposed is not None}
        return sorted(starts, key=lambda name: (starts[name], self._called(name)))

    def sent(self, trigger: Trigger, hosts: int, now: float, set_by: float = 0.0) -> None:
        """Record that this host's window is in the store, and await another host's verdict.

        `hosts`: number of hosts of the job; `set_by`: step of this host's clock since the look was agreed on,
        seconds. If sending took long, the verdict is requested at once.
        """
        as_it_was = now - set_by
        turn, answered = self.pace.turn_at(trigger, self.host, hosts), as_it_was + self.pace.slot_s / 2
        self._of(trigger.job).awaited[trigger.start] = _Awaited(trigger, max(turn, answered), as_it_was, set_by=set_by)
        if turn < answered:
            self._ask("verdict", trigger.job, trigger.start)

    def take(self, now: float, jobs: Mapping[str, int], unready: Collection[str] = ()) -> Sequence[Task]:
        """Return the tasks that are due. Looks are in an order equal on all hosts, as each looks at one job at a time.

        `now`: Unix time; `jobs`: those with ranks on other hosts, with their number of hosts; `unready`: those
        where a look would not begin at once: for these the slot after the next is requested too, as other
        unready hosts put their trigger there.
        """
        tasks: list[Task] = []
        for answer in self.courier.answers():
            tasks += self._answered(answer, now)
        slot = self.pace.slot_to_ask(now)
        for name in jobs:
            job = self._of(name)
            if slot is not None and slot != job.asked:
                job.asked = slot
                self._ask("trigger", name, slot)
                if name in unready:
                    self._ask("trigger", name, slot + self.pace.slot_s)
            tasks += self._late(job, now)
        for name, hosts in jobs.items():
            tasks += self._awaits(name, hosts, now)
        for name in self._jobs.keys() - jobs.keys():
            if not self._jobs[name].awaited:
                del self._jobs[name]
            else:
                tasks += self._awaits(name, 1, now)
        return sorted(tasks, key=self._order)

    def clock_set(self, by_s: float) -> Sequence[Alone]:
        """Handle a step of this host's clock: forget slots by the old clock; waits last as long as planned.

        Returns a task `Alone` for each look that this host proposed: it reaches the others at another time, or
        not at all.
        """
        tasks: list[Alone] = []
        self._complained = float("-inf")
        for job in self._jobs.values():
            if job.proposed is not None:
                tasks.append(Alone(job.proposed[0], "the clock of this host was set"))
            job.proposed = job.asked = job.taken = None
            for awaited in job.awaited.values():
                awaited.set_by += by_s
        return tasks

    def _order(self, task: Task) -> tuple[bool, bool, str]:
        """Return a sort key: Begin tasks after all others, routine ones last, by the job's common name."""
        if not isinstance(task, Begin):
            return False, False, ""
        return True, task.trigger.kind is AlarmKind.ROUTINE, self._called(task.job)

    def close(self) -> None:
        """Close the connection to the store."""
        self.courier.close()

    def _called(self, job: str) -> str:
        """Return the name of a job on all hosts."""
        return self.in_common.get(job, job)

    def _ask(self, what: str, job: str, start: float, content: Mapping[str, Any] | None = None) -> None:
        """Request the message `what` of the look at `start` from the store; with `content` put it. Does not wait."""
        self.courier.ask(what, job, start, content, self._called(job))

    def _of(self, job: str) -> _Job:
        """Return the state of a job, a new one if it is unknown."""
        return self._jobs.setdefault(job, _Job())

    def _answered(self, answer: Answer, now: float) -> list[Task]:
        """Handle an answer of the store: return the tasks that follow, and now and then a Remark that the store fails."""
        job = self._jobs.get(answer.job)
        if job is None:
            return []
        tasks: list[Task] = []
        if answer.trouble and now - self._complained >= self.complain_every_s:
            self._complained = now
            tasks.append(Remark(answer.job, f"the other hosts are not heard: {answer.trouble}"))
        if answer.what == "trigger" and not answer.put:
            tasks += self._triggered(job, answer, now)
        awaited = job.awaited.get(answer.start)
        if awaited is None or answer.content is None:
            return tasks
        if answer.what == "verdict":
            tasks.append(Judged(awaited.trigger, answer.content))
            del job.awaited[answer.start]
        elif answer.what == "turn" and answer.content.get("host") == self.host:
            tasks.append(Turn(awaited.trigger))
            del job.awaited[answer.start]
        return tasks

    def _triggered(self, job: _Job, answer: Answer, now: float) -> list[Task]:
        """Handle the answer about a slot's trigger: Begin if agreed, Alone if this host's proposal failed, or a Remark.

        Returns nothing if the answer is for another time, or the trouble is being looked at already.
        """
        if answer.start > now + self.pace.asked_s + self.pace.slot_s:
            return []  # too early: requested by a clock that was ahead and was set back since
        if answer.content is None and now < answer.start - self.pace.asked_s:
            return []  # requested early; it may still be put, and is requested again
        mine = job.proposed if job.proposed is not None and job.proposed[1].start == answer.start else None
        if mine is not None:
            job.proposed = None
        if answer.content is None:
            return [Alone(mine[0], answer.trouble or "the trigger did not come to the store in time")] if mine else []
        try:
            heard = trigger_of(answer.content, self._called(answer.job), answer.start)
            trigger = replace(heard, job=answer.job)
        except ValueError as error:
            return [Alone(mine[0], str(error))] if mine else [Remark(answer.job, f"not heard: {error}")]
        before = job.taken
        if before is not None and trigger.start < before.start + before.seconds + self.pace.slot_s:
            return []  # its cause is being looked at already
        if now > trigger.start + self.pace.slot_s / 2:
            late = f"heard too late of a look from {trigger.host}"
            return [Alone(mine[0], late)] if mine else [Remark(answer.job, late)]
        job.taken, alarm = trigger, mine[0] if mine else None
        if alarm is None and job.proposed is not None:  # put for a later slot: one look is enough
            alarm, job.proposed = job.proposed[0], None
        return [Begin(trigger, alarm, trigger.host == self.host)]

    def _late(self, job: _Job, now: float) -> list[Task]:
        """End a proposal that was not answered in time: this host then looks alone."""
        if job.proposed is None or now <= job.proposed[1].start + self.pace.slot_s / 2:
            return []
        alarm, job.proposed = job.proposed[0], None
        return [Alone(alarm, "the store did not answer in time")]

    def _awaits(self, name: str, hosts: int, now: float) -> list[Task]:
        """Request awaited verdicts again, claim the turn to judge when it is time, and at last give up with a Remark."""
        job, tasks = self._jobs[name], list[Task]()
        for start, awaited in list(job.awaited.items()):
            as_it_was = now - awaited.set_by
            if as_it_was > self.pace.given_up_at(awaited.trigger, hosts):
                del job.awaited[start]
                tasks.append(Remark(name, f"nobody judged the look that {awaited.trigger.host} asked for"))
                continue
            if as_it_was - awaited.asked >= self.pace.slot_s / 2:
                awaited.asked = as_it_was
                self._ask("verdict", name, start)
            if as_it_was >= awaited.until and not awaited.claimed:
                awaited.claimed = True
                self._ask("turn", name, start, {"host": self.host})
        return tasks
