"""When the service looks closer at a job: shifts, silence, stops, deaths, and what is none of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rankscope.diagnose.service import limits
from rankscope.diagnose.service.alarms import Alarm, AlarmKind, JobWatch, Relief
from rankscope.diagnose.service.limits import Allowance, NotNow, OverBudget, OwnCost
from rankscope.observer.watch.marker import StepMarker
from rankscope.observer.watch.ranks import Death, RankPulse, Steps

MARKER = StepMarker(0, 1, 10.0, waits=True)
SIGKILL, SIGTERM, EXIT_1 = 9, 15, 1 << 8


def rank_pulse(number: int) -> RankPulse:
    found = cast(Any, SimpleNamespace(pid=100 + number, identity=SimpleNamespace(rank=number, job="job")))
    return RankPulse(found, 0.0, 0.0, MARKER)


class Job:
    """Two ranks with steps of 0.1 s, in beats of a second."""

    def __init__(self) -> None:
        self.watch = JobWatch("job")
        self.ranks = [rank_pulse(0), rank_pulse(1)]
        self.now = 0.0
        self.noise = np.random.default_rng(0)

    def beat(
        self, step_s: float | None = 0.1, *, stopped: tuple[int, ...] = (), died: tuple[Death, ...] = (), written_hz: float = 0.0
    ) -> list[Alarm | Relief]:  # fmt: skip
        self.now += 1.0
        steps = {}
        if step_s is not None:
            count = round(1 / step_s)
            seconds = step_s * np.exp(0.02 * self.noise.standard_normal(count))
            end_s = self.now - 1.0 + np.cumsum(seconds)
            for one in self.ranks:
                one.last_s = float(end_s[-1])
                steps[one.found.pid] = Steps(end_s, seconds, np.zeros(count))
        return self.watch.take(self.now, self.ranks, steps, stopped, died, written_hz)

    def beats(self, count: int, step_s: float | None = 0.1, **more: Any) -> list[Alarm | Relief]:
        return [each for _ in range(count) for each in self.beat(step_s, **more)]


@pytest.fixture
def job() -> Job:
    running = Job()
    assert running.beats(60) == []
    return running


def kinds(told: list[Alarm | Relief]) -> list[tuple[str, AlarmKind]]:
    return [(type(each).__name__, each.kind) for each in told]


def test_longer_steps_are_an_alarm_and_steps_as_before_its_relief(job: Job) -> None:
    (alarm,) = job.beats(3, 0.15)
    assert isinstance(alarm, Alarm)
    assert alarm.kind is AlarmKind.SLOWER
    assert alarm.at_s == pytest.approx(60.0, abs=0.7)
    (relief,) = job.beats(4)
    assert isinstance(relief, Relief)
    assert relief.before_s == pytest.approx(0.15, rel=0.03)
    assert relief.after_s == pytest.approx(0.10, rel=0.03)


def test_silence_is_an_alarm_once_and_its_end_is_told(job: Job) -> None:
    assert job.beats(4, None) == []
    assert kinds(job.beats(10, None)) == [("Alarm", AlarmKind.SILENT)]
    assert kinds(job.beats(2)) == [("Relief", AlarmKind.SILENT)]


def test_silence_is_over_where_nobody_is_listened_to_any_more(job: Job) -> None:
    assert kinds(job.beats(12, None)) == [("Alarm", AlarmKind.SILENT)]
    for one in job.ranks:
        one.stop_listening()
    (relief,) = job.beats(3, None)
    assert isinstance(relief, Relief) and relief.kind is AlarmKind.SILENT and "not listened to" in relief.words


def test_nobody_is_silent_whose_calls_may_have_been_lost(job: Job) -> None:
    for _ in range(60):
        for one in job.ranks:
            one.miss(job.now)
        assert job.beat(None) == []
    assert kinds(job.beats(10, None)) == [("Alarm", AlarmKind.SILENT)]
    for one in job.ranks:
        one.miss(job.now)
    assert job.beat(None) == [], "a loss is no sign of life"
    assert kinds(job.beats(2)) == [("Relief", AlarmKind.SILENT)]


def test_ranks_that_write_a_checkpoint_are_given_time(job: Job) -> None:
    assert job.beats(30, None, written_hz=50e6) == []
    assert kinds(job.beats(1, None)) == [("Alarm", AlarmKind.SILENT)]


def test_a_job_that_writes_for_ever_is_silent_all_the_same(job: Job) -> None:
    assert kinds(job.beats(60, None, written_hz=50e6)) == [("Alarm", AlarmKind.SILENT)]


def test_before_its_steps_are_known_a_job_may_compile_as_long_as_it_likes() -> None:
    job = Job()
    assert job.beats(3) == []
    assert job.beats(300, None) == []


def test_a_stopped_rank_is_named_and_not_told_as_silence_too(job: Job) -> None:
    told = job.beats(10, None, stopped=(101,))
    assert kinds(told) == [("Alarm", AlarmKind.STOPPED)]
    assert isinstance(told[0], Alarm)
    assert told[0].ranks == (1,)
    assert kinds(job.beats(3)) == [("Relief", AlarmKind.STOPPED)]


def test_of_ranks_that_a_launcher_ends_the_first_is_named(job: Job) -> None:
    died = (Death("job", 100, 0, job.now + 0.4, SIGTERM), Death("job", 101, 1, job.now + 0.1, SIGKILL))
    job.ranks = []
    (alarm,) = job.beat(None, died=died)
    assert isinstance(alarm, Alarm)
    assert (alarm.kind, alarm.ranks, alarm.words) == (AlarmKind.DEAD, (1,), "rank 1 killed by SIGKILL")


@pytest.mark.parametrize("status", [0, SIGTERM, 143 << 8], ids=["finished", "told to end", "told, with an exit code"])
def test_a_job_that_ends_because_it_is_done_or_was_told_to_is_no_alarm(job: Job, status: int) -> None:
    died = tuple(Death("job", one.found.pid, one.found.identity.rank, job.now + 0.1, status) for one in job.ranks)
    job.ranks = []
    assert job.beat(None, died=died) == []


@pytest.mark.parametrize(("step_s", "beats"), [(None, 8), (0.1, 5)], ids=["the others wait", "they go on without it"])
def test_a_rank_that_leaves_the_others_behind_is_an_alarm_even_with_exit_code_0(
    job: Job, step_s: float | None, beats: int
) -> None:
    died = (Death("job", 101, 1, job.now + 0.1, 0),)
    job.ranks = job.ranks[:1]
    told = [*job.beat(None, died=died), *job.beats(beats, step_s)]
    assert kinds(told) == [("Alarm", AlarmKind.DEAD)]
    assert isinstance(told[0], Alarm) and told[0].words == "rank 1 ended with 0"


def test_ranks_of_a_finished_job_may_end_seconds_apart(job: Job) -> None:
    for left in (1, 0):
        died = (Death("job", 100 + left, left, job.now + 0.1, 0),)
        job.ranks = job.ranks[:left]
        assert [*job.beat(None, died=died), *job.beats(4, None)] == []


def test_an_exit_code_is_told(job: Job) -> None:
    assert Death("job", 101, 1, 0.0, EXIT_1).words == "ended with 1"


def test_windows_are_limited_and_nobody_makes_them_rarer() -> None:
    allowance = Allowance()
    for at in (0.0, 10.0, 20.0):
        assert allowance.allows(at) == ""
        allowance.looked(at)
        allowance.learnt(at, accused=True)
    assert "enough" in allowance.allows(30.0)
    assert allowance.allows(3601.0) == ""
    allowance.looked(3601.0)
    allowance.learnt(3610.0, accused=False)
    assert "nobody" in allowance.allows(4000.0)
    assert allowance.allows(4000.0, urgent=True) == ""
    assert allowance.allows(4300.0) == ""
    allowance.learnt(4310.0, accused=False)
    assert "nobody" in allowance.allows(5400.0)


def test_a_standstill_is_looked_at_whatever_was_looked_at_before() -> None:
    allowance = Allowance()
    for at in (0.0, 10.0, 20.0):
        allowance.looked(at)
    assert "enough" in allowance.allows(30.0, urgent=True)
    # THEN it has windows of its own, as many
    for at in (30.0, 40.0, 50.0):
        assert allowance.allows(at, urgent=True, standstill=True) == ""
        allowance.looked(at, standstill=True)
    assert "enough" in allowance.allows(60.0, urgent=True, standstill=True)
    assert "enough" in allowance.allows(3625.0, urgent=True)  # those of standstills count for the others
    assert allowance.allows(3631.0, urgent=True, standstill=True) == ""


def test_a_service_that_takes_too_much_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever the tests before have taken.
    monkeypatch.setattr(limits, "resident_bytes", lambda: limits.RESIDENT_BYTES // 2)
    cost = OwnCost()
    cost.measure(0.0, ranks=2)
    monkeypatch.setattr(
        limits.resource, "getrusage", lambda _: SimpleNamespace(ru_utime=cost.cpu_s + 60.0, ru_stime=0.0)
    )
    with pytest.raises(OverBudget, match="of a core"):
        cost.measure(300.0, ranks=2)
    monkeypatch.setattr(limits, "resident_bytes", lambda: limits.RESIDENT_BYTES + 1)
    with pytest.raises(OverBudget, match="MB"):
        OwnCost().measure(0.0, ranks=2)
    # What a job does may cost the service much: a code after which systemd leaves it ended would let any user end it for good.
    unit = Path(__file__).parents[4] / "scripts/deploy/systemd/rankscope-watch.service"
    assert "RestartPreventExitStatus=69\n" in unit.read_text()
    assert OverBudget.exit_code == NotNow.exit_code == 70
