"""The queue for a CPU beside earlier windows: it belongs to no place in the code, and who wants more CPU than before makes it longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import Job, Work, build

from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.past.demand import NO_DEMAND, demand_of, queue_of_demand_s
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict

RANKS = 4
PLACES = tuple(Work("sched", "ready", 0, 30 + 10 * at, detail="queue", caller=f"part_{at}") for at in range(6))


def crowded(seed: int, queue_s: float, wants_s: float, start: float = 1_760_000_000.0, lone: int | None = None) -> Job:
    """Ranks that stand in the queue so long per step, wherever they are woken, and want so much CPU. `lone`: one with a core of its own."""
    waits = {rank: [(work, queue_s / len(PLACES)) for work in PLACES] for rank in range(RANKS) if rank != lone}
    made = Job(ranks=RANKS, seed=seed, start=start, extra=waits)
    made.counters += [
        {"rank": rank, "name": "cpu.process_run_s", "value": wants_s * made.steps} for rank in range(RANKS)
    ]
    return made


def judged(seed: int, queue_s: tuple[float, float], wants_s: tuple[float, float], lone: int | None = None) -> Verdict:
    """`queue_s`, `wants_s`: before and now."""
    before = crowded(seed + 100, queue_s[0], wants_s[0], 1_759_990_000.0, lone)
    return diagnose(build(crowded(seed, queue_s[1], wants_s[1], lone=lone)), build(before))


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_that_grew_in_many_places_is_the_cpus(seed: int) -> None:
    first = judged(seed, (0.01, 0.08), (0.06, 0.06)).suspects[0]
    assert (first.component, first.cause, first.ranks) == ("cpu", "contended", tuple(range(RANKS)))


@pytest.mark.parametrize("seed", range(3))
def test_a_queue_that_grew_as_what_the_ranks_want_is_not_the_cpus(seed: int) -> None:
    # GIVEN ranks that share a core, one with a core for itself, all of which want 60 % more than before
    found = judged(seed, (0.15, 0.24), (0.05, 0.08), lone=0).suspects
    assert not [each for each in found if each.component == "cpu"]
    # WHEN they want no more, and stand in the queue as long THEN these ranks are kept from the CPU
    found = judged(seed, (0.15, 0.24), (0.05, 0.05), lone=0).suspects
    assert [each.component for each in found] and {each.component for each in found} == {"cpu"}


def test_no_more_is_told_than_the_queue_grew() -> None:
    before, now = (gather(build(crowded(1, queue_s, wants_s))) for queue_s, wants_s in ((0.1, 0.05), (0.12, 0.5)))
    own = now.steps.sched_s.mean(axis=1) - before.steps.sched_s.mean(axis=1)
    assert np.all(queue_of_demand_s(now, demand_of([before])) <= np.maximum(own, 0.0) + 0.01)
    assert np.all(queue_of_demand_s(now, NO_DEMAND) == 0)
    assert np.all(queue_of_demand_s(before, demand_of([now])) == 0)  # who wants less makes none


def test_a_rank_that_was_not_there_before_makes_none() -> None:
    before, now = (gather(build(crowded(1, queue_s, wants_s))) for queue_s, wants_s in ((0.1, 0.05), (0.2, 0.1)))
    renumbered = replace(before, ranks=replace(before.ranks, number=np.array([0, 1, 2, 9])))
    assert np.all(queue_of_demand_s(now, demand_of([before])) > 0.05)
    assert queue_of_demand_s(now, demand_of([renumbered]))[3] == 0
