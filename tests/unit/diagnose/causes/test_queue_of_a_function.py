"""On a host without idle CPUs who computes for longer also stands in the queue for longer: that time goes with the function."""

from __future__ import annotations

import builders
import pytest
from builders import BUSY, QUEUE, Job, build

from rankscope.diagnose.solve.judge import diagnose


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
