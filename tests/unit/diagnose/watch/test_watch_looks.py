"""Several jobs on one host, and looks of all hosts at each: what stands by, who looks when, and who judges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.diagnose.watch.alarms import Alarm, AlarmKind, JobWatch
from rankscope.diagnose.watch.events import Event
from rankscope.diagnose.watch.hosts.others import Others
from rankscope.diagnose.watch.hosts.trigger import Pace
from rankscope.diagnose.watch.jobs import WatchedJob
from rankscope.diagnose.watch.limits import Allowance
from rankscope.diagnose.watch.looks import prepared
from rankscope.diagnose.watch.looks.looking import Looking
from rankscope.diagnose.watch.looks.prepared import Standby
from rankscope.diagnose.watch.voice import Voice

PIDS = {"large": (1, 2, 3, 4), "small": (5,)}


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
class Host:
    """A service's looks at jobs that have ranks on other hosts as well; what it said."""

    looking: Looking
    events: list[Event]
    jobs: dict[str, WatchedJob] = field(default_factory=dict)

    def alarm(self, name: str, now_s: float, kind: AlarmKind = AlarmKind.STOPPED) -> None:
        self.looking.alarm(self.jobs[name], Alarm(kind, name, now_s, kind.value), now_s)


def ranks_of(name: str) -> list[SimpleNamespace]:
    identity = SimpleNamespace(job=name, world_size=2 * len(PIDS[name]), local_world_size=len(PIDS[name]))
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
