"""What the bench of synthetic fleets says of its cost."""

from __future__ import annotations

import pytest

from benchkit.diagnose_fleets import Score, exponent


def judged(ranks: int, cpu_s: float) -> Score:
    return Score(ranks, 0.05, 1, {"ours": (1, 1, 1)}, 1, ((0.9, True),), 2 * cpu_s, cpu_s, 1e9)


def test_the_exponent_is_of_cpu_time_over_ranks() -> None:
    assert exponent([judged(10_000, 0.7), judged(100_000, 7.0), judged(1_000_000, 70.0)]) == pytest.approx(1.0)
    assert exponent([judged(10_000, 0.7), judged(100_000, 70.0)]) == pytest.approx(2.0)


def test_of_one_size_and_of_small_fleets_there_is_no_exponent() -> None:
    assert exponent([judged(100_000, 7.0), judged(100_000, 8.0)]) is None
    assert exponent([judged(1_000, 0.2), judged(100_000, 8.0)]) is None
