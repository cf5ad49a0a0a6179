"""Steps of a job whose collectives run on threads of a library: told apart by where the training thread waits for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from rankscope.observer.steps.find import StepGuide, find_steps
from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.steps.markers import Markers
from rankscope.observer.tables.rank import find_rank, steps_alone
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.thread.functions import StackName
from rankscope.probes.bpf import ring
from rankscope.probes.calls.table import CALL_TABLE

START_NS, MAIN, LIBRARY = 1_000_000_000, 10, 11
FUTEX, INTERRUPTIBLE, RUNNABLE, NO_SYSCALL = 202, 1, 0, 0xFFFF
STEP, EVALUATE, LOG, LOAD = 1, 2, 3, 4  # stacks of the job
STACKS: Mapping[int, StackName] = {
    STEP: StackName("block_until_ready", "jax/api.py", 3, site=101),
    EVALUATE: StackName("__float__", "jax/array.py", 5, site=102),
    LOG: StackName("train", "train.py", 8, site=103),
    LOAD: StackName("read_row", "train.py", 2, site=104),
}
EXECUTE = next(i for i, row in enumerate(CALL_TABLE) if (row.family, row.name) == ("xla", "execute"))
XLA = next(i for i, row in enumerate(CALL_TABLE) if (row.family, row.name) == ("xla", "allreduce"))


class Job:
    """Writes down the events of a training loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[ring.Events] = []
        self.begun: list[float] = []
        self.rng = np.random.default_rng(5)
        self.library = 0.0  # until when the library has work

    def work(self, seconds: float) -> None:
        self.now += seconds * self.rng.lognormal(0, 0.05)

    def _event(self, kind: int, tid: int, begin: float, what: int, stack: int, state: int = INTERRUPTIBLE) -> None:
        one = np.zeros(1, dtype=ring.EVENT)
        one["type"], one["tid"], one["tgid"], one["what"], one["aux"] = kind, tid, MAIN, what, state
        one["ready_ns" if kind == ring.CALL else "stack"] = stack
        one["ts_ns"], one["dur_ns"] = START_NS + round(begin * 1e9), round((self.now - begin) * 1e9)
        self.events.append(one)

    def computed(self, place: int, collectives: int) -> None:
        """The training thread waits there until the library has computed, all-reduces among it."""
        begin = self.now
        for _ in range(collectives):
            self.work(0.003)
            entered = self.now
            self.work(0.002)
            self._event(ring.CALL, LIBRARY, entered, XLA, 0)
        self.work(0.001)
        self._event(ring.OFFCPU, MAIN, begin, FUTEX, place)

    def behind(self, seconds: float, collectives: int) -> None:
        """The training thread works on, while the library computes what it was given before."""
        begin = self.now
        for _ in range(collectives):
            self.work(0.003)
            entered = self.now
            self.work(0.002)
            self._event(ring.CALL, LIBRARY, entered, XLA, 0)
        self.now = begin
        self.work(seconds)

    def hand_over(self, place: int) -> None:
        """A compiled function is given to the library."""
        begin = self.now
        self.work(0.0001)
        self._event(ring.CALL, MAIN, begin, EXECUTE, place)

    def inline(self, place: int) -> None:
        """An all-reduce that is so small that the library runs it in the call."""
        begin = self.now
        self.work(0.0005)
        self._event(ring.CALL, MAIN, begin, XLA, place)

    def preempted(self, place: int) -> None:
        begin = self.now
        self.work(0.003)
        self._event(ring.OFFCPU, MAIN, begin, NO_SYSCALL, place, RUNNABLE)

    def raw(self) -> RawProcess:
        events = np.concatenate(self.events)
        events = events[np.argsort(events["ts_ns"], kind="stable")]
        return RawProcess(MAIN, START_NS, self.now, events, {}, [], frozenset({MAIN}), STACKS, {}, 0.0, 99.0)

    def steps(self) -> FoundSteps:
        return steps_alone(self.raw(), CALL_TABLE)

    @property
    def step_s(self) -> float:
        return float(np.median(np.diff(self.begun)))


def trained(*, log: int = 10, evaluate: int = 50, log_inline: bool = True) -> Job:
    job = Job()
    for iteration in range(1, 241):
        job.begun.append(job.now)
        job.work(0.01)
        if iteration % 7 == 0:
            job.preempted(LOAD)
        job.computed(STEP, collectives=2)
        if log and iteration % log == 0:
            job.inline(LOG) if log_inline else job.computed(LOG, collectives=1)
        if evaluate and iteration % evaluate == 0:
            for _ in range(10):
                job.work(0.004)
                job.computed(EVALUATE, collectives=1)
    return job


@pytest.mark.parametrize("log_inline", [True, False])
def test_a_loss_that_is_averaged_now_and_then_is_told_from_the_gradients(log_inline: bool) -> None:
    job = trained(log_inline=log_inline)
    steps = job.steps()
    assert steps.count in (238, 239)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(job.step_s, rel=0.05)


def test_a_loop_without_anything_else_makes_the_same_steps() -> None:
    job = trained(log=0, evaluate=0)
    steps = job.steps()
    assert steps.count in (238, 239)
    assert steps.period == 2


def test_a_collective_that_nobody_waits_for_yet_belongs_to_the_usual_ones() -> None:
    """The library computes while the training thread makes the next batch: where that is at the moment says nothing."""
    job = trained()
    waits = [at for at, one in enumerate(job.events) if one["type"][0] == ring.OFFCPU and one["stack"][0] == STEP]
    for at in waits[::9]:
        job.events[at]["type"] = ring.FILE  # not seen to wait there
        job.events[at]["dur_ns"] = 0
    steps = job.steps()
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(job.step_s, rel=0.05)
    assert steps.count >= 230


@pytest.mark.parametrize("updates", [4, 10])
@pytest.mark.parametrize("host_s", [0.003, 0.02])
def test_updates_inside_one_compiled_call_are_one_iteration(updates: int, host_s: float) -> None:
    job = Job()
    for _ in range(60):
        job.begun.append(job.now)
        job.work(host_s)
        job.computed(STEP, collectives=2 * updates)
    steps = job.steps()
    assert steps.count in (58, 59)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(job.step_s, rel=0.05)


@pytest.mark.parametrize("collectives", [1, 2])
@pytest.mark.parametrize("host_s", [0.015, 0.03])
def test_a_job_that_runs_ahead_and_reads_its_loss_now_and_then_makes_a_step_per_iteration(
    collectives: int, host_s: float
) -> None:
    job, given = Job(), 0
    for iteration in range(1, 301):
        job.begun.append(job.now)
        job.behind(host_s, given)
        given = collectives
        if iteration % 10 == 0:
            job.computed(LOG, given)
            given = 0
    steps = job.steps()
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(job.step_s, rel=0.1)


def _read_back(job: Job, due: list[float], reductions: int) -> None:
    """The library carries out what was handed over from its own clock; the thread waits for all of it. One all-reduce in 50 is missed."""
    begin, here = job.now, job.library
    for handed in due:
        here = max(here, handed)
        for _ in range(reductions):
            here = job.now = here + 0.006 * float(job.rng.lognormal(0, 0.05))
            if job.rng.random() > 0.02:
                job._event(ring.CALL, LIBRARY, here - 0.002, XLA, 0)
    job.library, job.now = here, max(here, begin) + 0.0005
    job._event(ring.OFFCPU, MAIN, begin, FUTEX, LOG)


@pytest.mark.parametrize(
    ("host_s", "log_is_computed"), [(0.0002, False), (0.001, False), (0.003, False), (0.001, True), (0.003, True)]
)
@pytest.mark.parametrize("reductions", [1, 4])
def test_a_loss_read_now_and_then_by_a_job_that_always_runs_ahead_makes_no_longer_steps(
    host_s: float, log_is_computed: bool, reductions: int
) -> None:
    """Nearly all collectives end while the training thread waits for its loss: that it comes back is no iteration."""
    job, due = Job(), list[float]()
    for iteration in range(1, 401):
        job.work(host_s)
        job.hand_over(STEP)
        due.append(job.now)
        if iteration % 10 == 0:
            if log_is_computed:
                job.hand_over(LOG)
            _read_back(job, due, reductions)
            job.begun.append(job.now)
            due = []
    steps = job.steps()
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(job.step_s / 10, rel=0.1)
    assert float(np.mean(np.diff(steps.edge_s))) == pytest.approx(job.step_s / 10, rel=0.1)


@pytest.mark.parametrize("prepared_by", [0, 5, 10, 64])
def test_updates_inside_one_compiled_call_are_one_iteration_however_often_its_batch_hands_something_over(
    prepared_by: int,
) -> None:
    job = Job()
    for _ in range(60):
        job.begun.append(job.now)
        job.work(0.003)
        for _ in range(prepared_by):
            job.hand_over(LOAD)
        job.hand_over(STEP)
        job.computed(STEP, collectives=20)
    steps = job.steps()
    assert steps.count in (58, 59)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(job.step_s, rel=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_no_loop_turns_more_often_than_it_hands_its_update_over(seed: int) -> None:
    """Three all-reduces an iteration; the thread waits in the call that hands over and where it reads the loss, and each of the three
    may end in either wait, of this iteration or of the next."""
    rng = np.random.default_rng(seed)
    count, each = 300, 3
    handed_s = np.cumsum(rng.lognormal(np.log(0.017), 0.3, count))
    end_s = (handed_s[:, None] + np.sort(rng.uniform(0.001, 0.012, (count, each)))).ravel()
    markers = Markers(
        np.full(count * each, XLA), end_s - 0.0004, end_s, absence=1 + np.cumsum(rng.random(count * each) < 0.55),
        dispatch_s=handed_s, dispatch_site=np.full(count, 7),
    )  # fmt: skip
    steps = find_steps(markers)
    assert steps.period == each and steps.count in range(count - 4, count)


@pytest.mark.parametrize("metrics", [False, True])
def test_a_job_of_one_rank_has_its_steps_by_its_dispatches(metrics: bool) -> None:
    job = Job()
    for iteration in range(1, 121):
        job.begun.append(job.now)
        job.work(0.02)
        job.hand_over(STEP)
        job.work(0.03)
        if metrics:
            job.hand_over(EVALUATE)
            job.work(0.01)
        if iteration % 25 == 0:
            job.hand_over(LOG)
            job.work(0.01)
    # of several ranks the collectives decide, and there are none
    assert find_rank(job.raw(), CALL_TABLE, StepGuide()).steps.count == 0
    found = find_rank(job.raw(), CALL_TABLE, StepGuide(one_rank=True)).steps
    assert 110 <= found.count <= 120
    assert np.median(np.diff(found.edge_s)) == pytest.approx(job.step_s, rel=0.05)
