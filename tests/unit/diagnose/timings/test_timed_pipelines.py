"""Timings of pipelines: the slow stage, the slow link, lengths and pauses are told from each other, by what they do to a 1F1B schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedules import Schedule

SIZES = pytest.mark.parametrize(("dp", "pp"), [(4, 4), (2, 4), (8, 3), (3, 2)])


@SIZES
@pytest.mark.parametrize("roles", [True, False])
def test_even_pipelines_are_healthy(dp: int, pp: int, roles: bool) -> None:
    verdict = Schedule(dp=dp, pp=pp, roles=roles).verdict()
    assert (verdict.status, verdict.suspects) == ("healthy", ())


@SIZES
def test_a_slow_rank_is_named_and_what_it_costs(dp: int, pp: int) -> None:
    job = Schedule(dp=dp, pp=pp, slow=(1, pp // 2))
    verdict = job.verdict()
    first = verdict.suspects[0]
    assert (first.component, first.cause, first.ranks) == ("gpu", "slow", (job.rank(1, pp // 2),))
    even = replace(job, slow=None).verdict()
    assert verdict.step_seconds is not None and even.step_seconds is not None
    assert first.lost_seconds_per_step == pytest.approx(verdict.step_seconds.p50 - even.step_seconds.p50, rel=0.15)


@SIZES
@pytest.mark.parametrize("stage", [0, -2])
def test_a_slow_link_is_named_by_the_ranks_at_its_ends(dp: int, pp: int, stage: int) -> None:
    stage %= pp - 1
    job = Schedule(dp=dp, pp=pp, link=(dp - 1, stage))
    verdict = job.verdict()
    assert [(s.component, s.cause) for s in verdict.suspects] == [("network", "slow-link")]
    assert verdict.suspects[0].ranks == (job.rank(dp - 1, stage), job.rank(dp - 1, stage + 1))
    even = replace(job, link=None).verdict()
    assert verdict.step_seconds is not None and even.step_seconds is not None
    assert verdict.suspects[0].lost_seconds_per_step == pytest.approx(
        verdict.step_seconds.p50 - even.step_seconds.p50, rel=0.15
    )


@pytest.mark.parametrize("pp", [4, 12])
def test_stages_are_put_in_order_by_their_numbers(pp: int) -> None:
    job = Schedule(dp=3, pp=pp, batches=16, link=(1, pp - 2))
    assert job.verdict().suspects[0].ranks == (job.rank(1, pp - 2), job.rank(1, pp - 1))


@SIZES
@pytest.mark.parametrize("seed", range(3))
def test_lengths_that_differ_by_micro_batch_are_an_imbalance(dp: int, pp: int, seed: int) -> None:
    job = Schedule(dp=dp, pp=pp, lengths=0.3, seed=seed)
    verdict = job.verdict()
    assert verdict.status == "imbalance" and [s.cause for s in verdict.suspects] == ["data-imbalance"]
    even = replace(job, lengths=0.0).verdict()
    assert verdict.step_seconds is not None and even.step_seconds is not None
    longer = verdict.step_seconds.p50 - 1.05 * even.step_seconds.p50  # such lengths are 1.046 on average
    # What is told is a mean, of lengths some of which are very long; these are medians.
    assert 0.6 * longer <= verdict.suspects[0].lost_seconds_per_step <= 1.25 * longer


@SIZES
@pytest.mark.parametrize("seed", range(3))
def test_garbage_collected_by_another_rank_in_each_step_is_named(dp: int, pp: int, seed: int) -> None:
    verdict = Schedule(dp=dp, pp=pp, pauses=0.15, pause_s=0.4, seed=seed).verdict()
    assert verdict.status == "fault"
    first = verdict.suspects[0]
    assert (
        (first.component, first.cause) == ("python", "gc")
        and first.function is not None
        and first.function.name == "gc"
    )
    assert len(first.ranks) >= 0.5 * dp * pp


@SIZES
def test_garbage_collected_by_one_rank_is_its_own(dp: int, pp: int) -> None:
    job = Schedule(dp=dp, pp=pp, paused=(1, 0), pause_s=0.5)
    first = job.verdict().suspects[0]
    assert (first.component, first.cause, first.ranks) == ("python", "gc", (job.rank(1, 0),))


def test_pauses_without_a_name_are_doubted_as_lengths() -> None:
    verdict = Schedule(dp=8, pp=1, pauses=0.15, pause_s=0.4, pauses_named=False).verdict()
    assert verdict.status == "imbalance" and verdict.suspects[0].confidence < 0.6
    assert any("looks like pauses" in evidence.measure for evidence in verdict.suspects[0].evidence)


@SIZES
def test_a_heavy_last_stage_is_by_design(dp: int, pp: int) -> None:
    job = Schedule(dp=dp, pp=pp, heavy_last=True)
    verdict = job.verdict()
    assert (verdict.status, [s.cause for s in verdict.suspects]) == ("imbalance", ["stage-imbalance"])
    assert verdict.suspects[0].ranks == tuple(job.rank(d, pp - 1) for d in range(dp))


@SIZES
def test_a_slow_rank_and_a_heavy_stage_that_hide_each_other_are_both_named_the_fault_first(dp: int, pp: int) -> None:
    job = Schedule(dp=dp, pp=pp, heavy_last=True, slow=(0, 0))
    verdict = job.verdict()
    assert [(s.component, s.cause) for s in verdict.suspects] == [("gpu", "slow"), ("workload", "stage-imbalance")]
    assert verdict.suspects[0].ranks == (job.rank(0, 0),)
    even = replace(job, heavy_last=False, slow=None).verdict()
    assert verdict.step_seconds is not None and even.step_seconds is not None
    both = sum(s.lost_seconds_per_step for s in verdict.suspects)
    assert both == pytest.approx(verdict.step_seconds.p50 - even.step_seconds.p50, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_lengths_of_sixteen_pipelines_need_not_fall_evenly_on_few_steps(seed: int) -> None:
    verdict = Schedule(dp=16, pp=4, lengths=0.4, seed=seed).verdict()
    assert verdict.status == "imbalance" and [s.cause for s in verdict.suspects] == ["data-imbalance"]
