"""Distinct integers are found as numpy finds them, whether they lie close together or far apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rankscope.diagnose.stats.integers import distinct, one_of
from rankscope.probes.base.arrays import Ints


@given(
    arrays(np.int64, st.integers(0, 40), elements=st.integers(-5, 30))
    | arrays(np.int64, st.integers(0, 40), elements=st.integers(-(1 << 40), 1 << 40))
)
def test_it_is_numpys_unique(values: Ints) -> None:
    found, place = distinct(values)
    expected, where = np.unique(values, return_inverse=True)
    assert found.tolist() == expected.tolist()
    assert place.tolist() == where.reshape(-1).tolist()
    assert found.dtype == np.int64 and place.dtype == np.int64


@given(st.lists(st.integers(-5, 5)), st.lists(st.integers(-5, 5), max_size=4))
def test_one_of_a_few_is_what_numpy_says(values: list[int], few: list[int]) -> None:
    column = np.array(values, dtype=np.int64)
    assert one_of(column, few).tolist() == np.isin(column, few).tolist()
