"""What there is no room for is shared by users, and told: jobs, processes with py-spy, entries of the kernel's maps, time for stacks."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rankscope.observer import recorder
from rankscope.observer.apart.broker import Broker
from rankscope.observer.finish import last
from rankscope.observer.live import fallback, limits, observation
from rankscope.observer.live.fallback import Fallback, main_thread
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.live.observation import Observation
from rankscope.observer.live.shares import choose_sampled, jobs_with_room
from rankscope.observer.recorder import RecordOptions
from rankscope.observer.tables.raw import OpenAbsence
from rankscope.observer.thread.functions import NO_STACK, StackName
from rankscope.probes.bpf import ring
from rankscope.probes.host.fair import Fair, group_by, interleave
from rankscope.unwinder.names.code import Frame
from rankscope.unwinder.walk.pyspy import PySample, PySpyResult


def rank(pid: int, job: str, owner: int) -> Any:
    return SimpleNamespace(pid=pid, identity=SimpleNamespace(job=job), owner=owner, cgroup="")


def observed(ranks: list[Any], processes: dict[int, Any], **probes: Any) -> Observation:
    nothing: Any = SimpleNamespace(sample=lambda: None)
    kernel: Any = SimpleNamespace(stack=lambda identity: identity, **probes)
    return Observation(ranks, kernel, processes, nothing, nothing, Path("/"), nothing)


def test_each_user_has_his_first_before_anybody_has_his_second() -> None:
    assert interleave({"many": range(9), "few": ["a"], "none": []}, 4) == [0, "a", 1, 2]
    assert interleave({"many": range(2)}, 4) == [0, 1]
    assert interleave({}, 4) == []
    assert interleave(group_by([1, 3, 5, 2], lambda number: number % 2)) == [1, 2, 3, 5]


def test_of_too_many_jobs_each_users_largest_are_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOBS", 4)
    many = [rank(number, f"a{number}", 1666) for number in range(100)]
    real = [rank(200 + number, "training", 1000) for number in range(8)]
    more = [rank(300, "beside", 1000)]
    kept, said = jobs_with_room([*many, *more, *real])
    assert {one.identity.job for one in kept} >= {"training", "beside"}
    assert {one.pid for one in real} <= {one.pid for one in kept}
    assert len({one.identity.job for one in kept}) == 4
    assert said == "98 of the 102 jobs of this host were not observed: there is room for 4"
    assert jobs_with_room(real) == (tuple(real), "")


def test_windows_say_that_there_are_more_jobs_than_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOBS", 1)
    begun: list[list[int]] = []

    def begin(ranks: Any, **_: object) -> Any:
        begun.append([one.pid for one in ranks])
        return SimpleNamespace(notes=[], probes=SimpleNamespace(remarks=[]))

    monkeypatch.setattr(observation, "begin", begin)
    running = recorder._begin([rank(1, "a", 1), rank(2, "b", 2), rank(3, "b", 2)], RecordOptions(), lambda _: None)
    assert begun == [[2, 3]]
    assert running.notes == ["1 of the 2 jobs of this host were not observed: there is room for 1"]


def test_no_user_takes_all_places_beside_py_spy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SAMPLED_MOST", 3)
    many = [rank(number, f"a{number}", 1666) for number in range(1, 100)]
    kept, said = choose_sampled([*many, rank(200, "training", 1000)])
    assert kept == [1, 200, 2]
    assert said == "py-spy was run on 3 ranks alone: 97 more are without stacks"
    assert choose_sampled(many[:3]) == ([1, 2, 3], "")


def test_the_process_with_the_rights_runs_only_so_many_py_spies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.observer.apart.broker.pyspy.start", lambda *_: None)
    broker = Broker(samplings=cast(Any, dict.fromkeys(range(100, 100 + limits.SAMPLED_MOST))))
    with pytest.raises(ValueError, match="too many"):
        broker.pyspy_start((), pid=1, duration_s=1, rate_hz=19, idle=False)


@pytest.mark.parametrize(
    "error", [ValueError("sampled already, or too many"), RuntimeError("KeyError: 7"), OSError(24, "x")]
)
def test_that_py_spy_cannot_be_run_is_said(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(fallback.pyspy, "record_each", refuse)
    beside = Fallback([7], 99)
    beside.start(1.0)
    assert beside.finish({}) == {}
    assert beside.notes == [f"py-spy, in place of the kernel walk, failed: {error}"]


def seen(line: int, count: int, tid: int = 7, name: str = "MainThread") -> PySample:
    return PySample(tid, name, (Frame("f", "a.py", line, None, stale=False),), count)


def test_lines_of_py_spy_that_say_more_samples_than_there_can_be_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function may have line breaks in its name, and a number."""
    lines = [
        seen(1, 50),
        seen(2, 999_999_999_999),
        seen(3, 100, tid=8),
        seen(4, 100),
        seen(5, 9, name="x", tid=9),
        seen(6, 0),
    ]
    found, left_out = main_thread(7, lines, 198)
    assert ([count for _, count in found], left_out) == ([50, 100], 3)

    result = PySpyResult(7, tuple(lines), 150, 0, 0.0, "")
    monkeypatch.setattr(fallback.pyspy, "record_each", lambda *_, **__: iter([result]))
    beside, stacks = Fallback([7], 99), dict[int, StackName]()
    beside.start(1.0)
    assert [count for _, count in beside.finish(stacks)[7]] == [50, 100]
    assert "3 of its lines were skipped" in beside.notes[0]


def test_names_from_py_spy_have_the_room_of_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STACKS", 3)
    result = PySpyResult(7, tuple(seen(line, 1) for line in range(1, 10)), 9, 0, 0.0, "")
    monkeypatch.setattr(fallback.pyspy, "record_each", lambda *_, **__: iter([result]))
    beside, stacks = Fallback([7], 99), {1: NO_STACK}
    beside.start(1.0)
    assert (len(beside.finish(stacks)[7]), len(stacks)) == (2, 3)
    assert beside.notes[-1] == "pid 7: 7 of its stacks are left out: there were too many"


class Full:
    """A map of the kernel's without room."""

    Leaf = staticmethod(lambda *_: None)

    def __setitem__(self, key: object, leaf: object) -> None:
        raise OSError(errno.E2BIG, "Argument list too long")


def test_whom_the_kernel_has_no_room_for_is_counted_and_the_others_are_observed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = SimpleNamespace(
        maps={"rs_targets": Full(), "rs_pythreads": Full()}, counters=lambda names: dict.fromkeys(names, 0)
    )
    monkeypatch.setattr("rankscope.probes.sched.probe.look_again", lambda module: None)
    probes = KernelProbes(module, cast(Any, None), cast(Any, None))
    for tid in (7, 8):
        probes.set_thread(tid, 1, 2)
    probes.watch_process(7, 1)
    assert {(loss.name, loss.count) for loss in probes.losses()} == {
        ("threads_without_room", 2), ("processes_without_room", 1)
    }  # fmt: skip


def test_what_was_lost_in_one_window_is_no_loss_of_the_next() -> None:
    counted = {"ring_full": 5}
    module: Any = SimpleNamespace(counters=lambda names: {**dict.fromkeys(names, 0), **counted})
    probes = KernelProbes(module, cast(Any, None), cast(Any, None))
    assert [(loss.name, loss.count) for loss in probes.losses()] == [("ring_full", 5)]
    probes.renew()
    assert probes.losses() == ()
    counted["ring_full"] = 7
    assert [(loss.name, loss.count) for loss in probes.losses()] == [("ring_full", 2)]


class Slow:
    """Stacks that take long to put into words, by a clock that moves with nothing else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(observation.time, "thread_time", lambda: self.now_s)
        monkeypatch.setattr(
            observation.limits, "resident_bytes", lambda: 0
        )  # of a process of many tests it may be too much

    def process(self, owner: int, threads: dict[int, int], each_s: float) -> Any:
        def take(_: object) -> StackName:
            self.now_s += each_s
            return NO_STACK

        return SimpleNamespace(pid=owner, owner=owner, name_stack=take, blocked_stack=take, threads=threads)


def test_stacks_that_take_long_to_name_are_at_the_cost_of_their_user(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Slow(monkeypatch)
    processes = {1: clock.process(1, {}, 0.5), 2: clock.process(2, {}, 0.001)}
    batch = np.zeros(200, ring.EVENT)
    batch["type"], batch["stack"] = ring.SAMPLE, np.arange(1, 201)
    batch["tgid"] = np.where(batch["stack"] <= 150, 1, 2)
    running = observed([rank(1, "a", 1666), rank(2, "b", 1000)], processes, events=SimpleNamespace(drain=lambda: batch))
    running.drain()
    assert clock.now_s < observation.NAME_FREELY_S + observation.NAME_EACH_S + 1
    assert sum(identity > 150 for identity in running.stacks) == 50
    assert running.lost_stacks == 200 - len(running.stacks)
    running.drain()
    assert running.lost_stacks > 0 and len(running.stacks) > 54, "what was left out is named when it is met again"


def test_threads_that_stand_still_are_told_without_stacks_where_these_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Slow(monkeypatch)
    processes = {
        pid: clock.process(pid, {10 * pid + n: 8 for n in range(8)}, each) for pid, each in ((1, 0.5), (2, 0.01))
    }
    for pid, tid in itertools.chain.from_iterable(
        ((pid, tid) for tid in one.threads) for pid, one in processes.items()
    ):
        folder = tmp_path / f"proc/{pid}/task/{tid}"
        folder.mkdir(parents=True)
        (folder / "stat").write_text(f"{tid} (x) S 1 " + " ".join(["1"] * 48))
        (folder / "syscall").write_text("61 0xffffffffffffffff 0x7ffd0 0x0 0x0 0x0 0x0 0x7ffd 0x7f00\n")
    running = observed([rank(1, "a", 1666), rank(2, "b", 1000)], processes)
    running.root = tmp_path
    found = last._open_absences(running, {}, 10**12, Fair(1.0, 0.25))
    assert len(found) == 16 and running.lost_stacks == 6

    # wait4(-1), as the kernel's probes tell it too
    away: OpenAbsence = found[10]
    assert (away.syscall, away.argument) == (61, -1)
    assert np.array([away.argument], dtype=np.int64)[0] == -1
