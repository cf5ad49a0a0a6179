"""Medians of which blocks of ranks are tasks: those of all together, to the last bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rankscope.diagnose.infer.fleet.large import medians
from rankscope.diagnose.stats.robust import nan_median
from rankscope.probes.base.arrays import Floats, Ints, Singles


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and samples as of a million ranks, of 2,000."""
    monkeypatch.setattr(medians, "ROWS", 300)
    monkeypatch.setattr(medians, "_SAMPLE", 128)


def found(values: Singles, group: Ints) -> Floats:
    with ThreadPoolExecutor(2) as pool:
        [rows] = medians.medians([values], group, pool)
    return rows


def expected(values: Singles, group: Ints) -> Floats:
    return np.array([nan_median(values[group == one], 0) for one in range(int(group.max()) + 1)])


@pytest.mark.parametrize("ranks", [1999, 2000])
def test_they_are_those_of_all_together(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    values = rng.lognormal(0.0, 0.1, (ranks, 5)).astype(np.float32)
    values[rng.random(values.shape) < 0.2] = np.nan
    values[:, 3] = np.nan
    values[:, 4] = np.round(values[:, 4], 1)  # most are equal
    group = rng.choice(3, ranks, p=(0.7, 0.28, 0.02))
    np.testing.assert_array_equal(found(values, group), expected(values, group))


def test_a_sample_that_is_unlike_the_others_costs_time_and_nothing_else() -> None:
    values = np.linspace(1, 2, 2000, dtype=np.float32)[:, None].repeat(2, axis=1)
    values[np.linspace(0, 1999, 128).astype(np.int64)] = 9.0
    group = np.zeros(2000, dtype=np.int64)
    np.testing.assert_array_equal(found(values, group), expected(values, group))


def test_of_each_task_a_small_part_of_its_values_comes_back() -> None:
    values = np.random.default_rng(1).normal(size=(2000, 4)).astype(np.float32)
    sample = values[:128]
    part = medians._inside([values], np.zeros(2000, dtype=np.int32), [0], medians._bracket(sample)[:, None, None])
    assert sum(len(each) for each in part.inside[0][0]) < 0.5 * values.size
