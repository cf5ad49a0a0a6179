"""Steps that run in threads which take turns: one line of time, made of the pieces of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from rankscope.observer.tables.one_line import merge_turns
from rankscope.observer.tables.rank import RankWindow, find_rank
from rankscope.observer.tables.raw import OpenAbsence, RawProcess
from rankscope.observer.thread.functions import StackName
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.bpf import ring
from rankscope.probes.calls.table import CALL_TABLE
from rankscope.probes.sched.probe import GIL_WAIT, WAKER_SHIFT

START_NS, MAIN, A, B, C, FEEDER = 1_000_000_000, 10, 11, 12, 13, 20
FUTEX, POLL, READ, INTERRUPTIBLE = 202, 7, 0, 1
IDLE, RESULT, TRAIN, PREPARE, REDUCE, FEED = range(1, 7)  # stacks
STACKS: Mapping[int, StackName] = {
    number: StackName(name, file, line, (StackFrame(name, file, line),), site=100 + number)
    for number, name, file, line in (
        (IDLE, "_worker", "/usr/lib/python3.11/concurrent/futures/thread.py", 69),
        (RESULT, "wait", "/usr/lib/python3.11/threading.py", 295),
        (TRAIN, "train", "train.py", 10),
        (PREPARE, "prepare", "train.py", 20),
        (REDUCE, "train", "train.py", 12),
        (FEED, "read_record", "train.py", 30),
    )
}
BACKWARD = next(i for i, row in enumerate(CALL_TABLE) if row.name == "backward")
WAIT = next(i for i, row in enumerate(CALL_TABLE) if (row.family, row.name) == ("gloo", "wait"))


class Process:
    """Writes down the events of threads. Each rests from the end of one of its pieces to the begin of its next."""

    def __init__(self) -> None:
        self.now = 0.001
        self.events: list[ring.Events] = []
        self.ran: dict[int, float] = {}
        self.last = 0  # who had the turn last
        self.begun: list[float] = []
        self.rng = np.random.default_rng(3)

    def event(
        self, kind: int, tid: int, begin: float, end: float, what: int = 0, stack: int = 0, waker: int = 0
    ) -> None:
        one = np.zeros(1, dtype=ring.EVENT)
        one["type"], one["tid"], one["tgid"], one["what"] = kind, tid, MAIN, what
        one["ready_ns" if kind == ring.CALL else "stack"] = stack
        one["aux"] = INTERRUPTIBLE | waker << WAKER_SHIFT
        one["ts_ns"], one["dur_ns"] = START_NS + round(begin * 1e9), round((end - begin) * 1e9)
        self.events.append(one)

    def take(self, tid: int, resting_in: int) -> None:
        """The turn goes to this thread, which rested since its last one; whoever had it runs on a little."""
        if tid != self.last:
            self.event(ring.OFFCPU, tid, self.ran.get(tid, -0.5), self.now, FUTEX, resting_in, self.last)
            if self.last:
                self.ran[self.last] = self.now + 0.00003
            self.last = tid

    def run(self, tid: int, seconds: float, stack: int) -> None:
        seconds *= self.rng.lognormal(0, 0.05)
        for tick in range(math.ceil(self.now * 1000), math.ceil((self.now + seconds) * 1000)):
            self.event(ring.SAMPLE, tid, tick / 1000, tick / 1000, stack=stack)
        self.now += seconds

    def backward(self, tid: int) -> None:
        begin = self.now
        self.run(tid, 0.012, TRAIN)
        self.event(ring.CALL, tid, begin, self.now, BACKWARD, TRAIN)

    def reduce(self, tid: int, seconds: float = 0.008) -> None:
        """Waits for the others in a collective."""
        begin = self.now
        self.now += seconds
        self.event(ring.OFFCPU, tid, begin + 1e-5, self.now - 1e-5, FUTEX, REDUCE)
        self.event(ring.CALL, tid, begin, self.now, WAIT, REDUCE)

    def step(self, tid: int) -> None:
        self.begun.append(self.now)
        self.run(tid, 0.01, TRAIN)
        self.backward(tid)
        self.reduce(tid)
        self.run(tid, 0.002, TRAIN)

    def raw(self, python: frozenset[int] = frozenset({MAIN, A, B, C, FEEDER})) -> RawProcess:
        events = np.concatenate(self.events)
        events = events[np.argsort(events["ts_ns"], kind="stable")]
        resting = {
            tid: OpenAbsence(tid, self._ns(since), 0, INTERRUPTIBLE, FUTEX, 0, RESULT if tid == MAIN else IDLE)
            for tid, since in self.ran.items()
            if tid in python and tid != self.last
        }
        return RawProcess(
            MAIN, START_NS, self.now, events, resting, [], python, STACKS, {}, 0.0, 999.0, alive_tids=frozenset(python)
        )

    @staticmethod
    def _ns(time_s: float) -> int:
        return START_NS + round(time_s * 1e9)

    @property
    def step_s(self) -> float:
        return float(np.median(np.diff(self.begun)))


def seconds(found: RankWindow, window_s: float) -> dict[str, float]:
    result: dict[str, float] = {}
    for one in found.training:
        what = one.function.kind if one.function.kind != "python" else one.function.name
        result[what] = result.get(what, 0.0) + one.beta * window_s
    return result


def right(job: Process, found: RankWindow) -> None:
    """Each step of the job is one, with what it waits in collectives."""
    assert abs(found.steps.count - len(job.begun)) <= 2
    assert float(np.median(found.step_times.seconds)) == pytest.approx(job.step_s, rel=0.03)
    assert float(np.median(found.step_times.wait_s)) == pytest.approx(0.008, rel=0.03)


def pooled(threads: tuple[int, ...], steps: int = 90) -> Process:
    """The main thread prepares a batch and waits for the thread of a pool that trains with it, another one each time."""
    job, draw = Process(), np.random.default_rng(1)
    job.last = MAIN
    for _ in range(steps):
        job.take(MAIN, RESULT)
        job.run(MAIN, 0.008, PREPARE)
        tid = int(draw.choice(threads))
        job.take(tid, IDLE)
        job.step(tid)
    return job


@pytest.mark.parametrize("threads", [(A,), (A, B), (A, B, C)])
def test_steps_in_threads_of_a_pool_in_turn_are_steps_of_one_line(threads: tuple[int, ...]) -> None:
    job = pooled(threads)
    raw = merge_turns(job.raw(), CALL_TABLE)
    assert set(raw.members) == {MAIN, *threads}
    found = find_rank(raw, CALL_TABLE)
    assert found.training_thread == MAIN
    right(job, found)
    spent = seconds(found, raw.window_s)
    assert spent["prepare"] == pytest.approx(90 * 0.008, rel=0.1)
    assert spent["train"] == pytest.approx(90 * 0.024, rel=0.1)
    assert spent["collective"] == pytest.approx(90 * 0.008, rel=0.03)
    assert spent.get("sync", 0.0) < 0.02  # nobody waits for his own other thread
    assert found.others == ()


def test_a_thread_that_reads_ahead_is_no_part_of_it() -> None:
    job = pooled((A, B))
    for at in np.arange(0.02, job.now - 0.03, 0.05).tolist():  # 30 ms, whenever the queue has room
        job.event(ring.OFFCPU, FEEDER, at, at + 0.02, FUTEX, FEED, MAIN)
    raw = merge_turns(job.raw(), CALL_TABLE)
    assert set(raw.members) == {MAIN, A, B}
    right(job, find_rank(raw, CALL_TABLE))


def test_a_main_thread_that_works_while_others_train_is_not_waited_for() -> None:
    """An event loop that receives messages while steps run in its pool: the threads of the pool take turns with each other alone."""
    job = Process()
    for number in range(90):
        tid = (A, B)[number % 2]
        job.take(tid, IDLE)
        job.step(tid)
    for at in np.arange(0.0, job.now, 0.006).tolist():
        job.event(ring.OFFCPU, MAIN, at, at + 0.003, POLL, RESULT, A)
    raw = merge_turns(job.raw(), CALL_TABLE)
    assert set(raw.members) == {A, B}
    right(job, find_rank(raw, CALL_TABLE))


def test_who_waits_for_the_gil_after_its_rest_had_no_turn_yet() -> None:
    job = pooled((A,))
    rests = [one for one in job.events if one["type"][0] == ring.OFFCPU and one["stack"][0] == RESULT]
    for one in rests:  # woken early, and then the other one has the GIL
        begin, end = (
            (float(one["ts_ns"][0]) - START_NS) / 1e9,
            (float(one["ts_ns"][0] + one["dur_ns"][0]) - START_NS) / 1e9,
        )
        if end - begin > 0.02:
            one["dur_ns"] -= 4_000_000
            job.event(ring.OFFCPU, MAIN, end - 0.0039, end, GIL_WAIT, RESULT, A)
    raw = merge_turns(job.raw(), CALL_TABLE)
    assert set(raw.members) == {MAIN, A}
    right(job, find_rank(raw, CALL_TABLE))


def test_threads_that_train_side_by_side_take_no_turns() -> None:
    job, other = Process(), Process()
    other.rng = np.random.default_rng(9)
    for _ in range(60):
        for one, tid in ((job, A), (other, B)):
            one.take(tid, IDLE)
            one.step(tid)
    job.events += other.events
    assert merge_turns(job.raw(), CALL_TABLE).members == ()


def test_a_pool_that_loads_samples_side_by_side_takes_no_turns_with_who_waits_for_it() -> None:
    job, asleep = Process(), {A: -0.5, B: -0.5}
    job.last = MAIN
    for _ in range(60):
        job.step(MAIN)
        begin = job.now
        job.now += 0.02
        for tid in (A, B):
            job.event(ring.OFFCPU, tid, asleep[tid], begin, FUTEX, IDLE, MAIN)
            asleep[tid] = job.now
        job.event(ring.OFFCPU, MAIN, begin + 1e-5, job.now, FUTEX, RESULT, A)
    raw = job.raw()
    assert merge_turns(raw, CALL_TABLE) is raw
    right(job, find_rank(raw, CALL_TABLE))


def test_an_ordinary_job_is_as_it_was() -> None:
    job = Process()
    job.last = MAIN
    for _ in range(30):
        job.step(MAIN)
    raw = job.raw()
    assert merge_turns(raw, CALL_TABLE) is raw


@pytest.mark.parametrize("met", [(), (130,), (100, 131, 159)], ids=["none", "one", "three"])
def test_a_thread_for_each_step_is_waited_for_by_who_started_it(met: tuple[int, ...]) -> None:
    """It is gone before it is known to have Python state: all that is seen are its calls, and that it ended a wait. `met`: those that were
    there when Python's threads were asked for."""
    job = Process()
    job.last = MAIN
    for number in range(60):
        job.take(MAIN, RESULT)
        job.run(MAIN, 0.008, PREPARE)
        tid = 100 + number
        job.last, job.ran[MAIN] = tid, job.now
        job.step(tid)
    job.events = [one for one in job.events if one["tid"][0] < 100 or one["type"][0] == ring.CALL]
    raw = merge_turns(job.raw(frozenset({MAIN, *met})), CALL_TABLE)
    assert MAIN in raw.members
    right(job, find_rank(raw, CALL_TABLE))


def test_calls_of_a_librarys_thread_inside_a_backward_pass_are_its_own() -> None:
    job = Process()
    job.last = MAIN
    for _ in range(40):
        begin = job.now
        job.run(MAIN, 0.01, TRAIN)
        job.event(ring.CALL, 77, begin + 0.001, job.now - 0.001, WAIT)
        job.event(ring.OFFCPU, MAIN, begin + 0.001, job.now - 0.001, FUTEX, TRAIN, 77)
        job.event(ring.CALL, MAIN, begin, job.now, BACKWARD, TRAIN)
        job.run(MAIN, 0.01, TRAIN)
    raw = job.raw(frozenset({MAIN}))
    assert merge_turns(raw, CALL_TABLE) is raw


def test_at_the_end_the_line_stands_where_who_has_the_turn_stands() -> None:
    job = pooled((A, B))
    began = START_NS + round(job.now * 1e9)
    stuck = OpenAbsence(job.last, began, 0, INTERRUPTIBLE, FUTEX, 0, REDUCE)
    job.now += 2.0
    raw = job.raw()
    resting = raw.open_absences
    raw = replace(raw, open_absences={**resting, job.last: stuck}, open_calls=[(job.last, WAIT, began)])
    raw = merge_turns(raw, CALL_TABLE)
    assert raw.open_absences[MAIN].stack == REDUCE
    assert raw.open_calls == [(MAIN, WAIT, began)]
    found = find_rank(raw, CALL_TABLE)
    assert found.in_collective_s == pytest.approx(2.0, abs=0.01)
