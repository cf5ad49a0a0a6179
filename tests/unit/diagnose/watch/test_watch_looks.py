"""Several jobs on one host, and looks of all hosts at each: what stands by, who looks when, and who judges."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.diagnose.service.alarms import Alarm, AlarmKind, JobWatch
from rankscope.diagnose.service.events import Event
from rankscope.diagnose.service.hosts.others import Others
from rankscope.diagnose.service.hosts.share import Share
from rankscope.diagnose.service.hosts.together import Begin, ClockSet, Turn
from rankscope.diagnose.service.hosts.trigger import Pace, Trigger
from rankscope.diagnose.service.jobs import WatchedJob
from rankscope.diagnose.service.limits import Allowance
from rankscope.diagnose.service.looks import prepared
from rankscope.diagnose.service.looks.look import Seen, Wanted
from rankscope.diagnose.service.looks.looking import Looking
from rankscope.diagnose.service.looks.prepared import Standby
from rankscope.diagnose.service.voice import Voice
from rankscope.diagnose.severity import OK

PIDS = {"large": (1, 2, 3, 4), "small": (5,), "local": (6,)}
LOCAL = ("local",)  # all of its ranks are here


@dataclass
class Standing:
    """A look that stands by; `ready`: it has loaded."""

    job: str
    pids: frozenset[int]
    is_ready: bool = True
    has_ended: bool = False
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass
class Looks:
    """Looks that are over when the test says so; what they were at, and what is sent on for another host's verdict."""

    begun: list[Wanted] = field(default_factory=list)
    over: bool = False
    refused: bool = False
    trouble: str = ""  # of those whose verdict is another host's

    def begin(self, wanted: Wanted, _: frozenset[int]) -> SimpleNamespace:
        if self.refused:
            raise OSError(errno.EAGAIN, "no process is left")
        self.begun.append(wanted)
        self.over = False
        waits = wanted.share is not None and not wanted.share.judges
        seen = Seen(wanted.alarm, None, self.trouble if waits else "nothing", None, share=wanted.share)
        return SimpleNamespace(done=lambda: seen if self.over else None, alarm=wanted.alarm, kill=lambda: None)

    def is_ready(self, *_: Any) -> bool:
        return True

    def keep(self, *_: Any) -> None:
        pass

    def close(self) -> None:
        pass

    @property
    def told(self) -> list[tuple[str, bool]]:
        """Each job that was looked at, and whether only to judge."""
        return [(each.alarm.job, each.only_judge) for each in self.begun]


@dataclass
class Host:
    """A service's looks at jobs that have ranks on other hosts as well; what it said."""

    looking: Looking
    events: list[Event]
    jobs: dict[str, WatchedJob] = field(default_factory=dict)
    looks: Looks | None = None
    begins: float = field(default_factory=time.monotonic)

    @property
    def others(self) -> Others:
        assert self.looking.others is not None
        return self.looking.others

    def trigger(self, name: str, after_s: float, kind: AlarmKind = AlarmKind.STOPPED, by: str = "there") -> Trigger:
        """Of a look so long after the test began."""
        return Trigger(name, time.time() - time.monotonic() + self.begins + after_s, 5.0, kind, kind.value, by)

    def hears(self, after_s: float, *tasks: Begin | Turn | Seen | ClockSet) -> None:
        """These are what is to be done, so long after the test began."""

        def take(*_: Any) -> Iterator[Begin | Turn | Seen | ClockSet]:
            yield from tasks

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Others, "take", take)
            self.looking.hear_others(self.begins + after_s)

    def alarm(self, name: str, now_s: float, kind: AlarmKind = AlarmKind.STOPPED, began_s: float | None = None) -> None:
        alarm = Alarm(kind, name, now_s if began_s is None else began_s, kind.value)
        self.looking.alarm(self.jobs[name], alarm, now_s)


def ranks_of(name: str) -> list[SimpleNamespace]:
    hosts = 1 if name in LOCAL else 2
    identity = SimpleNamespace(job=name, world_size=hosts * len(PIDS[name]), local_world_size=len(PIDS[name]))
    return [SimpleNamespace(found=SimpleNamespace(pid=pid, identity=identity, owner=1000)) for pid in PIDS[name]]


@pytest.fixture
def prepares(monkeypatch: pytest.MonkeyPatch) -> list[Standing]:
    """What was prepared, in its order."""
    made: list[Standing] = []

    def prepare(job: str, pids: frozenset[int]) -> Standing:
        made.append(Standing(job, pids))
        return made[-1]

    monkeypatch.setattr(prepared, "_prepare", prepare)
    return made


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    tmp_path.chmod(0o700)
    jobs = {name: WatchedJob(JobWatch(name), name, Allowance(), "user 1000") for name in PIDS}
    tier0 = SimpleNamespace(of_job=ranks_of, is_learning=lambda _: False)
    events: list[Event] = []
    others = Others((tmp_path / "store").as_uri(), tmp_path / "spool", Pace(), "here")
    looking = Looking(
        cast(Any, tier0), Voice(events.append, lambda _: None), cast(Any, None), jobs, tmp_path, 2.0, False, others
    )
    with ExitStack() as closing:
        closing.callback(looking.close)
        yield Host(looking, events, jobs)


@pytest.fixture
def looks(host: Host) -> Looks:
    """In place of what stands by."""
    host.looks = Looks()
    host.looking.standby = cast(Any, host.looks)
    return host.looks


def standing(host: Host) -> str:
    kept = host.looking.standby._prepared
    return kept.job if kept is not None else ""


def test_what_stands_by_for_a_look_that_is_agreed_on_is_kept_until_its_slot(
    host: Host, prepares: list[Standing]
) -> None:
    """However many ranks another job has here: what is prepared then would not be ready, or has to be turned back."""
    host.looking.prepare(0.0)
    assert standing(host) == "large"
    host.alarm("small", 1.0)
    host.looking.go_on(1.0)  # it is proposed, a slot later
    assert standing(host) == "small"
    host.looking.prepare(6.0)
    assert (standing(host), len(prepares)) == ("small", 2)


def test_an_alarm_of_another_job_takes_nothing_from_the_look_that_comes_first(
    host: Host, prepares: list[Standing]
) -> None:
    host.looking.prepare(0.0)
    host.alarm("large", 1.0)
    host.looking.go_on(1.0)
    host.alarm("small", 1.5)
    host.looking.go_on(1.5)
    assert host.looking.others is not None and host.looking.others.agreed() == ["large", "small"]
    host.looking.prepare(6.0)
    assert (standing(host), len(prepares)) == ("large", 1)


def test_with_no_look_agreed_on_the_job_with_most_ranks_has_what_stands_by(prepares: list[Standing]) -> None:
    one, pids = Standby(), {name: frozenset(each) for name, each in PIDS.items()}
    one.keep({"small": pids["small"]})
    one.keep(pids)
    assert [each.job for each in prepares] == ["small", "large"] and prepares[0].closed
    one.keep(pids, ["gone", "small"])
    assert [each.job for each in prepares] == ["small", "large", "small"]


def busy(host: Host, looks: Looks) -> None:
    """With a look at a job of its own."""
    host.alarm("local", host.begins)
    host.looking.go_on(host.begins)
    assert looks.told == [("local", False)]


def test_a_turn_to_judge_that_comes_while_another_look_is_under_way_is_taken_after_it(host: Host, looks: Looks) -> None:
    """Else nobody judges: the others see that it is taken."""
    busy(host, looks)
    host.hears(1.0, Turn(host.trigger("large", -30.0)))
    assert len(looks.begun) == 1
    looks.over = True
    host.looking.go_on(host.begins + 3.0)
    assert looks.told[1:] == [("large", True)]
    assert looks.begun[1].share is not None and looks.begun[1].share.judges


@pytest.mark.parametrize(
    ("kind", "by", "free_s", "then"),
    [
        (AlarmKind.SLOWER, "there", 4.0, [("large", False)]),  # two seconds late, of five
        (AlarmKind.SLOWER, "there", 5.0, []),
        (AlarmKind.STOPPED, "there", 11.0, [("large", False)]),
        (AlarmKind.STOPPED, "there", 13.0, []),
        (AlarmKind.SLOWER, "here", 5.0, [("large", True)]),  # whose trigger it is judges
    ],
)
def test_a_look_of_all_hosts_waits_for_another_one_while_its_window_is_worth_something(
    host: Host, looks: Looks, kind: AlarmKind, by: str, free_s: float, then: list[tuple[str, bool]]
) -> None:
    busy(host, looks)
    trigger = host.trigger("large", 2.0, kind, by)
    host.hears(0.5, Begin(trigger, None, by == "here"))
    looks.over = True
    host.looking.go_on(host.begins + free_s)
    assert looks.told[1:] == then
    # AND the verdict of those who have looked is waited for
    awaited = host.others._seen.keys()
    assert awaited == (set() if then else {("large", trigger.start)})


def test_who_has_agreed_on_a_look_begins_no_other_before_it(host: Host, looks: Looks) -> None:
    """A thousand hosts look then, and wait for its verdict."""
    host.alarm("large", host.begins)
    host.looking.go_on(host.begins)
    assert host.others.agreed() == ["large"]
    host.alarm("local", host.begins + 1.0)
    host.looking.go_on(host.begins + 1.0)
    assert looks.told == []
    host.others._together._jobs["large"].proposed = None  # it is there
    host.hears(4.0, Begin(host.trigger("large", 6.0, by="here"), None, True))
    looks.over = True
    host.looking.go_on(host.begins + 20.0)
    assert looks.told == [("large", False), ("local", False)]


def test_looks_of_all_hosts_that_wait_here_are_no_more_in_common_when_the_clock_is_set(
    host: Host, looks: Looks
) -> None:
    """Else they begin by the clock as it was, and what all hosts look at next is taken for served until then."""
    busy(host, looks)
    ahead_s = 3600.0
    large, small = (host.trigger(name, ahead_s + 2.0, by="here") for name in ("large", "small"))
    own = Alarm(AlarmKind.STOPPED, "large", host.begins, "stopped")
    host.hears(0.5, Begin(large, own, True), Begin(small, None, False), Turn(host.trigger("small", -30.0)))
    host.hears(1.0, ClockSet(-ahead_s))
    for after_s in (3.0, 4.0, 5.0):
        looks.over = True
        host.looking.go_on(host.begins + after_s)
    # THEN who had an alarm of its own looks by itself, and a verdict that is this host's to give is given
    assert looks.told[1:] == [("small", True), ("large", False)]
    assert looks.begun[-1].alarm is own and looks.begun[-1].share is None
    assert not host.looking._in_common


def verdict_of(share: Share, alarm: Alarm) -> Seen:
    verdict: dict[str, Any] = {"status": "unknown", "suspects": [], "notes": []}
    return Seen(alarm, verdict, "", None, share=share, judged_by="there")


def test_waste_is_written_once_for_each_job_and_on_change_and_pages_nobody(host: Host) -> None:
    def learn(cause: str, kind: AlarmKind = AlarmKind.ROUTINE, status: str = "inefficient") -> int:
        one = {
            "component": "python",
            "cause": cause,
            "instance": "",
            "ranks": [0, 1],
            "lost_seconds_per_step": 0.02,
            "function": None,
        }
        verdict = {"status": status, "suspects": [one] if status == "inefficient" else [], "notes": []}
        before = len(host.events)
        host.looking._learn(Seen(Alarm(kind, "local", 0.0, "routine"), verdict, "", 1.0), 1.0)
        return len(host.events) - before

    assert [learn("gc"), learn("gc"), learn("dataloader"), learn("gc", AlarmKind.SLOWER)] == [1, 0, 1, 1]
    assert [learn("", status="healthy"), learn("gc")] == [1, 1]
    told = [event for event in host.events if event.kind == "verdict"]
    assert {event.state for event in told} == {OK} and told[0].words.startswith("INEFFICIENT python/gc")
    assert host.jobs["local"].wasted and not host.jobs["local"].named


@pytest.mark.parametrize(
    ("kind", "began_s", "again"),
    [(AlarmKind.SILENT, 5.0, False), (AlarmKind.SILENT, 8.0, True), (AlarmKind.SLOWER, 5.0, True)],
)
def test_an_alarm_of_what_all_hosts_look_at_already_asks_for_no_second_look(
    host: Host, looks: Looks, kind: AlarmKind, began_s: float, again: bool
) -> None:
    """Of a thousand hosts some notice seconds after the first: at what began in the window all have looked."""
    host.hears(0.5, Begin(host.trigger("large", 2.0), None, False))
    host.alarm("large", host.begins + 9.0, kind, host.begins + began_s)
    looks.over = True
    host.looking.go_on(host.begins + 9.5)
    assert host.others.agreed() == (["large"] if again else [])
    if not again:
        share = looks.begun[0].share
        assert share is not None
        host.hears(20.0, verdict_of(share, looks.begun[0].alarm))
        host.looking.go_on(host.begins + 20.0)
        host.looking.go_on(host.begins + 21.0)
        assert host.others.agreed() == [], "it is told"


def test_steps_that_became_longer_minutes_before_it_was_sure_are_looked_at(host: Host, looks: Looks) -> None:
    """A shift of five per cent of long steps is known after twenty of them."""
    now_s = time.monotonic()
    host.alarm("local", now_s, AlarmKind.SLOWER, now_s - 400.0)
    host.looking.go_on(now_s)
    assert looks.told == [("local", False)]


def test_a_look_for_which_there_is_no_process_begins_later(host: Host, looks: Looks) -> None:
    """Of this host, of all hosts, and one that others have left to it."""
    looks.refused = True
    host.alarm("local", host.begins)
    host.looking.go_on(host.begins)
    host.hears(0.5, Begin(host.trigger("large", 2.0), None, False), Turn(host.trigger("small", -30.0)))
    assert looks.told == []
    looks.refused, looks.over = False, True
    for second in range(1, 10):
        host.looking.go_on(host.begins + second)
        looks.over = True
    assert looks.told == [("large", False), ("small", True), ("local", False)]


def test_who_could_not_send_its_window_hears_the_verdict_all_the_same(host: Host, looks: Looks) -> None:
    """It may be this host that the others find."""
    looks.trouble = "the store is away"
    trigger = host.trigger("large", 2.0)
    host.hears(0.5, Begin(trigger, None, False))
    looks.over = True
    host.looking.go_on(host.begins + 9.0)
    assert host.others._seen.keys() == {("large", trigger.start)}
    assert any("the store is away" in event.words for event in host.events)
