"""With few steps an error is itself not known well: Student's t and not the normal distribution says what is chance."""

from __future__ import annotations

import numpy as np
import pytest
from builders import BUSY, Job, build, columns, stalled, sure
from scipy import stats

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.excess import Differences, differences, strength, strength_of_many_steps
from rankscope.diagnose.infer.solve.judge import judge
from rankscope.diagnose.stats.robust import trimmed
from rankscope.diagnose.stats.student import chance, combined_freedom


def noisy(rng: np.random.Generator, ranks: int, steps: int, noise: float = 0.3, more: float = 0.0) -> Differences:
    own = 0.6 * np.exp(rng.normal(0, 0.02, (ranks, 1))) * np.exp(rng.normal(0, noise, (ranks, steps)))
    own[0] += more
    return differences(own, np.zeros(ranks, dtype=np.int64), 1.0)


def test_the_freedom_is_what_is_kept_and_independent_less_one() -> None:
    values = np.random.default_rng(3).normal(0, 1, (3, 20))
    values[1, 5:] = np.nan
    values[2, 2:] = np.nan
    # 20 values: 16 kept; 5: 3 kept; 2: both kept
    assert trimmed(values).freedom().tolist() == [15.0, 2.0, 1.0]
    assert trimmed(values).freedom(np.array([0.5, 0.0, 0.0]))[0] == pytest.approx(16 / 3 - 1)


def test_a_known_scale_takes_the_doubt_away() -> None:
    known, error = np.array([0.0, 1.0, 3.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    assert combined_freedom(known, error, np.full(5, 2.0)).tolist() == [2.0, 8.0, 200.0, 2.0**52, 1.0]


def test_chance_is_students_and_with_much_freedom_the_normal_one() -> None:
    z, freedom = np.array([4.0, 4.0, 4.0]), np.array([2.0, 15.0, 1e12])
    assert chance(z, freedom) == pytest.approx(stats.t.sf(4.0, freedom), rel=1e-9)
    assert chance(z, freedom)[2] == pytest.approx(stats.norm.sf(4.0), rel=1e-6)


def test_five_noisy_steps_accuse_fewer_healthy_ranks_than_the_normal_distribution_would() -> None:
    rng = np.random.default_rng(1)
    students = normal = 0
    for _ in range(400):
        found = noisy(rng, ranks=2, steps=5)
        students += bool(sure(found))
        normal += bool((strength_of_many_steps(found) >= limits.SCORE_LEAST + np.log(2)).any())
    assert 0 < students < 0.8 * normal


def test_a_rank_that_is_clear_in_five_steps_is_still_odd() -> None:
    # GIVEN steps that hardly vary: what counts is how far healthy ranks differ, and that is known
    found = noisy(np.random.default_rng(5), ranks=8, steps=5, noise=0.01, more=0.2)
    assert found.freedom[0] > 50
    assert sure(found) == [0]


def test_a_z_above_four_from_three_kept_values_proves_nothing() -> None:
    # GIVEN five steps of two ranks; what is known of their difference is known from these steps alone
    gap = np.array([0.5, 0.65, 0.3, 0.6, 0.35])
    found = differences(np.stack([10 + gap, np.full(5, 10.0)]), np.zeros(2, dtype=np.int64), 1.0)
    assert found.z[0] >= 4 and found.freedom[0] < 3
    assert found.excess_s[0] >= found.floor_s[0] and found.steady_s[0] >= 0.3 * found.excess_s[0]
    # THEN the normal distribution is sure (p = 3e-5 at most), and Student's is not: neither a fault nor health
    assert strength_of_many_steps(found)[0] > limits.SCORE_LEAST > strength(found)[0]


def test_what_few_steps_do_not_prove_is_unknown_and_not_healthy() -> None:
    # GIVEN ten and more steps, of which each depends on the one before; a rank is slower by less than a quarter of a step
    rng = np.random.default_rng(11)
    unproven = 0
    for seed in range(40):
        job = Job(ranks=2, steps=12, noise=0.0, spread=0.0, stalls=0.0, seed=seed, extra={1: [(BUSY, 0.03)]})
        (window,) = build(job)
        rows = window.steps.to_pylist()
        more = np.cumsum(rng.normal(0, 0.012, job.steps))
        for row in rows:
            row["own_s"] = max(row["own_s"] + (more[row["step"]] if row["rank"] == 1 else 0.0), 0.0)
        fleet = gather([columns(window, "steps", rows)])
        step_s = float(np.nanmedian(fleet.steps.seconds))
        found = differences(fleet.steps.own_s, np.zeros(2, dtype=np.int64), step_s)
        if strength_of_many_steps(found)[1] >= limits.SCORE_LEAST + np.log(2) > strength(found)[1]:
            unproven += 1
            verdict = judge(fleet)
            assert verdict.status != "healthy"
    assert unproven


def test_a_rank_for_which_all_wait_in_half_of_the_window_is_no_health_however_it_wanders() -> None:
    """A loader that reads ahead is late for seconds, and early for seconds: steps that tell as much as two would."""
    (window,) = build(Job(ranks=2, steps=48, noise=0.0, spread=0.0, stalls=0.0))
    verdict = judge(gather([stalled(window, 1, range(8, 36), 0.12)]))
    assert verdict.status == "unknown" and "rank 1" in verdict.notes[0].text


def test_what_to_record_is_longer_than_the_window_that_did_not_suffice() -> None:
    verdict = judge(gather(build(Job(ranks=4, steps=4, window_s=20.0))))
    assert verdict.status == "unknown" and "--window 40" in verdict.notes[0].text
