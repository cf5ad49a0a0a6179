"""Medians of many rows that stay and few others: those of all together, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.diagnose.stats.beside import Medians
from rankscope.diagnose.stats.robust import nan_median


@pytest.mark.parametrize("unknown", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("many", [0, 1, 2, 7, 50, 51])
def test_they_are_those_of_all_together(many: int, unknown: float) -> None:
    rng = np.random.default_rng(many)
    rows = rng.normal(size=(many, 6)).round(1)  # some are equal
    rows[rng.random(rows.shape) < unknown] = np.nan
    asked = Medians(rows)
    for count in (0, 1, 2, 5, 60):
        few = rng.normal(rng.choice((-9.0, 0.0, 9.0)), 1.0, (count, 6)).round(1)
        few[rng.random(few.shape) < unknown / 2] = np.nan
        np.testing.assert_array_equal(asked.beside(few), nan_median(np.vstack([rows, few]), 0))


def test_what_stays_is_as_it_was_however_often_it_is_asked() -> None:
    rows = np.array([[3.0, np.nan], [1.0, 5.0], [2.0, 4.0]])
    asked = Medians(rows)
    assert [asked.beside(np.array([[9.0, 9.0]])).tolist() for _ in range(2)] == [[2.5, 5.0]] * 2
