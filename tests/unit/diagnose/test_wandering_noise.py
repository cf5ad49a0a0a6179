"""Noise that wanders (autocorrelated own time, as on a busy host) looks like an onset, and must accuse nobody."""

from __future__ import annotations

import numpy as np
import pytest
from builders import BUSY, Job, build, columns

from rankscope.diagnose.solve.judge import diagnose
from rankscope.observer.window.folder import Window


def wandering(job: Job, sd: float | np.ndarray, rho: float) -> Window:
    """The job's only window with own times multiplied by exp(AR(1)), of all ranks alike or each of its own sd; patterns stay."""
    window, rng = build(job)[0], np.random.default_rng(job.seed + 5)
    drift = np.zeros((job.ranks, job.steps))
    for step in range(job.steps):
        before = drift[:, step - 1] if step else np.zeros(job.ranks)
        drift[:, step] = rho * before + rng.normal(0, sd * np.sqrt(1 - rho**2), job.ranks)
    rows = window.steps.to_pylist()
    own = np.zeros((job.ranks, job.steps))
    transfer = np.full(job.steps, np.inf)
    for row in rows:
        own[row["rank"], row["step"]] = row["own_s"] * np.exp(drift[row["rank"], row["step"]])
        transfer[row["step"]] = min(transfer[row["step"]], row["wait_s"])
    total = own.max(axis=0) + transfer
    start = np.concatenate(([0.0], np.cumsum(total)[:-1]))
    for row in rows:
        mine = own[row["rank"], row["step"]]
        row |= {
            "own_s": mine,
            "seconds": total[row["step"]],
            "wait_s": total[row["step"]] - mine,
            "start_s": start[row["step"]],
        }
    return columns(window, "steps", rows)


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
