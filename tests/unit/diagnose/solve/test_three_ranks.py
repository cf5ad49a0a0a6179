"""Three ranks, two of them slow for different reasons: both are named, and the third never is."""

from __future__ import annotations

import pytest
from builders import ASLEEP, BUSY, READ, Job, Work, build

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict


def three(first: tuple[Work, float], second: tuple[Work, float], seed: int) -> Verdict:
    slow = {seed % 3: [first], (seed + 1) % 3: [second]}
    return diagnose(build(Job(ranks=3, hosts=3, extra={rank: list(work) for rank, work in slow.items()}, seed=seed)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_the_second_of_two_slow_ranks_is_named_beside_the_first(share: float, seed: int) -> None:
    verdict = three((BUSY, 0.1), (READ, share * 0.1), seed)
    said = [(suspect.component, suspect.ranks) for suspect in verdict.suspects]
    assert said == [("python", (seed % 3,)), ("storage", ((seed + 1) % 3,))]


@pytest.mark.parametrize("seed", range(5))
def test_each_is_compared_with_the_healthy_one_and_costs_its_part(seed: int) -> None:
    verdict = three((BUSY, 0.1), (ASLEEP, 0.06), seed)
    first, second = verdict.suspects
    assert (first.lost_seconds_per_step + second.lost_seconds_per_step) == pytest.approx(0.1, rel=0.2)
    assert second.lost_seconds_per_step / first.lost_seconds_per_step == pytest.approx(0.6, rel=0.25)
    stay = next(each for each in second.evidence if each.measure.startswith("time in collectives"))
    assert stay.peers == 1 and isinstance(stay.value, float) and stay.expected is not None
    assert stay.expected - stay.value == pytest.approx(0.06, rel=0.4)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("slow", "accused"), [(0.009, set()), (0.1, {1}), (0.4, {1})])
def test_beside_one_slow_rank_it_alone_is_accused_if_it_costs_enough(slow: float, accused: set[int], seed: int) -> None:
    verdict = diagnose(build(Job(ranks=3, extra={1: [(BUSY, slow)]}, noise=0.1, spread=0.02, seed=seed)))
    assert {rank for suspect in verdict.suspects for rank in suspect.ranks} == accused
