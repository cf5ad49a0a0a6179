"""Collectives side by side in the order of the job, whatever the ranks' own steps begin with, and what a late rank costs there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from builders import Job, build, columns
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.slots import gain, latest
from rankscope.observer.window.folder import Window
from rankscope.probes.base.arrays import Floats

OPS = ("allreduce", "alltoall", "allgather", "broadcast", "reduce_scatter")
TRANSFER_S = 0.004


@dataclass(frozen=True, slots=True)
class Ran:
    """A job that ran: when each rank came to each collective and when that ended, seconds; ranks x (steps · slots)."""

    slots: int
    came_s: Floats
    ended_s: Floats  # one per collective

    @property
    def stay_s(self) -> Floats:
        return self.ended_s - self.came_s

    @property
    def length_s(self) -> float:
        return float(self.ended_s[-1])


def run(work_s: Floats) -> Ran:
    """Every rank works (ranks x steps x slots, seconds) and waits for all the others, collective after collective."""
    flat = work_s.reshape(len(work_s), -1)
    came, ended, now = np.zeros_like(flat), np.zeros(flat.shape[1]), 0.0
    for number in range(flat.shape[1]):
        came[:, number] = now + flat[:, number]
        now = ended[number] = came[:, number].max() + TRANSFER_S
    return Ran(work_s.shape[2], came, ended)


def told(ran: Ran, begins_at: dict[int, int], missed: int = 0, queue_s: float = 0.0) -> Window:
    """The window of it. `begins_at`: at which collective the steps of a rank begin, 0 for others; `missed`: a rank whose first collective
    had begun before the window did; `queue_s`: what every stay holds besides, which is no waiting of the training thread."""
    ranks, count = ran.came_s.shape
    begin_s = np.concatenate(([0.0], ran.ended_s[:-1]))
    steps, collectives = [], []
    template = build(Job(ranks=ranks, steps=2))[0]
    row = template.steps.to_pylist()[0]
    for rank in range(ranks):
        first = begins_at.get(rank, 0)
        for step, start in enumerate(range(first, count - ran.slots + 1, ran.slots)):
            mine = slice(start, start + ran.slots)
            seconds, wait = float(ran.ended_s[mine][-1] - begin_s[start]), float(ran.stay_s[rank, mine].sum())
            steps.append(row | {"rank": rank, "step": step, "start_s": float(begin_s[start]), "seconds": seconds,
                                "own_s": seconds - wait, "wait_s": wait, "io_s": 0.0, "sched_s": 0.0, "sync_s": 0.0})  # fmt: skip
        for number in range(int(rank == missed and missed > 0), count):
            inside = number - first
            collectives.append({"rank": rank, "sequence": number - int(rank == missed and missed > 0),
                                "step": inside // ran.slots if inside >= 0 else -1, "slot": inside % ran.slots,
                                "op": OPS[number % ran.slots], "stay_s": float(ran.stay_s[rank, number]) + queue_s,
                                "bytes": 0})  # fmt: skip
    return columns(columns(template, "steps", steps), "collectives", collectives)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ranks=st.integers(4, 8), slots=st.integers(2, 5), where=st.integers(0, 4), begins=st.integers(0, 4),
    late_s=st.floats(0.02, 0.2), other_s=st.floats(0.0, 0.05), queue_s=st.floats(0.0, 0.05), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_late_rank_costs_what_the_job_is_shorter_without_it(
    ranks: int, slots: int, where: int, begins: int, late_s: float, other_s: float, queue_s: float, seed: int
) -> None:
    # GIVEN rank 1 is late at one collective, rank 2 at the next one, and the steps of rank 1 begin somewhere else
    rng = np.random.default_rng(seed)
    healthy = np.broadcast_to(rng.uniform(0.01, 0.05, slots), (ranks, 24, slots)).copy()
    healthy[2, :, (where + 1) % slots] += other_s
    slow = healthy.copy()
    slow[1, :, where % slots] += late_s * rng.uniform(0.9, 1.1, 24)
    ran, without = run(slow), run(healthy)
    fleet = gather([told(ran, {1: begins % slots}, queue_s=queue_s)])
    # THEN what it costs is what the simulated job is shorter without, however much of the waiting the sums of its steps hide
    assert fleet.slots is not None and len(fleet.slots.ops) == slots
    lost_s = (ran.length_s - without.length_s) / 24
    assert gain(fleet.slots, np.zeros(ranks, np.int64), np.array([1])) == pytest.approx(lost_s, rel=0.03, abs=1e-4)
    late = latest(fleet.slots, np.zeros(ranks, np.int64), 1)
    assert late is not None and late.op == OPS[where % slots]


def test_a_rank_that_missed_the_first_collective_has_the_same_ones_as_the_others() -> None:
    slow = np.full((4, 24, 3), 0.03)
    slow[1, :, 1] += 0.1
    fleet = gather([told(run(slow), {1: 1}, missed=3)])
    assert fleet.slots is not None and not fleet.slots.whole
    assert gain(fleet.slots, np.zeros(4, np.int64), np.array([1])) == pytest.approx(0.1, rel=0.01)
    assert gain(fleet.slots, np.zeros(4, np.int64), np.array([3])) == 0.0


def test_the_collectives_of_as_few_steps_as_are_judged_at_all_count() -> None:
    slow = np.full((4, 7, 3), 0.03)
    slow[1, :, 1] += 0.1
    fleet = gather([told(run(slow), {1: 1})])
    assert fleet.slots is not None
    assert gain(fleet.slots, np.zeros(4, np.int64), np.array([1])) == pytest.approx(0.1, rel=0.01)


def test_what_any_rank_keeps_the_others_waiting_is_no_loss() -> None:
    # GIVEN ranks alike, some other one of them last in each collective
    work = 0.05 * np.exp(np.random.default_rng(1).normal(0, 0.2, (6, 60, 4)))
    late = work.copy()
    late[1, :, 0] += 0.2
    fleets = [gather([told(run(each), {1: 2})]) for each in (work, late)]
    none, some = (gain(fleet.slots, np.zeros(6, np.int64), np.array([1])) if fleet.slots else -1 for fleet in fleets)
    # THEN one of them costs nothing to speak of, and one that is late what the job loses by it
    lost_s = (run(late).length_s - run(work).length_s) / 60
    assert 0 <= none < 0.005
    assert some == pytest.approx(lost_s, rel=0.03)


def test_ends_that_are_not_at_one_moment_are_no_loss() -> None:
    # GIVEN the others leave a collective 50 ms after the late rank, which waits for them in the next one
    slow = np.full((4, 24, 2), 0.03)
    slow[1, :, 0] += 0.12
    ran = run(slow)
    skewed = Ran(2, ran.came_s.copy(), ran.ended_s)
    window = told(skewed, {1: 1})
    rows = window.collectives.to_pylist()
    for row in rows:
        if row["rank"] != 1 and row["op"] == OPS[0]:
            row["stay_s"] += 0.05
        if row["rank"] == 1 and row["op"] == OPS[1]:
            row["stay_s"] += 0.05
    steps = window.steps.to_pylist()
    for row in steps:
        row["wait_s"] += 0.05
    fleet = gather([columns(columns(window, "collectives", rows), "steps", steps)])
    assert fleet.slots is not None and not fleet.slots.whole
    assert gain(fleet.slots, np.zeros(4, np.int64), np.array([1])) == pytest.approx(0.12, rel=0.01)


def test_stays_of_other_collectives_are_left_alone() -> None:
    window = told(run(late_at_first()), {1: 1})
    rows = window.collectives.to_pylist()
    rows = [row | {"op": "gather" if row["rank"] % 2 else row["op"]} for row in rows]
    assert gather([columns(window, "collectives", rows)]).slots is None


def test_of_stays_that_are_longer_than_all_waiting_counts_as_much_as_is_waited() -> None:
    # GIVEN collectives that overlap: each is under way for twice as long as anybody waits for it
    window = told(run(late_at_first()), {1: 1})
    rows = window.collectives.to_pylist()
    doubled = gather([columns(window, "collectives", [row | {"stay_s": 2 * row["stay_s"]} for row in rows])]).slots
    once = gather([window]).slots
    assert once is not None and once.part == 1
    # THEN half of it counts, and a rank that is late costs what it costs
    assert doubled is not None and not doubled.whole and doubled.part == pytest.approx(0.5, abs=0.05)
    assert np.nanmax(doubled.stay_s) == pytest.approx(2 * doubled.part * np.nanmax(once.stay_s), rel=0.01)
    costs = [gain(each, np.zeros(4, np.int64), np.array([1])) for each in (once, doubled)]
    assert costs[1] == pytest.approx(costs[0], rel=0.1)


def late_at_first() -> Floats:
    """Work of four ranks in 24 steps of two collectives, rank 1 late at the first one."""
    slow = np.full((4, 24, 2), 0.03)
    slow[1, :, 0] += 0.12
    return slow
