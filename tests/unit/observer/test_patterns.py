"""Patterns: totals are exact where they were measured and unbiased where they were sampled."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import functions, patterns, timeline, waits
from rankscope.observer.thread.activities import Activities
from rankscope.observer.thread.functions import FunctionKey, StackName
from rankscope.observer.thread.samples import Samples, Words
from rankscope.observer.thread.step_times import step_times
from rankscope.observer.thread.timeline import NO_SCOPES, Absences, Scopes, Timeline

FORWARD = StackName("forward", "model.py", 10)
AUGMENT = StackName("augment", "data.py", 20)
DEVICE = StackName("device_wait", "train.py", 30)
STACKS = {1: FORWARD, 2: AUGMENT, 3: DEVICE}
STEPS = 19
HZ = 99.0


def a_thread(throttled_s: float = 0.0) -> dict[tuple[str, str, str], patterns.Pattern]:
    """19 steps of 1 s: 0.3 s forward, 0.2 s augment, 0.1 s ready, 0.2 s sleep, 0.2 s collective."""
    starts, ends, ready, syscall, state, stack = [], [], [], [], [], []
    waits: list[tuple[float, float]] = []
    sample_at, sample_stack = [], []
    for step in range(STEPS):
        for at in np.arange(0.005, 0.5, 1 / HZ):
            sample_at.append(step + at)
            sample_stack.append(1 if at < 0.3 else 2)
        starts += [step + 0.5, step + 0.6, step + 0.8]
        ends += [step + 0.6, step + 0.8, step + 1.0]
        ready += [0.1, 0.0, 0.0]
        syscall += [0xFFFF, 230, 202]
        state += [0, 1, 1]
        stack += [2, 3, 3]
        waits.append((step + 0.8, step + 1.0))
    absences = Absences(
        np.array(starts), np.array(ends), np.array(ready), np.array(syscall), np.zeros(len(starts), dtype=np.int64),
        np.array(state), np.array(stack, dtype=np.uint64),
    )  # fmt: skip
    steps = FoundSteps(np.arange(0.0, STEPS + 1), 1)
    collectives = Scopes(np.array([w[0] for w in waits]), np.array([w[1] for w in waits]), np.arange(STEPS))
    nothing = Scopes(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))
    line = timeline.build(
        float(STEPS), absences, collectives, nothing, file_kinds=np.empty(0, dtype=np.int64), edges_s=steps.edge_s
    )
    labels = Words(STACKS, [FunctionKey("collective", "wait", detail="gloo")] * STEPS, [], np.empty(0), np.zeros(STEPS))
    found = patterns.measure_thread(
        float(STEPS), line, absences, Samples(np.array(sample_at), np.array(sample_stack, dtype=np.uint64)), labels, steps,
        hz=HZ, throttled_s=throttled_s,
    )  # fmt: skip
    times = step_times(line, steps)
    assert times.seconds == pytest.approx(np.ones(STEPS))
    assert times.wait_s == pytest.approx(np.full(STEPS, 0.2))
    assert times.sched_s == pytest.approx(np.full(STEPS, 0.1))
    return {(p.function.kind, p.function.name, p.function.detail): p for p in found}


def test_running_time_is_shared_out_by_samples() -> None:
    found = a_thread()
    assert found["python", "forward", ""].per_step_s == pytest.approx(0.3, rel=0.05)
    assert found["python", "augment", ""].per_step_s == pytest.approx(0.2, rel=0.05)
    assert found["python", "forward", ""].count == STEPS


def test_waiting_time_is_exact_and_named_by_its_caller() -> None:
    found = a_thread()
    sleep = found["python", "device_wait", "sleep"]
    assert sleep.per_step_s == pytest.approx(0.2)
    assert sleep.p50_s == pytest.approx(0.2)
    assert (sleep.mu, sleep.count) == (0.0, STEPS)
    wait = found["collective", "wait", "gloo"]
    assert (wait.function.caller, wait.function.file) == ("device_wait", "train.py")
    assert wait.per_step_s == pytest.approx(0.2)


def test_betas_add_up_to_the_window() -> None:
    assert sum(p.beta for p in a_thread().values()) == pytest.approx(1.0)


def test_utilisation_falls_for_the_function_that_was_pushed_off_the_cpu() -> None:
    found = a_thread()
    assert found["python", "forward", ""].mu == pytest.approx(1.0)
    assert found["python", "augment", ""].mu == pytest.approx(2 / 3, rel=0.05)


def test_a_function_that_takes_longer_from_step_to_step_is_told_from_the_others() -> None:
    # GIVEN 30 steps of 1 s, of which the k-th spends k/30 s in augment, and the rest in forward
    count = 30
    times = np.arange(0.005, count, 1 / HZ)
    stacks = np.where(times % 1 < np.floor(times) / count, 2, 1).astype(np.uint64)
    nothing = Scopes(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))
    away = Absences(
        *(np.empty(0) for _ in range(3)), *(np.empty(0, dtype=np.int64) for _ in range(3)), np.empty(0, dtype=np.uint64)
    )
    steps = FoundSteps(np.arange(0.0, count + 1), 1)
    line = timeline.build(
        float(count), away, nothing, nothing, file_kinds=np.empty(0, dtype=np.int64), edges_s=steps.edge_s
    )
    labels = Words(STACKS, [], [], np.empty(0), np.empty(0))
    found = {
        p.function.name: p
        for p in patterns.measure_thread(float(count), line, away, Samples(times, stacks), labels, steps, hz=HZ)
    }
    assert found["augment"].growth_s == pytest.approx(20 / 30, rel=0.05)
    assert found["forward"].growth_s == pytest.approx(-20 / 30, rel=0.05)


def test_the_quota_explains_only_as_much_waiting_as_it_took() -> None:
    found = a_thread(throttled_s=0.1 * 7)
    assert found["sched", "ready", "throttled"].total_s == pytest.approx(0.7)
    assert found["sched", "ready", "queue"].total_s == pytest.approx(0.1 * (STEPS - 7))


def test_many_functions_in_many_steps_are_measured_one_after_the_other() -> None:
    count, steps = 100, 4000
    found = {}
    for number in range(count):
        at, seconds = [np.array([number], dtype=np.int64)], [np.array([0.1])]
        stack = StackName(f"f{number}", "model.py", number + 1)
        found[functions.python(stack)] = Activities(seconds, at)
        found[functions.waiting("sched", "ready", "queue", stack, "cpu")] = Activities(seconds, at)
    tracemalloc.start()
    try:
        measured = patterns.measure(float(steps), found, FoundSteps(np.arange(steps + 1.0), 1))
        assert tracemalloc.get_traced_memory()[1] < count * steps * 8 / 4
    finally:
        tracemalloc.stop()
    assert [each.mu for each in measured if each.function.kind == "python"] == [0.5] * count


def test_the_pieces_of_one_wait_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other threads of the process stand in the run queue again and again, a collective is cut into pieces."""
    nothing, none = np.empty(0), np.empty(0, dtype=np.int64)
    away = Absences(nothing, nothing, nothing, none, none, none, np.empty(0, dtype=np.uint64))
    at = np.arange(0.0, 10.0, 0.05)
    line = timeline.build(
        10.0, away, Scopes(np.array([0.0, 5.0]), np.array([5.0, 10.0]), np.arange(2)), NO_SCOPES,
        file_kinds=none, edges_s=nothing, queued=Scopes(at, at + 0.01, np.zeros(len(at), dtype=np.int64)),
    )  # fmt: skip
    assert len(line.kind) >= 2 * len(at)
    words = Words(STACKS, [FunctionKey("collective", "wait", detail="gloo")] * 2, [], np.empty(0), np.zeros(2))
    name, seconds = waits._Waits.name, Timeline.seconds.fget
    named, summed = [], []

    def counted_name(self: waits._Waits, segment: int) -> tuple[FunctionKey, int, int]:
        named.append(segment)
        return name(self, segment)

    def counted_seconds(self: Timeline) -> np.ndarray:
        summed.append(self)
        return seconds(self)

    monkeypatch.setattr(waits._Waits, "name", counted_name)
    monkeypatch.setattr(Timeline, "seconds", property(counted_seconds))
    found: dict[FunctionKey, Activities] = {}
    samples = Samples(nothing, np.empty(0, dtype=np.uint64))
    waits.add_waits(found, line, away, samples, words, FoundSteps(np.array([0.0, 10.0]), 1), HZ, 0.0)
    assert (len(named), len(summed)) == (4, 2)
    assert {function.kind: round(each.total_s, 6) for function, each in found.items()} == {
        "sched": 2.0,
        "collective": 8.0,
    }
