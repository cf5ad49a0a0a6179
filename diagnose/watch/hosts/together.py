"""Who looks when, and who judges: one host's part in what all hosts of a job do together. No clock of its own, no store: times and answers
in, what is to be done out.

  propose ─► put trigger ─┐                                   ┌─ ours ────► Begin, and judge what all have sent
                          ├─► before each slot: ask trigger ──┤
  (other hosts)  ─────────┘                                   └─ another's ► Begin, send ─► Sent ─► ask verdict ─► Judged
                                                                  nobody judged in time ─► put turn ─► ours: Turn
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rankscope.diagnose.watch.alarms import Alarm, AlarmKind
from rankscope.diagnose.watch.hosts.courier import Answer, Courier
from rankscope.diagnose.watch.hosts.trigger import Pace, Trigger, trigger_of


@dataclass(frozen=True, slots=True)
class Begin:
    """Look from `trigger.start` on. `alarm`: this host's own, None where it only heard; `ours`: this host judges."""

    trigger: Trigger
    alarm: Alarm | None
    ours: bool

    @property
    def job(self) -> str:
        return self.trigger.job


@dataclass(frozen=True, slots=True)
class Alone:
    """The others could not be told: look now."""

    alarm: Alarm
    why: str

    @property
    def job(self) -> str:
        return self.alarm.job


@dataclass(frozen=True, slots=True)
class Judged:
    """What the host that judges found; its words, not checked."""

    trigger: Trigger
    content: Mapping[str, Any]

    @property
    def job(self) -> str:
        return self.trigger.job


@dataclass(frozen=True, slots=True)
class Turn:
    """Nobody has judged: this host does."""

    trigger: Trigger

    @property
    def job(self) -> str:
        return self.trigger.job


@dataclass(frozen=True, slots=True)
class ClockSet:
    """Somebody set this host's clock: what is kept by it holds no more."""

    by_s: float

    @property
    def words(self) -> str:
        return f"the clock of this host was set by {self.by_s:+.1f} s: what was agreed on with other hosts by then is forgotten"


@dataclass(frozen=True, slots=True)
class Remark:
    """Something to say once."""

    job: str
    words: str


Task = Begin | Alone | Judged | Turn | Remark


@dataclass(slots=True)
class _Awaited:
    """A verdict that another host is to give."""

    trigger: Trigger
    until: float  # then it is somebody's turn
    asked: float
    claimed: bool = False
    set_by: float = 0.0  # this host's clock since; all else here is by the clock as it was


@dataclass(slots=True)
class _Job:
    proposed: tuple[Alarm, Trigger] | None = None
    asked: float | None = None  # the slot whose trigger was asked for last
    taken: Trigger | None = None
    awaited: dict[float, _Awaited] = field(
        default_factory=dict
    )  # by when the look began: one may be judged while the next one goes on


@dataclass(slots=True)
class Together:
    """`host`: this one's name in the store. `in_common`: by job what all hosts call it there; one that is not in it is called the same."""

    host: str
    courier: Courier
    pace: Pace = field(default_factory=Pace)
    complain_every_s: float = 600.0
    in_common: Mapping[str, str] = field(default_factory=dict)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _complained: float = float("-inf")

    def propose(self, alarm: Alarm, seconds: float, now: float, ready: bool = True) -> None:
        """Tell the other hosts that this one wants a look; `now`: Unix time. Where it is not `ready`, as when the job has just begun, the
        others are hardly: a slot later. What comes of it `take` says."""
        start = self.pace.slot_after(now) + (0.0 if ready else self.pace.slot_s)
        trigger = Trigger(alarm.job, start, seconds, alarm.kind, alarm.words, self.host)
        self._of(alarm.job).proposed = alarm, trigger
        self._ask("trigger", alarm.job, start, {**trigger.as_json(), "job": self._called(alarm.job)})

    def is_proposed(self, job: str) -> bool:
        """Whether a look at it is being agreed on."""
        return job in self._jobs and self._jobs[job].proposed is not None

    def agreed(self) -> list[str]:
        """The jobs of which a look is being agreed on, the soonest first."""
        starts = {name: job.proposed[1].start for name, job in self._jobs.items() if job.proposed is not None}
        return sorted(starts, key=lambda name: (starts[name], self._called(name)))

    def sent(self, trigger: Trigger, hosts: int, now: float, set_by: float = 0.0) -> None:
        """This host's window lies in the store: now somebody else judges. Who took long asks for the verdict before the turn. `set_by`:
        this host's clock since the look was agreed on."""
        as_it_was = now - set_by
        turn, answered = self.pace.turn_at(trigger, self.host, hosts), as_it_was + self.pace.slot_s / 2
        self._of(trigger.job).awaited[trigger.start] = _Awaited(trigger, max(turn, answered), as_it_was, set_by=set_by)
        if turn < answered:
            self._ask("verdict", trigger.job, trigger.start)

    def take(self, now: float, jobs: Mapping[str, int], unready: Collection[str] = ()) -> Sequence[Task]:
        """What is to be done; what begins in an order that is the same on all hosts, as each looks at one job at a time. `jobs`: those with
        ranks on other hosts, and on how many hosts; `unready`: of these those at which a look would not begin at once: so they ask for the
        slot after the next one, too, for which others put a trigger if they are no more ready."""
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
        """Somebody set this host's clock: slots of the clock as it was are forgotten, waits last as long as they would have. What this host
        proposed the others hear at another time, or not at all: it looks alone."""
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
        if not isinstance(task, Begin):
            return False, False, ""
        return True, task.trigger.kind is AlarmKind.ROUTINE, self._called(task.job)

    def close(self) -> None:
        """Let go of the store."""
        self.courier.close()

    def _called(self, job: str) -> str:
        return self.in_common.get(job, job)

    def _ask(self, what: str, job: str, start: float, content: Mapping[str, Any] | None = None) -> None:
        self.courier.ask(what, job, start, content, self._called(job))

    def _of(self, job: str) -> _Job:
        return self._jobs.setdefault(job, _Job())

    def _answered(self, answer: Answer, now: float) -> list[Task]:
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
        if answer.start > now + self.pace.asked_s + self.pace.slot_s:
            return []  # nobody asks so early: it was asked by a clock that was ahead, and set back since
        if answer.content is None and now < answer.start - self.pace.asked_s:
            return []  # it was asked for early, may still be put, and is asked for again
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
            return []  # what it was put for is being looked at
        if now > trigger.start + self.pace.slot_s / 2:
            late = f"heard too late of a look from {trigger.host}"
            return [Alone(mine[0], late)] if mine else [Remark(answer.job, late)]
        job.taken, alarm = trigger, mine[0] if mine else None
        if alarm is None and job.proposed is not None:  # put for a later slot: one look is enough
            alarm, job.proposed = job.proposed[0], None
        return [Begin(trigger, alarm, trigger.host == self.host)]

    def _late(self, job: _Job, now: float) -> list[Task]:
        """A look that was proposed, and of which nothing was heard."""
        if job.proposed is None or now <= job.proposed[1].start + self.pace.slot_s / 2:
            return []
        alarm, job.proposed = job.proposed[0], None
        return [Alone(alarm, "the store did not answer in time")]

    def _awaits(self, name: str, hosts: int, now: float) -> list[Task]:
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
