"""What a window has room for is shared by users: stacks, events, ranks, workers and Python threads. Who has many takes nobody's part."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rankscope.observer.finish.windows import _over_budget
from rankscope.observer.live import fallback, limits, observation
from rankscope.observer.live.fallback import Fallback
from rankscope.observer.live.observation import Observation
from rankscope.observer.live.process_watch import LOADER, TRAINING, ProcessWatch
from rankscope.observer.live.shares import Places, ranks_with_room
from rankscope.observer.thread.functions import StackName
from rankscope.probes.bpf import ring
from rankscope.unwinder.names.code import Frame
from rankscope.unwinder.walk.pyspy import PySample, PySpyResult

HEAVY, HONEST = 1666, 1000


def rank(pid: int, owner: int, job: str = "job", number: int = 0, workers: Iterable[int] = ()) -> Any:
    feeding = tuple(SimpleNamespace(pid=worker, kind="loader") for worker in workers)
    identity = SimpleNamespace(job=job, rank=number)
    return SimpleNamespace(pid=pid, identity=identity, owner=owner, cgroup="", workers=feeding)


def process(pid: int) -> Any:
    named = lambda raw: StackName("f", "a.py", raw)  # noqa: E731
    return SimpleNamespace(pid=pid, owner=pid, name_stack=named, threads={}, gone=False, label=TRAINING, lost_threads=0)


def events(pid: int, count: int, kind: int = ring.SAMPLE, first: int = 1, ts_ns: int = 0) -> ring.Events:
    found = np.zeros(count, ring.EVENT)
    found["type"], found["tgid"], found["tid"], found["ts_ns"] = kind, pid, pid, ts_ns
    found["stack"] = np.arange(first, first + count)
    return found


@pytest.fixture(autouse=True)
def nothing_else_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "resident_bytes", lambda: 0)
    monkeypatch.setattr(observation.sched, "thread_times", lambda _: ())
    monkeypatch.setattr(observation.sched, "process_times", lambda _: {})
    monkeypatch.setattr(observation.sched, "takers", lambda _: {})
    monkeypatch.setattr(observation.sched, "ended_children", lambda _: {})


def observed(
    ranks: list[Any], drains: Iterable[ring.Events] = (), *, targets: int = 1024, threads: int = 8192
) -> Observation:
    nothing: Any = SimpleNamespace(
        sample=lambda: None, close=lambda: None, listen=lambda: None, notes=[], library=None, pids=()
    )
    batches = iter(drains)
    kernel: Any = SimpleNamespace(
        module=None, stack=lambda identity: identity, costs=tuple, calls=SimpleNamespace(launches=None),
        events=SimpleNamespace(drain=lambda: next(batches, np.empty(0, ring.EVENT))),
        room={"rs_targets": targets, "rs_pythreads": threads}.__getitem__, renew=lambda: None,
    )  # fmt: skip
    processes = {one.pid: process(one.pid) for one in ranks}
    return Observation(ranks, kernel, processes, nothing, nothing, Path("/"), nothing)


def test_of_places_each_user_has_some_of_his_own_and_one_alone_has_all() -> None:
    alone = Places(100, {"a"})
    alone.take("a", 99)
    assert alone.left("a") == 1
    two = Places(80, {"a", "b"})
    two.take("a", 70)
    assert (two.left("a"), two.left("b"), two.left("nobody")) == (0, 10, 0)
    two.take("b", 4)
    assert (two.left("a"), two.left("b")) == (0, 6)
    two.take("a", -20)
    assert (two.left("a"), two.left("b")) == (20, 26)
    assert Places(160, set("abcdefghijklmnop")).freely == 80


def test_many_stacks_of_one_user_leave_others_the_names_of_theirs() -> None:
    """4,096 is what the kernel holds between two drains."""
    drains = [events(1, 4096, first=1 + 4096 * at) for at in range(5)] + [events(2, 50, first=1_000_000)]
    running = observed([rank(1, HEAVY), rank(2, HONEST)], drains)
    for _ in drains:
        running.drain()
    assert sum(identity >= 1_000_000 for identity in running.stacks) == 50
    assert len(running.stacks) <= limits.STACKS
    assert running.lost_stacks == 5 * 4096 + 50 - len(running.stacks)


def test_what_is_before_a_window_takes_none_of_its_room_and_begins_it_no_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "EVENTS", 100)
    running = observed([rank(1, HONEST)], [events(1, 90), events(1, 90), events(1, 3, kind=ring.EXIT), events(1, 90)])
    monkeypatch.setattr(Observation, "refresh", lambda _: None)
    end = time.monotonic() + 1.0
    running.wait_until(end)
    assert time.monotonic() >= end
    assert [len(batch) for batch in running.batches if len(batch)] == [3]
    assert running.lost_events == 0 and not running.held.full


def test_threads_that_had_no_room_once_are_not_told_in_later_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SimpleNamespace(listen=lambda: None, close=lambda: None, library=None)
    monkeypatch.setattr(observation, "Hardware", lambda *_: nothing)
    running = observed([rank(1, HONEST)])
    running.processes[1].lost_threads = 7
    running.renew()
    assert running.losses() == ()


def test_names_of_stacks_that_nobody_is_at_any_more_go_with_their_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STACKS", 100)
    nothing = SimpleNamespace(listen=lambda: None, close=lambda: None, library=None)
    monkeypatch.setattr(observation, "Hardware", lambda *_: nothing)
    running = observed([rank(1, HONEST)], [events(1, 100), events(1, 40), events(1, 60, first=1000)])
    running.drain()
    running.renew()
    assert len(running.stacks) == 100, "the next window begins where this one ended"
    running.drain()
    running.renew()
    assert len(running.stacks) == 40
    running.drain()
    assert (len(running.stacks), running.lost_stacks) == (100, 0)


def test_lines_of_py_spy_have_names_of_each_process_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STACKS", 4)

    def result(pid: int, lines: int) -> PySpyResult:
        seen = [PySample(pid, "MainThread", (Frame("f", "a.py", n, None, stale=False),), 1) for n in range(lines)]
        return PySpyResult(pid, tuple(seen), lines, 0, 0.0, "")

    monkeypatch.setattr(fallback.pyspy, "record_each", lambda *_, **__: iter([result(7, 50), result(8, 2)]))
    beside = Fallback([7, 8], 99)
    beside.start(1.0)
    found = beside.finish({})
    assert (len(found[7]), len(found[8])) == (2, 2)


def test_events_of_one_user_end_his_window_and_not_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS", 1600)
    late = events(1, 100, ts_ns=5_000)
    late[:2]["ts_ns"] = 10  # absences that began before his window ended, and are told when they are over
    drains = [
        events(2, 20), events(1, 1300), np.concatenate((events(1, 300, ts_ns=1_000), events(2, 20, ts_ns=1_001))),
        np.concatenate((late, events(1, 1, ring.EXIT, ts_ns=6_000), events(2, 40, ts_ns=6_001))),
    ]  # fmt: skip
    running = observed([rank(1, HEAVY), rank(2, HONEST)], drains)
    for _ in drains:
        running.drain()
        assert not running.held.full
    held = np.concatenate(running.batches)
    assert int((held["tgid"] == 2).sum()) == 80
    assert running.held.ended_ns == {"user 1666": 1_000} and set(running.ended) == {"user 1666"}
    after = held[(held["tgid"] == 1) & (held["ts_ns"] > 1_000)]
    assert after["type"].tolist() == [ring.EXIT] and int((held["ts_ns"] == 10).sum()) == 2
    lost = 1300 + 300 + 101 - int((held["tgid"] == 1).sum())
    assert {(loss.name, loss.count) for loss in running.losses({"user 1666"})} == {("events_over_budget", lost)}
    assert running.losses({"user 1000"}) == () and _over_budget(running, {"user 1000"}) == []
    assert any("ended early" in said for said in _over_budget(running, {"user 1666"}))


def test_a_window_ends_where_nobody_has_room_for_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS", 1600)
    running = observed([rank(1, HEAVY), rank(2, HONEST)], [events(1, 900), events(2, 900), events(1, 900)])
    running.drain()
    running.drain()
    assert not running.held.full
    running.drain()
    assert running.held.full and sum(map(len, running.batches)) == 1600


def test_a_process_with_more_events_than_rows_can_be_made_of_ends_the_window_of_its_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "PROCESS_EVENTS", 500)
    drains = [events(1, 400), events(2, 400), events(1, 200, ts_ns=700), events(1, 200, ts_ns=800), events(2, 90)]
    running = observed([rank(1, HEAVY), rank(2, HONEST)], drains)
    for _ in drains:
        running.drain()
    held = np.concatenate(running.batches)
    assert (int((held["tgid"] == 1).sum()), int((held["tgid"] == 2).sum())) == (600, 490)
    assert (running.held.ended_ns, running.held.lost) == ({"user 1666": 700}, {"user 1666": 200})
    assert not running.held.full


def test_what_was_before_a_window_takes_no_room_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS", 100)
    running = observed([rank(1, HONEST)], [np.concatenate((events(1, 120), events(1, 1, ring.EXIT))), events(1, 90)])
    running.drain()
    running.held.begin()
    assert (sum(map(len, running.batches)), running.lost_events, running.held.full) == (1, 0, False)
    running.drain()
    assert (sum(map(len, running.batches)), running.lost_events) == (91, 0)


def test_of_too_many_ranks_each_users_are_observed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RANKS", 16)
    many = [rank(pid, HEAVY, "crowd", pid) for pid in range(1, 101)]
    mine = [rank(500 + number, HONEST, "training", number) for number in range(8)]
    kept, said = ranks_with_room([*many, *mine])
    assert [one.pid for one in kept] == [*range(1, 9), *range(500, 508)]
    assert said == "92 of the 108 ranks of this host were not observed: there is room for 16"
    assert ranks_with_room(mine) == (tuple(mine), "")


def begun(ranks: list[Any], monkeypatch: pytest.MonkeyPatch, threads_each: int = 1, **room: int) -> Observation:
    """Of processes with so many Python threads each."""

    def watch(pid: int, owner: int, label: str, *given: Any) -> ProcessWatch:
        found = ProcessWatch(pid, owner, label, None, "")
        found.threads = dict.fromkeys(range(pid * 1000, pid * 1000 + min(threads_each, given[-1])), 1)
        return found

    monkeypatch.setattr(observation.process_watch, "watch", watch)
    running = observed(ranks, **room)
    running.processes.clear()
    running.watch_all()
    return running


def test_python_threads_of_one_user_leave_room_for_those_of_ranks_that_come_after_his(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = [rank(pid, HEAVY, "crowd", pid) for pid in range(100, 140)]
    running = begun([*many, rank(900, HONEST)], monkeypatch, threads_each=256)
    assert len(running.processes[900].threads) == 256
    assert sum(len(one.threads) for one in running.processes.values()) <= 8192
    assert list(running.processes) == [*range(100, 140), 900], "in the order of the census"


def test_what_is_anybodys_is_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = [rank(pid, HEAVY if pid < 300 else HONEST, "crowd", pid) for pid in (*range(100, 140), *range(300, 340))]
    running = begun(theirs, monkeypatch, threads_each=256)
    counts = [
        sum(len(one.threads) for one in running.processes.values() if (one.pid < 300) == first)
        for first in (True, False)
    ]
    assert abs(counts[0] - counts[1]) <= 256 and sum(counts) >= 8000


def test_threads_that_are_started_later_have_the_room_of_their_user(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[int, int] = {}

    class Grows(ProcessWatch):
        def refresh(self, probes: object, room: int = 0) -> None:
            asked[self.pid] = room
            self.threads = dict.fromkeys(range(min(room, 400)), 1)

    running = observed([rank(1, HEAVY), rank(2, HEAVY), rank(3, HONEST)], threads=800)
    running.processes = {pid: Grows(pid, pid, TRAINING, None, "") for pid in (1, 2, 3)}
    running._refresh_processes()
    assert asked == {1: 699, 2: 300, 3: 100}
    assert [len(one.threads) for one in running.processes.values()] == [400, 300, 100]


def test_threads_of_one_user_that_were_not_looked_at_are_no_note_of_anothers_window() -> None:
    running = observed([rank(pid, HEAVY) for pid in range(1, 100)] + [rank(500, HONEST)])
    for pid in range(1, 100):
        running.processes[pid].lost_threads = 7
    assert (_over_budget(running, {"user 1000"}), running.losses({"user 1000"})) == ([], ())
    assert len(_over_budget(running, {"user 1666"})) == 99
    assert [loss.count for loss in running.losses({"user 1666"})] == [693]


@pytest.mark.parametrize("short", ["of a window", "in the kernel"])
def test_workers_of_one_user_leave_room_for_those_of_others(short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROCESSES", 64 if short == "of a window" else 4096)
    theirs = [rank(1, HEAVY, workers=range(100, 300)), rank(2, HONEST, workers=range(500, 502))]
    running = begun(theirs, monkeypatch, targets=64 if short == "in the kernel" else 1024)
    assert {500, 501} <= set(running.processes) and len(running.processes) == 59
    assert {(loss.name, loss.count) for loss in running.losses({"user 1666"})} == {("processes_over_budget", 145)}
    assert running.losses({"user 1000"}) == ()

    monkeypatch.setattr(observation, "children", lambda pid, root: {1: (700, 701), 2: (600,)}[pid])
    monkeypatch.setattr(observation, "feeds", lambda pid, root: True)
    running._seek_workers()
    assert 700 not in running.processes and running.processes[600].label == LOADER, "those that come later as well"
