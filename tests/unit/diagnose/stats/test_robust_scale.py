"""One robust standard deviation, one split into two kinds: against scipy, statsmodels and hand-made values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import median_abs_deviation

from rankscope.diagnose import limits
from rankscope.diagnose.stats.mixture import best_split, two_kinds
from rankscope.diagnose.stats.robust import deviations, nan_median, robust_sd, robust_sd_of, robust_sd_of_others

TO_SD = 1.482602218505602  # 1 / (third quartile of the normal distribution)
HOLES = np.array([[1.0, 2.0, 4.0, 8.0, 16.0], [np.nan, 3.0, 5.0, np.nan, 11.0], [np.nan] * 5])


@pytest.mark.parametrize("axis", [0, 1])
def test_it_is_the_median_absolute_deviation_of_the_textbook(axis: int) -> None:
    values = np.random.default_rng(3).normal(0, 2, (41, 37))
    assert robust_sd(values, axis) == pytest.approx(median_abs_deviation(values, axis, scale=1 / TO_SD))
    values[5, 7:11] = np.nan
    expected = median_abs_deviation(values, axis, scale=1 / TO_SD, nan_policy="omit")
    assert robust_sd(values, axis) == pytest.approx(expected)


def test_of_normal_values_it_is_the_standard_deviation() -> None:
    assert robust_sd_of(np.random.default_rng(5).normal(7, 3, 10_007)) == pytest.approx(3, rel=0.03)


def test_nan_is_passed_over_and_nothing_warns(recwarn: pytest.WarningsRecorder) -> None:
    assert nan_median(HOLES, 1)[:2].tolist() == [4.0, 5.0] and np.isnan(nan_median(HOLES, 1)[2])
    assert robust_sd(HOLES, 1)[:2] == pytest.approx([TO_SD * 3, TO_SD * 2])
    assert np.isnan(deviations(HOLES, 1)[1, 0])
    assert robust_sd_of(HOLES[2]) == 0 and robust_sd_of(np.empty(0)) == 0
    assert not recwarn.list


def test_each_value_is_held_against_the_others_alone() -> None:
    values = np.array([1.0, 2.0, 4.0, 100.0])
    assert robust_sd_of_others(values) == pytest.approx([TO_SD * 2, TO_SD * 3, TO_SD, TO_SD])
    counted = np.array([True, True, True, False])
    assert robust_sd_of_others(values, counted)[3] == pytest.approx(TO_SD)
    many = np.arange(limits.PEERS_EXACT + 1.0)
    assert set(robust_sd_of_others(many)) == {robust_sd_of(many)}


def test_two_kinds_are_split_between_them() -> None:
    rng = np.random.default_rng(7)
    found = two_kinds(np.concatenate([rng.normal(1, 0.1, 61), rng.normal(3, 0.1, 23), [np.nan]]))
    assert found is not None and 1.3 < found.split < 2.7
    assert found.apart == pytest.approx(2, abs=0.1) and found.distance > 15
    noise = two_kinds(rng.normal(0, 1, 100_003))
    # 2 · 0.674 over 1.4826 · 0.399.
    assert noise is not None and noise.distance == pytest.approx(1.349 / 0.592, abs=0.05)
    assert two_kinds(np.ones(7)) is None and two_kinds(np.array([2.0])) is None
    assert best_split(np.array([1.0, 1.0, 5.0])) == 3.0
