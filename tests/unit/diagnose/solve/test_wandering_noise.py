"""Noise that wanders (autocorrelated own time, as on a busy host) looks like an onset, and must accuse nobody."""

from __future__ import annotations

import numpy as np
import pytest
from builders import BUSY, Job, build, said
from wandering import wandering

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode


@pytest.mark.parametrize(("sd", "rho"), [(0.05, 0.8), (0.10, 0.8), (0.15, 0.6)])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_nobody_is_accused_where_the_noise_wanders(ranks: int, sd: float, rho: float) -> None:
    accused = [seed for seed in range(8) if diagnose([wandering(Job(ranks=ranks, seed=seed), sd, rho)]).suspects]
    assert accused == []


@pytest.mark.parametrize("seed", range(8))
def test_a_rank_whose_excess_wanders_but_is_always_there_is_named(seed: int) -> None:
    job = Job(ranks=4, steps=29, seed=seed, extra={1: [(BUSY, 0.3)]})
    verdict = diagnose([wandering(job, np.array([0.01, 0.25, 0.01, 0.01]), 0.95)])
    assert [suspect.ranks for suspect in verdict.suspects] == [(1,)], (verdict.suspects, verdict.notes)


@pytest.mark.parametrize("seed", range(8))
def test_one_noisy_rank_that_is_sometimes_as_quick_as_its_peers_is_not_accused(seed: int) -> None:
    noisy = wandering(Job(ranks=4, steps=29, seed=seed), np.array([0.01, 0.25, 0.01, 0.01]), 0.5)
    assert diagnose([noisy]).suspects == ()


def test_a_job_that_waits_for_a_rank_whose_steps_wander_too_much_to_prove_it_is_not_healthy() -> None:
    # GIVEN a rank of two that is slower by a third of a step on average, but whose steps are as good as three of their own
    job = Job(ranks=2, steps=38, seed=1, extra={0: [(BUSY, 0.1)]})
    verdict = diagnose([wandering(job, np.array([0.5, 0.02]), 0.9)])
    # THEN it is not accused, nor is the job called healthy: a longer window would tell
    assert (verdict.status, verdict.suspects) == ("unknown", ())
    assert said(verdict, NoteCode.UNPROVEN).startswith("rank 0 seems")


@pytest.mark.parametrize(("busy_s", "status"), [(28.0, "healthy"), (16.0, "unknown")])
@pytest.mark.parametrize("seed", range(3))
def test_steps_that_became_longer_by_what_strangers_make_uneven_are_no_doubt(
    seed: int, busy_s: float, status: str
) -> None:
    # GIVEN two ranks that compute for 8 of 20 s on two CPUs, strangers that take 12 s of these or none, and steps that end 11 % longer
    counters = [
        {"scope": "host", "name": "cpu.busy_s", "value": busy_s, "limit": 40.0},
        *({"rank": rank, "name": "cpu.process_run_s", "value": 8.0} for rank in range(2)),
    ]
    longer = {rank: [(BUSY, 0.025)] for rank in range(2)}
    job = Job(ranks=2, seed=seed, onset=0.5, extra=longer, counters=counters)
    verdict = diagnose(build(job))
    assert (verdict.status, verdict.suspects) == (status, ())
