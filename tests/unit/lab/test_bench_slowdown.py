"""What the bench of the slow-down makes of its pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchkit.slowdown import Pair, more_cpu, predicted, slowdown

PAIR = Pair(False, 8, True, 4.0, 0.2, 0.2, 4_000, 0.032)


def pairs(count: int, factor: float, noise: float, seed: int = 0) -> list[Pair]:
    """A job whose pace drifts and wanders, as that of a virtual machine does."""
    rng = np.random.default_rng(seed)
    pace = 0.2 * np.exp(np.cumsum(0.02 * rng.standard_normal(count)))
    apart = np.exp(noise * rng.standard_normal(count))
    return [
        replace(PAIR, step_s=one, observed_step_s=one * factor * other)
        for one, other in zip(pace.tolist(), apart.tolist(), strict=True)
    ]


def test_a_fifth_of_a_percent_is_told_from_nothing_however_the_job_drifts() -> None:
    percent, half = slowdown(pairs(400, 1.006, 0.015))
    assert half < 0.2 and abs(percent - 0.6) < 2 * half


def test_the_interval_holds_the_truth_in_19_of_20_runs() -> None:
    held = sum(abs(percent) <= half for percent, half in (slowdown(pairs(30, 1.0, 0.02, seed)) for seed in range(200)))
    assert 180 <= held <= 200


def test_one_pair_says_nothing() -> None:
    assert slowdown([PAIR]) == (0.0, math.inf)


def test_what_is_expected_counts_each_hit_once() -> None:
    programs, traps = predicted([PAIR, PAIR], 10.0)
    assert programs == pytest.approx(0.1) and traps == pytest.approx(0.125)


def test_more_cpu_time_is_told_in_percent_of_the_step_however_the_job_drifts() -> None:
    observed = [
        replace(pair, cpu_s=0.05 * pair.step_s, observed_cpu_s=0.05 * pair.step_s + 0.003 * pair.step_s)
        for pair in pairs(20, 1.0, 0.05)
    ]
    percent, half = more_cpu(observed)
    assert percent == pytest.approx(0.3) and half < 0.01
