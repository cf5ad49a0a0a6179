"""What a rank does in a few of its steps only is told by the user's function, and what comes by chance is not told."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.observer.steps.found import FoundSteps, none
from rankscope.observer.tables.pattern_rows import pause_row
from rankscope.observer.tables.rank import find_rank
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.thread import functions
from rankscope.observer.thread.activities import Activities
from rankscope.observer.thread.functions import FunctionKey, StackName
from rankscope.observer.thread.pauses import Pause, find_pauses
from rankscope.observer.window.schema import PAUSED_STEPS_MOST
from rankscope.observer.window.stacks import StackFrame
from rankscope.observer.window.tables import table_of
from rankscope.probes.bpf import ring
from rankscope.probes.calls.table import CALL_TABLE, UPDATE

TRAIN = "/srv/job/train.py"
LIB = "/opt/venv/lib/python3.11/site-packages"
HZ = 99.0
STEP_S = 0.032


def frame(name: str, line: int, file: str = TRAIN) -> StackFrame:
    return StackFrame(name, file, line)


def library(name: str, package: str = "torch") -> StackFrame:
    return StackFrame(name, f"{LIB}/{package}/x.py", 7)


MAIN = (frame("<module>", 1), frame("main", 76))
FORWARD = (*MAIN, library("Module._call_impl"), frame("Net.forward", 55), library("conv2d"))
BACKWARD = (*MAIN, library("backward"), library("_engine_run_backward"))
EVALUATE = (*MAIN, library("context_decorator.<locals>.decorate_context"), frame("evaluate", 61))
SAVE = (*MAIN, frame("save_checkpoint", 74))


def at_leaf(frames: tuple[StackFrame, ...]) -> StackName:
    return StackName(*frames[-1], frames)


def runs(*frames: StackFrame) -> FunctionKey:
    return functions.python(at_leaf(frames))


def waits(*frames: StackFrame) -> FunctionKey:
    return functions.waiting("collective", "allreduce", "gloo", at_leaf(frames), "nic")


@dataclass
class Thread:
    """A training thread of so many steps: 18 ms of forward, 8 ms of backward, waiting for the rest of each step, with noise."""

    steps: int = 300
    seed: int = 0
    noise: float = 0.04
    spent: dict[FunctionKey, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.rng = rng
        for function, mean in ((runs(*FORWARD), 0.018), (runs(*BACKWARD), 0.008), (waits(*BACKWARD), 0.006)):
            self.spent[function] = mean * np.exp(rng.normal(0, self.noise, self.steps))
        # What is too short to be sampled in each step: a sample now and then stands for it.
        for name in ("zero_grad", "DistributedSampler.__iter__", "SGD.step", "Tensor.item", "Net.train", "clip"):
            seen = rng.random(self.steps) < 0.05
            self.spent[runs(*MAIN, library(name))] = seen / HZ
        self.lengths = 0.018 + 0.008 + 0.006 + rng.normal(0, self.noise * STEP_S, self.steps)

    def also(self, function: FunctionKey, seconds: float, at: list[int] | np.ndarray) -> Thread:
        more = np.zeros(self.steps)
        more[at] = seconds
        self.spent[function] = self.spent.get(function, np.zeros(self.steps)) + more
        self.lengths = self.lengths + more
        return self

    def pauses(self) -> tuple[Pause, ...]:
        found = {}
        for function, spent in self.spent.items():
            at = np.flatnonzero(spent > 0)
            found[function] = Activities([spent[at]], [at])
        return find_pauses(found, FoundSteps(np.concatenate(([0.0], np.cumsum(self.lengths)))), HZ)


def told(pauses: tuple[Pause, ...]) -> set[tuple[str, int, str, int]]:
    return {(pause.function.name, pause.function.line, pause.inside, len(pause.steps)) for pause in pauses}


def test_ordinary_steps_have_no_pauses() -> None:
    assert [Thread(seed=seed).pauses() for seed in range(20)] == [()] * 20


def test_an_evaluation_is_told_by_the_users_function_and_not_by_the_model_that_it_runs() -> None:
    # GIVEN an evaluation in every 100th step: its time lies in the model's forward, which is in every step, and in a collective
    thread = Thread()
    thread.also(runs(*EVALUATE, *FORWARD[2:]), 0.05, [99, 199, 299]).also(
        waits(*EVALUATE, library("all_reduce")), 0.01, [99, 199, 299]
    )

    # WHEN, THEN
    (pause,) = thread.pauses()
    assert (pause.function, pause.inside) == (frame("evaluate", 61), "")
    assert pause.steps.tolist() == [99, 199, 299]
    assert pause.seconds == pytest.approx([0.06] * 3)
    assert pause.wait_s == pytest.approx(0.03)


def test_two_pauses_in_one_step_are_told_apart() -> None:
    thread = Thread(steps=401)
    thread.also(runs(*EVALUATE, library("conv2d")), 0.05, [100, 200, 300, 400]).also(
        runs(*SAVE, library("save")), 0.2, [200, 400]
    )
    assert told(thread.pauses()) == {("evaluate", 61, "", 4), ("save_checkpoint", 74, "", 2)}


def test_a_pause_that_a_busy_host_makes_four_times_as_long_is_the_same_pause() -> None:
    thread = Thread().also(runs(*EVALUATE), 0.25, [95]).also(runs(*EVALUATE), 0.06, [245])
    assert told(thread.pauses()) == {("evaluate", 61, "", 2)}


def test_one_checkpoint_in_the_window_is_enough() -> None:
    assert told(Thread().also(runs(*SAVE, library("save")), 0.2, [150]).pauses()) == {("save_checkpoint", 74, "", 1)}


def test_a_function_of_the_user_is_told_by_its_own_name_below_his_decorators() -> None:
    wrappers = frame("timed.<locals>.wrapper", 12), frame("retried.<locals>.wrapper", 22)
    thread = Thread().also(runs(*MAIN, *wrappers, frame("save_checkpoint", 74), library("save")), 0.2, [150])
    assert told(thread.pauses()) == {("save_checkpoint", 74, "", 1)}
    # AND a function within another is no decorator's: the model that it runs is called by a library
    within = (*MAIN, frame("main.<locals>.evaluate", 30))
    thread = Thread().also(runs(*within, *FORWARD[2:]), 0.2, [150])
    assert told(thread.pauses()) == {("main.<locals>.evaluate", 30, "", 1)}


def test_a_rank_that_waits_for_the_checkpoint_of_another_waits_in_the_function() -> None:
    (pause,) = Thread().also(waits(*SAVE, library("barrier")), 0.2, [150]).pauses()
    assert pause.function.name == "save_checkpoint"
    assert pause.wait_s == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("function", "inside"),
    [
        (runs(*MAIN, library("save"), library("_save")), "save"),
        (waits(*MAIN, library("_exception_logger.<locals>.wrapper"), library("barrier")), "barrier"),
        (functions.waiting("io", "write", "/data", at_leaf(MAIN), "disk"), "write"),
        (functions.python(at_leaf(MAIN), "sleep"), "sleep"),
    ],
)
def test_what_a_library_does_is_told_by_who_calls_it(function: FunctionKey, inside: str) -> None:
    assert told(Thread().also(function, 0.1, [49, 99, 149, 199, 249, 299]).pauses()) == {("main", 76, inside, 6)}


def test_a_validation_loop_of_a_library_is_told_by_the_function_of_the_user_that_it_calls() -> None:
    loop = (*MAIN, library("Trainer.fit", "lightning"), library("_EvaluationLoop.run", "lightning"))
    thread = Thread().also(
        runs(*loop, frame("Classifier.validation_step", 58), library("conv2d")), 0.06, [99, 199, 299]
    )
    thread.also(runs(*loop, library("_next_data")), 0.03, [99, 199, 299])
    (pause,) = thread.pauses()
    assert pause.function == frame("Classifier.validation_step", 58)
    assert pause.seconds == pytest.approx([0.09] * 3)


def test_garbage_collections_are_one_function_whomever_they_interrupt() -> None:
    thread = Thread()
    for step, stack in ((49, FORWARD), (149, EVALUATE), (249, SAVE)):
        thread.also(functions.collector(at_leaf(stack)), 0.08, [step])
    (pause,) = thread.pauses()
    assert (pause.function.name, pause.function.file, pause.steps.tolist()) == ("gc", "", [49, 149, 249])


def test_a_queue_for_the_cpu_is_no_pause() -> None:
    queued = functions.waiting("sched", "ready", "queue", at_leaf((*MAIN, library("zero_grad"))), "cpu")
    assert Thread().also(queued, 0.1, [99, 199, 299]).pauses() == ()


def test_an_evaluation_in_the_loop_itself_is_more_of_what_every_step_does() -> None:
    # GIVEN every 100th step with 100 ms more of the forward pass, and with an evaluation that is a function
    thread = Thread().also(runs(*FORWARD), 0.1, [99, 199, 299])
    thread.also(runs(*EVALUATE), 0.05, [99, 199, 299])

    # WHEN, THEN what is there in these steps only is told as that, and the rest as more
    evaluate, forward = sorted(thread.pauses(), key=lambda pause: pause.more)
    assert (evaluate.function.name, evaluate.more) == ("evaluate", False)
    assert (forward.function, forward.inside, forward.more) == (frame("Net.forward", 55), "", True)
    assert forward.steps.tolist() == [99, 199, 299]
    assert forward.seconds == pytest.approx([0.1] * 3, abs=0.005)


def test_more_waiting_of_a_function_of_every_step_is_waiting() -> None:
    (pause,) = Thread().also(waits(*BACKWARD), 0.1, [99, 199, 299]).pauses()
    assert (pause.function, pause.more) == (frame("main", 76), True)
    assert pause.wait_s == pytest.approx(0.3, abs=0.01)


def test_two_long_steps_of_a_function_of_every_step_are_not_told() -> None:
    assert Thread().also(runs(*FORWARD), 0.1, [31, 208]).pauses() == ()


def test_long_steps_of_which_no_function_holds_most_are_not_told() -> None:
    thread = Thread().also(runs(*FORWARD), 0.01, [99, 199, 299])
    thread.lengths[[99, 199, 299]] += 0.1
    assert thread.pauses() == ()


def test_short_functions_that_are_seen_in_long_steps_are_there_by_chance() -> None:
    # GIVEN steps that others make longer: more samples fall into them, of functions of every step, which are seen seldom
    found = 0
    for seed in range(40):
        thread = Thread(seed=seed, noise=0.15)
        slow = thread.rng.choice(thread.steps, 12, replace=False)
        thread.lengths[slow] += thread.rng.exponential(0.03, len(slow))
        for number in range(100):
            seen = thread.rng.choice(thread.steps, 3, replace=False, p=thread.lengths / thread.lengths.sum())
            thread.spent[runs(*MAIN, library(f"short_{number}"))] = np.isin(np.arange(thread.steps), seen) / HZ
        found += len(thread.pauses())

    # WHEN pauses are sought in 40 windows, THEN hardly any is told
    assert found <= 2


def test_a_wait_of_which_no_stack_was_seen_has_no_function_to_be_told_by() -> None:
    unseen = FunctionKey("collective", "finalize_backward", detail="gloo", resource="nic")
    assert Thread().also(unseen, 0.1, [99, 199]).pauses() == ()


def test_pauses_in_most_steps_are_what_the_steps_are() -> None:
    assert Thread().also(runs(*SAVE), 0.1, np.arange(0, 300, 2)).pauses() == ()


def test_without_steps_or_functions_there_are_none() -> None:
    assert find_pauses({}, FoundSteps(np.arange(20.0)), HZ) == ()
    assert (
        find_pauses({runs(*MAIN): Activities([np.ones(1)], [np.zeros(1, dtype=np.int64)])}, none("no markers"), HZ)
        == ()
    )


def test_the_row_of_a_pause_lists_no_more_steps_than_it_may() -> None:
    count = PAUSED_STEPS_MOST + 7
    pause = Pause(frame("log", 9), "", np.arange(0, 10 * count, 10), np.full(count, 0.01), 0.002)
    row = pause_row(3, pause)
    assert (row.count, len(row.steps), row.steps[:3]) == (count, PAUSED_STEPS_MOST, (0, 10, 20))
    assert row.total_s == pytest.approx(0.01 * count)
    assert table_of("pauses", [row]).num_rows == 1


def test_many_functions_in_many_steps_are_held_by_the_steps_that_they_are_in() -> None:
    count, steps = 200, 5000
    found = {
        runs(*MAIN, library(f"f{number}")): Activities([np.ones(1)], [np.array([number])]) for number in range(count)
    }
    found[runs(*EVALUATE)] = Activities([np.full(50, 5.0)], [np.arange(0, steps, 100)])
    lengths = np.ones(steps)
    lengths[::100] += 5.0
    tracemalloc.start()
    try:
        pauses = find_pauses(found, FoundSteps(np.concatenate(([0.0], np.cumsum(lengths)))), HZ)
        assert tracemalloc.get_traced_memory()[1] < count * steps * 8 / 4
    finally:
        tracemalloc.stop()
    assert ("evaluate", 61, "", 50) in told(pauses)


FRAMES = st.lists(st.sampled_from([*MAIN, *FORWARD, *SAVE, library("save"), frame("", 0, "")]), max_size=6)


@settings(max_examples=80)
@given(
    stacks=st.lists(
        st.tuples(FRAMES, st.lists(st.tuples(st.integers(-1, 29), st.floats(0, 1)), min_size=1)), max_size=6
    ),
    lengths=st.lists(st.floats(0, 10), min_size=30, max_size=30),
)
def test_any_thread_is_judged(
    stacks: list[tuple[list[StackFrame], list[tuple[int, float]]]], lengths: list[float]
) -> None:
    found = {}
    for number, (frames, spent) in enumerate(stacks):
        stack = StackName("f", "", number, tuple(frames))
        steps = np.array([step for step, _ in spent], dtype=np.int64)
        found[functions.python(stack)] = Activities([np.array([seconds for _, seconds in spent])], [steps])
    for pause in find_pauses(found, FoundSteps(np.concatenate(([0.0], np.cumsum(lengths)))), HZ):
        assert len(pause.steps) == len(pause.seconds) > 0 and pause.function.file
        assert 0 <= pause.wait_s <= pause.seconds.sum() + 1e-9


# ---- from events ---------------------------------------------------------------------------------------------------------

TID, START_NS = 10, 1_000_000_000
WAIT = next(index for index, row in enumerate(CALL_TABLE) if row.name == UPDATE)
FUTEX = 202


class Job:
    """The events of a training loop as the probes deliver them: samples while it runs, calls and absences while it waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stacks = {1: at_leaf(FORWARD), 2: at_leaf(BACKWARD), 3: at_leaf((*EVALUATE, library("conv2d")))}
        self.events: list[np.ndarray] = []

    def event(self, kind: int, begin: float, stack: int, what: int = 0) -> None:
        one = np.zeros(1, dtype=ring.EVENT)
        one["type"], one["tid"], one["tgid"], one["what"], one["aux"], one["stack"] = kind, TID, TID, what, 1, stack
        one["ts_ns"], one["dur_ns"] = START_NS + round(begin * 1e9), round((self.now - begin) * 1e9)
        self.events.append(one)

    def run(self, stack: int, seconds: float) -> None:
        at = math.ceil(self.now * HZ) / HZ
        until, self.now = self.now + seconds, at
        while self.now < until:
            self.event(ring.SAMPLE, self.now, stack)
            self.now += 1 / HZ
        self.now = until

    def update(self, seconds: float) -> None:
        begin = self.now
        self.now += seconds
        self.event(ring.OFFCPU, begin, 2, FUTEX)
        self.event(ring.CALL, begin, 0, WAIT)

    def raw(self) -> RawProcess:
        return RawProcess(
            pid=TID, start_ns=START_NS, window_s=self.now, events=np.concatenate(self.events), open_absences={}, open_calls=[],
            python_tids=frozenset({TID}), stacks=self.stacks, devices={}, throttled_s=0.0, hz=HZ,
        )  # fmt: skip


def test_pauses_are_found_in_the_events_of_a_rank_and_steps_stay_what_they_are() -> None:
    # GIVEN steps of 30 ms, and an evaluation of 80 ms in every 40th
    job = Job()
    for step in range(200):
        job.run(1, 0.023)
        job.update(0.007)
        if step % 40 == 39:
            job.run(3, 0.08)

    # WHEN, THEN
    found = find_rank(job.raw(), CALL_TABLE)
    assert float(np.median(np.diff(found.steps.edge_s))) == pytest.approx(0.03, abs=1e-4)
    (pause,) = found.pauses
    assert (pause.function, pause.inside, pause.more) == (frame("evaluate", 61), "", False)
    assert np.diff(pause.steps).tolist() == [40] * (len(pause.steps) - 1) and len(pause.steps) >= 4
    assert float(np.median(pause.seconds)) == pytest.approx(0.08, abs=0.015)
