"""Somebody sets the clock of a host while its service runs: it hears the others as before, waits no longer, and says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.diagnose.infer.fleet.sources import Sources
from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.service.hosts import judging, others
from rankscope.diagnose.service.hosts.board import TRIGGER, VERDICT, Board
from rankscope.diagnose.service.hosts.courier import Answer
from rankscope.diagnose.service.hosts.others import Others
from rankscope.diagnose.service.hosts.share import Share
from rankscope.diagnose.service.hosts.together import Alone, Begin, ClockSet, Judged, Remark, Together
from rankscope.diagnose.service.hosts.trigger import Pace, Trigger
from rankscope.diagnose.service.looks.look import Seen, Telling
from rankscope.diagnose.service.looks.looking import Looking
from rankscope.observer import recorder
from rankscope.observer.window.store import objects
from rankscope.probes.base.clocks import Clocks

NOW, HOUR_S, NS = 1_800_000_000.0, 3600.0, 1_000_000_000
JOBS = {"job": 3}
PACE = Pace()


class _Store:
    """A courier whose answers are those that a test puts there."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.said: list[Answer] = []

    def ask(self, what: str, job: str, start: float, content: Any = None, called: str = "") -> None:
        self.asked.append((what, start))

    def answers(self) -> Iterator[Answer]:
        while self.said:
            yield self.said.pop(0)

    def close(self) -> None:
        pass


def _together() -> tuple[Together, _Store]:
    store = _Store()
    return Together("host0", cast(Any, store)), store


def _trigger(start: float) -> Trigger:
    return Trigger("job", start, 5.0, AlarmKind.SLOWER, "slower", "host1")


def _heard(start: float) -> Answer:
    return Answer("trigger", "job", start, False, _trigger(start).as_json())


def _alarm() -> Alarm:
    return Alarm(AlarmKind.SLOWER, "job", 0.0, "slower")


def _asked(together: Together, store: _Store, now: float) -> int:
    store.asked.clear()
    for second in range(60):
        together.take(now + second, JOBS)
    return len([what for what, _ in store.asked if what == "trigger"])


@pytest.mark.parametrize("ahead_s", [HOUR_S, 40 * 365 * 24 * HOUR_S, -HOUR_S])
def test_triggers_are_asked_for_as_before_when_a_clock_was_set(ahead_s: float) -> None:
    together, store = _together()
    assert _asked(together, store, NOW + ahead_s) == 12
    assert _asked(together, store, NOW + 60) == 12


def test_what_was_meant_by_the_clock_as_it_was_is_forgotten_and_who_wanted_a_look_looks_alone() -> None:
    # GIVEN a host whose clock is an hour ahead: one look of all was heard of, another one is proposed
    together, store = _together()
    ahead = NOW + HOUR_S
    together.take(ahead, JOBS)
    store.said.append(_heard(ahead + 5))
    assert [type(task) for task in together.take(ahead + 3, JOBS)] == [Begin]
    together.propose(_alarm(), 5.0, ahead + 4)
    # WHEN the clock is set right
    (alone,) = together.clock_set(-HOUR_S)
    assert isinstance(alone, Alone) and "clock" in alone.why and not together.agreed()
    # THEN the next look of all is joined
    together.take(NOW + 7, JOBS)
    store.said.append(_heard(NOW + 10))
    assert [type(task) for task in together.take(NOW + 8, JOBS)] == [Begin]
    assert together.take(NOW + 100, JOBS) == []


def test_what_was_asked_by_a_clock_that_was_ahead_is_not_heard_when_it_was_set_back() -> None:
    # GIVEN a host whose clock is ahead, and a question that is under way as it is set
    together, store = _together()
    together.take(NOW + HOUR_S + 3, JOBS)
    together.clock_set(-HOUR_S)
    store.said.append(_heard(NOW + HOUR_S + 5))
    assert together.take(NOW + 4, JOBS) == []
    # THEN the next look of all is joined, also one that is asked for a slot before
    store.said.append(_heard(NOW + 15))
    assert [type(task) for task in together.take(NOW + 8, JOBS)] == [Begin]


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_a_verdict_is_waited_for_as_long_as_by_a_clock_that_was_not_set(step_s: float) -> None:
    together, store = _together()
    together.take(NOW, JOBS)
    together.sent(_trigger(NOW - 6), 3, NOW)
    store.asked.clear()
    together.clock_set(step_s)
    now = NOW + step_s
    assert together.take(now + 1, JOBS) == [] and ("verdict", NOW - 6) not in store.asked
    together.take(now + 3, JOBS)
    assert ("verdict", NOW - 6) in store.asked and ("turn", NOW - 6) not in store.asked
    store.said.append(Answer("verdict", "job", NOW - 6, False, {"host": "host1"}))
    assert [type(task) for task in together.take(now + 4, JOBS)] == [Judged]
    # One that nobody gives is somebody's turn, and given up in the end; also of a look that was agreed on before.
    together.sent(_trigger(NOW - 6), 3, now + 4, step_s)
    together.clock_set(-step_s)
    together.take(NOW + 70, JOBS)
    assert ("turn", NOW - 6) in store.asked
    assert [type(task) for task in together.take(NOW + 200, JOBS)] == [Remark]


def test_that_the_others_are_not_heard_is_said_again_when_the_clock_was_set() -> None:
    together, store = _together()
    trouble = Answer("trigger", "job", NOW, False, None, "away")
    for now, told in ((NOW + HOUR_S, 1), (NOW + HOUR_S + 1, 0), (NOW, 1)):
        if now == NOW:
            together.clock_set(-HOUR_S)
        together.take(now, JOBS)
        store.said.append(trouble)
        assert len([task for task in together.take(now, JOBS) if isinstance(task, Remark)]) == told


def _service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clocks: list[Clocks]) -> Others:
    monkeypatch.setattr(others, "read_clocks", lambda: clocks[0])
    monkeypatch.setattr(others, "Courier", lambda uri: _Store())
    return Others("file:///nowhere", tmp_path, host="host0", _clocks=clocks[0])


def test_that_a_clock_was_set_is_said_once_and_no_sleep_of_the_host_is_taken_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clocks = [Clocks(10 * NS, 5 * NS, 5 * NS)]
    service = _service(monkeypatch, tmp_path, clocks)
    clocks[0] = Clocks(1010 * NS, 6 * NS, 1005 * NS)  # it slept
    assert not list(service.take(JOBS))
    service.propose(_alarm(), 5.0, ready=True)
    clocks[0] = Clocks(411 * NS, 7 * NS, 1006 * NS)
    told, alone = service.take(JOBS)
    assert isinstance(told, ClockSet) and "by -600.0 s" in told.words and isinstance(alone, Alone)
    assert not list(service.take(JOBS))


def test_a_look_during_which_the_clock_was_set_is_waited_for_by_the_clock_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clocks = [Clocks(10 * NS, 5 * NS, 5 * NS)]
    service = _service(monkeypatch, tmp_path, clocks)
    list(service.take(JOBS))
    trigger = _trigger(NOW)
    share = service.share(Begin(trigger, None, False), None)
    for step_s, now in ((-3600, NOW + 6 - 3600), (3600, NOW + 12)):
        monkeypatch.setattr(others.time, "time", lambda now=now: now)
        clocks[0] = replace(clocks[0], realtime_ns=clocks[0].realtime_ns + step_s * NS)
        service.sent(Seen(_alarm(), None, "", None, share=share))
        assert [type(task) for task in service.take(JOBS)] == [ClockSet]
        awaited = service._together._jobs["job"].awaited[NOW]
        assert awaited.until - NOW < 90 and now - awaited.set_by - NOW < 20


def test_an_alarm_is_not_served_by_a_look_of_the_clock_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    voice = SimpleNamespace(note=lambda at_s, kind, words, job="": said.append(words))
    clocks = [Clocks(10 * NS, 5 * NS, 5 * NS)]
    service = _service(monkeypatch, tmp_path, clocks)
    nothing: Any = None
    looking = Looking(nothing, cast(Any, voice), nothing, {}, tmp_path, None, False, service)
    looking._in_common["job"] = _trigger(time.time() + HOUR_S)
    alarm = Alarm(AlarmKind.SLOWER, "job", time.monotonic(), "slower")
    assert looking._is_served(alarm)
    clocks[0] = Clocks(5 * NS, 6 * NS, 6 * NS)
    looking.hear_others(time.monotonic())
    assert not looking._is_served(alarm) and len(said) == 1 and "clock of this host was set" in said[0]


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_windows_of_others_are_waited_for_as_long_though_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step_s: float
) -> None:
    # GIVEN a look that is over; by this host's clock it may be yet to come
    running = [0.0]
    start = NOW - 5.0
    share = Share("file:///nowhere", tmp_path, _trigger(start), True, 2, "host0")
    board = SimpleNamespace(windows=lambda job, start: Sources((), ()))
    monkeypatch.setattr(judging.time, "monotonic", lambda: running[0])
    monkeypatch.setattr(judging.time, "time", lambda: NOW + running[0] + (step_s if running[0] > 2 else 0.0))
    monkeypatch.setattr(judging.time, "sleep", lambda seconds: running.__setitem__(0, running[0] + seconds))
    judging._gathered(cast(Any, board), share)
    assert PACE.gather_s - 1 < running[0] < PACE.gather_s + 1
    # A clock that was set before that makes it no longer than the others' windows may take.
    assert PACE.gathered_within(_trigger(start), NOW - HOUR_S) <= PACE.gather_s + PACE.turn_s / 2


@pytest.mark.parametrize("step_s", [-HOUR_S, 0.0, HOUR_S])
@pytest.mark.parametrize("late_s", [0.0, 2.0])
def test_windows_of_others_are_waited_for_as_long_though_the_clock_is_set_during_the_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step_s: float, late_s: float
) -> None:
    # GIVEN a look whose window is read three seconds after its end
    running, begun = [0.0], late_s
    share = Share("file:///nowhere", tmp_path, _trigger(NOW), True, 2, "host0")
    board = SimpleNamespace(windows=lambda job, start: Sources((), ()))
    monkeypatch.setattr(judging.time, "monotonic", lambda: running[0])
    monkeypatch.setattr(judging.time, "time", lambda: NOW + running[0] + (step_s if running[0] > begun else 0.0))
    monkeypatch.setattr(judging.time, "sleep", lambda seconds: running.__setitem__(0, running[0] + seconds))
    window = cast(Any, SimpleNamespace(manifest=SimpleNamespace(start=NOW + late_s)))
    telling = Telling(-1, apart_s=NOW)
    telling._begun(window)
    running[0] = 5.0 + late_s + 3.0
    judging._gathered(cast(Any, board), share, telling._ended_s(share, window))
    assert 5.0 + PACE.gather_s - 0.5 < running[0] < 5.0 + PACE.gather_s + 1.5


def test_a_window_of_a_moment_that_is_hours_off_begins_at_once() -> None:
    assert recorder._start(recorder.RecordOptions(begin_at=NOW + HOUR_S), NOW) == NOW
    assert recorder._start(recorder.RecordOptions(begin_at=NOW + 5.0), NOW) == NOW + 5.0


def test_when_a_window_began_is_known_though_the_clock_was_set_while_it_lasted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    telling = Telling(-1)
    telling.heard("observing 5 s from now")
    assert telling.reads is not None
    telling.reads.join()
    start, began_s, real = time.time(), time.monotonic(), time.time
    monkeypatch.setattr(time, "time", lambda: real() - HOUR_S)
    telling._begun(cast(Any, SimpleNamespace(manifest=SimpleNamespace(start=start))))
    assert telling.began_s == pytest.approx(began_s, abs=0.5)


def test_a_trigger_of_a_host_whose_clock_was_ahead_fires_no_look_when_its_slot_comes(store: str) -> None:
    board = Board(store)
    now = 5 * (time.time() // 5)
    for start, heard in ((now + 5, True), (now + HOUR_S, False)):
        trigger = _trigger(start).as_json()
        assert board.put(TRIGGER, "job", start, trigger) == (trigger if heard else None)
        assert (board.get(TRIGGER, "job", start) is not None) == heard
    assert board.put(VERDICT, "job", now + HOUR_S, {"host": "host1"}) == {"host": "host1"}


@pytest.mark.parametrize("behind_s", [-HOUR_S, 0.0, HOUR_S])
def test_a_folder_whose_server_has_another_clock_lets_triggers_be_heard_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, behind_s: float
) -> None:
    # GIVEN a folder in which all that comes has the time of a server
    tmp_path.chmod(0o700)
    put_s, clock = objects.put_s, objects.clock
    monkeypatch.setattr(objects, "put_s", lambda store, path: put_s(store, path) - behind_s)
    monkeypatch.setattr(objects, "clock", lambda store: clock(store) - behind_s)
    board = Board(tmp_path.as_uri())
    start = 5 * (time.time() // 5) + 5
    trigger = _trigger(start).as_json()
    assert board.put(TRIGGER, "job", start, trigger) == trigger == board.get(TRIGGER, "job", start)
    # AND one of a host whose clock was ahead is not, where that can be seen
    if behind_s >= 0:
        ahead = start + HOUR_S
        assert board.put(TRIGGER, "job", ahead, _trigger(ahead).as_json()) is None
