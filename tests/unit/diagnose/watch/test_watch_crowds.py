"""A crowd of jobs of one user: it takes no look, no line and no series from the jobs of others."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.diagnose.service import voice
from rankscope.diagnose.service.alarms import Alarm, AlarmKind, JobWatch
from rankscope.diagnose.service.events import Event
from rankscope.diagnose.service.jobs import WatchedJob
from rankscope.diagnose.service.limits import Allowance
from rankscope.diagnose.service.looks.look import Seen, Wanted
from rankscope.diagnose.service.looks.looking import Looking
from rankscope.diagnose.service.tell.metrics import JOBS_MOST, JobState, RankState, ServiceState, as_prometheus
from rankscope.diagnose.service.voice import Voice

CROWD, OURS = "user 2000", "user 1000"


class Looks:
    """Stands by, and sees nothing each time; who was looked at."""

    def __init__(self) -> None:
        self.at: list[str] = []

    def begin(self, wanted: Wanted, _: frozenset[int]) -> SimpleNamespace:
        self.at.append(wanted.alarm.job)
        return SimpleNamespace(done=lambda: Seen(wanted.alarm, None, "nothing", None))


def test_alarms_of_a_crowd_keep_nobody_elses_from_being_looked_at(tmp_path: Path) -> None:
    # GIVEN a hundred jobs with alarms, and after them one of somebody else's
    jobs = {f"crowd {at}": WatchedJob(JobWatch(f"crowd {at}"), "", Allowance(), CROWD) for at in range(100)}
    jobs["ours"] = WatchedJob(JobWatch("ours"), "", Allowance(), OURS)
    tier0 = SimpleNamespace(of_job=lambda name: [SimpleNamespace(found=SimpleNamespace(pid=1))])
    looks, events = Looks(), list[Event]()
    voice = Voice(events.append, lambda _: None, lambda job: jobs[job].user)
    looking = Looking(
        cast(Any, tier0), voice, cast(Any, None), jobs, tmp_path, 2.0, False, None, cast(Any, looks)
    )  # fmt: skip
    # WHEN each look takes ten seconds
    looking.go_on(0.0)
    for name, job in jobs.items():
        looking.alarm(job, Alarm(AlarmKind.STOPPED, name, 0.0, "stopped"), 0.0)
    for at in range(5):
        looking.go_on(10.0 * at)
    # THEN ours is the second
    assert looks.at[1] == "ours" and len(looks.at) == 5


def test_jobs_that_come_and_go_drive_no_line_of_others_out_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice, "SAID_AN_HOUR", 10)
    told: list[Event] = []
    one = Voice(told.append, lambda _: None, {"theirs": CROWD, "ours": OURS}.get)  # type: ignore[arg-type]
    for at in range(100):
        one.note(float(at), "job", "rank 0 of 2", "theirs")
    one.note(100.0, "job", "rank 0 of 2", "ours")
    one.say(Event("verdict", 0.0, "FAULT", "theirs"))
    one.say(Event("hardware", 0.0, "a link is down", drain=("", "rankscope: nic/down")))
    assert [event.kind for event in told] == ["job"] * 10 + ["note", "job", "verdict", "hardware"]
    assert f"more of the jobs of {CROWD} is not reported" in told[10].words


def state(job: str, user: str, *ranks: int) -> JobState:
    return JobState(
        job, [RankState(number, True, False, 0.5, math.nan) for number in ranks], 0.1, 0.1, 7, False, False, False,
        {"slower": 2}, 1, 0.0, user,
    )  # fmt: skip


def series(*jobs: JobState) -> list[str]:
    text = as_prometheus(jobs, ServiceState(1.5, 1 << 20, 0.1, 0))
    return [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]


def test_jobs_of_a_crowd_keep_nobodys_metrics_out() -> None:
    crowd = [state(f"crowd {at}", CROWD, 0) for at in range(3 * JOBS_MOST)]
    shown = series(*crowd, state("ours", OURS, 0))
    assert 'rankscope_job_hung{training_job="ours"}' in shown
    assert sum(line.startswith("rankscope_job_hung{") for line in shown) == JOBS_MOST


def test_no_two_series_have_the_same_labels() -> None:
    long = "torch-" + "x" * 170
    counted = Counter(series(state(f"{long}1", OURS, 0), state(f"{long}2", CROWD, 0), state("job", OURS, 3, 3)))
    assert max(counted.values()) == 1
    assert sum(line.startswith("rankscope_job_hung{") for line in counted) == 3
