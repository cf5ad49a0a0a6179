"""Noise that wanders (autocorrelated own time, as on a busy host) looks like an onset, and must accuse nobody."""

from __future__ import annotations

import numpy as np
import pytest
from builders import BUSY, Job
from wandering import wandering

from rankscope.diagnose.solve.judge import diagnose


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
