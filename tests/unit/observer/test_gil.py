"""Who held the GIL: the holder of most of the time, and what it was doing then."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import gil, patterns, timeline
from rankscope.observer.thread.functions import Holder, StackName
from rankscope.observer.thread.samples import Samples, Words
from rankscope.observer.thread.syscalls import GIL, IN_KERNEL
from rankscope.observer.thread.timeline import NO_SCOPES, Absences, Scopes

WORK, HOG, OTHER = (
    StackName("work", "/a/train.py", 3),
    StackName("hog", "/a/train.py", 12),
    StackName("o", "o.py", 1),
)
STACKS = {1: WORK, 2: HOG, 3: OTHER}
FUTEX = 202
HOLDER = Holder("hog", "/a/train.py", 12, "thread pump")
NO_SAMPLES = Samples(np.empty(0), np.empty(0, dtype=np.uint64))


def absences(*rows: tuple[float, float, int, int, int]) -> Absences:
    """(start, end, system call, argument, stack)."""
    start, end, syscall, argument, stack = (np.array([row[i] for row in rows]) for i in range(5))
    return Absences(
        start.astype(float), end.astype(float), np.zeros(len(rows)), syscall.astype(np.int64), argument.astype(np.int64),
        np.ones(len(rows), dtype=np.int64), stack.astype(np.uint64),
    )  # fmt: skip


NOBODY = absences()
WAITS = absences(
    (1.0, 1.005, GIL, 0x50, 1), (1.0051, 1.010, GIL, 0x50, 1), (2.0, 2.002, GIL, 0x60, 1), (3, 4, FUTEX, 0x50, 1)
)


def test_the_holder_of_most_of_the_time_is_named_with_what_it_ran_then() -> None:
    samples = Samples(np.array([0.5, 1.002, 1.007, 3.5]), np.array([3, 2, 2, 3], dtype=np.uint64))
    found = gil.held_by(
        WAITS,
        STACKS,
        {0x50: 7, 0x60: 8},
        {7: "thread pump"},
        lambda tid: (samples, NOBODY) if tid == 7 else (NO_SAMPLES, NOBODY),
    )
    assert found == {("work", "/a/train.py", 3): Holder("hog", "/a/train.py", 12, "thread pump")}


def test_a_holder_that_does_not_run_is_found_by_its_absence() -> None:
    blocked = absences((0.9, 1.2, 0, 0, 2), (1.5, 9.0, 0, 0, 3))
    found = gil.held_by(WAITS, STACKS, {0x50: 7}, {7: "thread pump"}, lambda _: (NO_SAMPLES, blocked))
    assert list(found.values()) == [Holder("hog", "/a/train.py", 12, "thread pump")]


def test_a_holder_that_nobody_knows_is_not_guessed() -> None:
    assert gil.held_by(WAITS, STACKS, {}, {}, lambda _: (NO_SAMPLES, NOBODY)) == {}
    found = gil.held_by(WAITS, STACKS, {0x50: 7}, {}, lambda _: (NO_SAMPLES, NOBODY))
    assert list(found.values()) == [Holder("", "", 0, "another thread")]


def test_the_looks_of_one_wait_are_one_activity_and_a_collection_is_taken_from_what_it_interrupts() -> None:
    steps = FoundSteps(np.array([0.0, 2.5, 5.0]), 1)
    collections = Scopes(np.array([0.2, 0.21, 2.7]), np.array([0.3, 0.25, 2.8]), np.zeros(3, dtype=np.int64))
    line = timeline.build(
        5.0, WAITS, NO_SCOPES, NO_SCOPES,
        file_kinds=np.empty(0, dtype=np.int64), edges_s=steps.edge_s, collections=collections,
    )  # fmt: skip
    assert float(line.seconds.sum()) == pytest.approx(5.0)
    times = np.arange(0.005, 5.0, 0.01)
    native = np.where(times < 1, 100, 200).astype(np.uint64)
    native[times > 4] = IN_KERNEL | 11
    samples = Samples(times, np.full(len(times), 2, dtype=np.uint64), native)
    labels = Words(
        STACKS,
        [],
        [],
        np.empty(0),
        np.empty(0),
        {("work", "/a/train.py", 3): HOLDER},
        {100: "at::add", 200: "memcpy", IN_KERNEL | 11: "kernel"},
    )
    found = {
        (p.function.name, p.function.detail): p
        for p in patterns.measure_thread(5.0, line, WAITS, samples, labels, steps, hz=100.0)
    }
    waited = found["gil", ""]
    assert waited.function.holder == HOLDER
    assert (waited.function.kind, waited.function.caller, waited.count) == ("sync", "work", 2)
    assert waited.total_s == pytest.approx(0.0119)
    collected = found["gc", "gc"]
    assert (collected.function.kind, collected.function.caller, collected.count, collected.mu) == (
        "python",
        "hog",
        2,
        1.0,
    )
    assert (collected.total_s, collected.per_step_s) == (pytest.approx(0.2), pytest.approx(0.1))
    running = found["hog", ""]
    assert running.total_s == pytest.approx(5.0 - 0.2 - 0.0119 - 1.0)
    assert running.native == "memcpy"
    assert running.kernel_share == pytest.approx(0.26, abs=0.02) and running.kernel_for == "munmap"
    assert collected.kernel_share is None and collected.kernel_for == ""
    assert collected.native == waited.native == ""


class Counted(dict[int, StackName]):
    """Stacks by number, with how often one was asked for."""

    asked = 0

    def get(self, key: int, default: StackName | None = None) -> StackName | None:  # type: ignore[override]
        self.asked += 1
        return super().get(key, default)


def test_the_absences_of_a_holder_are_weighed_together() -> None:
    """A thread that goes off the CPU as fast as it can must not make each of its absences cost a look at each wait."""
    start = np.arange(2000) / 1000
    blocked = absences(*((at, at + 0.0005, 0, 0, 2 + number % 2) for number, at in enumerate(start.tolist())))
    stacks = Counted(STACKS)
    found = gil.held_by(WAITS, stacks, {0x50: 7}, {7: "thread pump"}, lambda _: (NO_SAMPLES, blocked))
    assert len(found) == 1
    assert stacks.asked <= len(WAITS.start_s) + 2


@pytest.mark.parametrize("seed", range(20))
def test_a_blocked_holder_was_where_most_of_the_waiting_passed(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def stretches(count: int, syscall: int) -> Absences:
        edges = np.sort(rng.random(2 * count)).reshape(-1, 2)
        return absences(*((float(a), float(b), syscall, 0x50, 1 + int(rng.integers(1, 3))) for a, b in edges))

    waiting, blocked = stretches(30, GIL), stretches(40, 0)
    seconds = {HOG.name: 0.0, OTHER.name: 0.0}
    for a, b, stack in zip(blocked.start_s, blocked.end_s, blocked.stack.tolist(), strict=True):
        overlap = np.minimum(b, waiting.end_s) - np.maximum(a, waiting.start_s)
        seconds[STACKS[stack].name] += float(np.maximum(overlap, 0.0).sum())
    one_place = Absences(
        waiting.start_s, waiting.end_s, waiting.ready_s, waiting.syscall, waiting.argument, waiting.state,
        np.ones(30, dtype=np.uint64),
    )  # fmt: skip
    found = gil.held_by(one_place, STACKS, {0x50: 7}, {7: "thread pump"}, lambda _: (NO_SAMPLES, blocked))
    assert [holder.name for holder in found.values()] == [max(seconds, key=lambda name: seconds[name])]
