"""On a host without idle CPUs who computes for longer also stands in the queue for longer: that time goes with the function."""

from __future__ import annotations

import builders
import pytest
from builders import ASLEEP, BUSY, QUEUE, Job, build

from rankscope.diagnose.infer.solve.judge import diagnose


def crowded(extra: dict[int, list[tuple[builders.Work, float]]], seed: int) -> Job:
    """Four ranks that stand in the queue for 150 ms of each step, about as long as they compute."""
    for rank in range(4):
        extra.setdefault(rank, []).append(
            (builders.Work("sched", "ready", 0, 110, detail="queue", caller="Linear.forward"), 0.15)
        )
    return Job(ranks=4, seed=seed, extra=extra)


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_function_that_also_queues_is_the_functions_fault(seed: int) -> None:
    verdict = diagnose(build(crowded({2: [(BUSY, 0.05), (QUEUE, 0.07)]}, seed)))
    first = verdict.suspects[0]
    assert (
        (first.component, first.ranks) == ("python", (2,))
        and first.function is not None
        and first.function.name == "augment"
    )
    assert first.lost_seconds_per_step == pytest.approx(0.12, rel=0.2)
    assert any("in the queue for a CPU meanwhile" in each.measure for each in first.evidence)


@pytest.mark.parametrize("seed", range(4))
def test_where_the_peers_hardly_queue_the_queue_is_the_cpus(seed: int) -> None:
    verdict = diagnose(build(Job(ranks=4, seed=seed, extra={2: [(BUSY, 0.02), (QUEUE, 0.10)]})))
    assert (verdict.suspects[0].component, verdict.suspects[0].ranks) == ("cpu", (2,))


def wanting(times: float, seed: int) -> Job:
    """A rank that waits 150 ms for another process, and stands in the queue for 200 ms of each step, its peers for 100; beside
    strangers. Its process has so many times the CPU of theirs."""
    made = Job(ranks=4, seed=seed, extra={rank: [(QUEUE, 0.1)] for rank in range(4)})
    made.extra[2] = [(QUEUE, 0.2), (ASLEEP, 0.15)]
    for rank in range(4):
        stood_s = sum(each for work, each in made.extra[rank] if work is QUEUE) * made.steps
        made.counters += [
            {"rank": rank, "name": "cpu.process_run_s", "value": 3.0 * (times if rank == 2 else 1.0)},
            {"rank": rank, "name": "cpu.taken_s", "comm": "backup-agent", "pid": 990, "value": stood_s},
        ]
    return made


@pytest.mark.parametrize("seed", range(4))
def test_who_waits_no_longer_for_a_second_of_cpu_than_its_peers_is_kept_from_none(seed: int) -> None:
    # WHEN its process wants as much CPU as its peers' THEN strangers take it from it more than from them
    named = {(one.component, one.ranks) for one in diagnose(build(wanting(1.0, seed))).suspects}
    assert named == {("cpu", (2,)), ("python", (2,))}
    # WHEN it wants twice as much THEN twice the queue is what that takes
    verdict = diagnose(build(wanting(2.0, seed)))
    assert [(one.component, one.ranks) for one in verdict.suspects] == [("python", (2,))]
    assert verdict.suspects[0].lost_seconds_per_step == pytest.approx(0.25, rel=0.15)


@pytest.mark.parametrize("seed", range(2))
def test_what_the_loaders_of_a_rank_want_of_the_cpu_is_wanted_by_the_rank(seed: int) -> None:
    # WHEN the process wants as much CPU as its peers', and its loaders as much again THEN twice the queue is what that takes
    made = wanting(1.0, seed)
    made.counters += [
        {"rank": rank, "name": "cpu.workers_run_s", "value": 3.0 if rank == 2 else 0.0} for rank in range(4)
    ]
    assert [(one.component, one.ranks) for one in diagnose(build(made)).suspects] == [("python", (2,))]


@pytest.mark.parametrize("seed", range(4))
def test_that_the_peers_queue_when_the_late_one_has_come_does_not_acquit_its_function(seed: int) -> None:
    # GIVEN a function that takes 300 ms on one rank, and peers that are woken together and queue for 220 ms, which the late one does not
    extra = {rank: [(BUSY, 0.3)] if rank == 2 else [(QUEUE, 0.22)] for rank in range(8)}
    verdict = diagnose(build(Job(ranks=8, steps=20, seed=seed, extra=extra)))
    # THEN it is named, though the rank is only 80 ms longer at it than they stand there
    first = verdict.suspects[0]
    assert (first.component, first.ranks) == ("python", (2,))
    assert first.function is not None and first.function.name == "augment"
    assert first.lost_seconds_per_step == pytest.approx(0.08, abs=0.03)
