"""Healthy fleets: nobody may be accused, however noisy they are."""

from __future__ import annotations

import pytest
from builders import Job, build, codes, hogged, slow_python

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import ACQUITTED


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.10, 0.15])
@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16])
def test_nobody_is_accused_in_a_noisy_healthy_fleet(noise: float, ranks: int) -> None:
    for seed in range(5):
        job = Job(ranks=ranks, noise=noise, seed=1000 * ranks + seed, stalls=0.03, namespaces=2 if ranks > 3 else 1)
        verdict = diagnose(build(job))
        assert (verdict.status, verdict.suspects) == ("healthy", ()), (seed, verdict.suspects)
        assert verdict.exit_code == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_few_steps_accuse_nobody_either(seed: int) -> None:
    verdict = diagnose(build(Job(steps=7, noise=0.15, seed=seed)))
    assert not verdict.suspects


@pytest.mark.parametrize("seed", range(5))
def test_slow_flows_that_cost_nothing_accuse_no_link(seed: int) -> None:
    # GIVEN a link at a tenth of its rate that carries next to nothing
    job = Job(namespaces=4, slow_links={"198.18.0.11": 0.1}, sent_bytes=2e5, seed=seed)
    assert not diagnose(build(job)).suspects


@pytest.mark.parametrize("make", [slow_python, hogged])
def test_an_excess_below_the_effect_floor_is_nobodys_fault(make) -> None:  # type: ignore[no-untyped-def]
    for seed in range(5):
        assert diagnose(build(make(3, 0.004, seed=seed))).status == "healthy"


def test_a_rank_for_which_nobody_waits_is_not_accused() -> None:
    # GIVEN a rank whose own time is long by the book while its peers do not wait for it
    import builders

    window = build(Job())[0]
    rows = window.steps.to_pylist()
    for row in rows:
        if row["rank"] == 3:
            row["own_s"] += 0.1
    verdict = diagnose([builders.columns(window, "steps", rows)])
    assert not verdict.suspects
    assert ACQUITTED & set(codes(verdict))
