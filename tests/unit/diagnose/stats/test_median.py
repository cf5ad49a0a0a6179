"""The median of all values together is numpy's, without its warnings."""

from __future__ import annotations

import warnings

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from rankscope.diagnose.stats.robust import median
from rankscope.probes.base.arrays import Reals


@given(
    arrays(np.float64, array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=9), elements=st.floats(-1e6, 1e6))
    | arrays(np.float64, st.integers(0, 9), elements=st.floats(width=16))
    | arrays(np.int64, st.integers(0, 9), elements=st.integers(-5, 1 << 40))
    | arrays(np.bool_, st.integers(0, 9))
)
@example(np.array([-0.0]))
def test_it_is_numpys_median(values: Reals) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = median(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = float(np.median(values))
    np.testing.assert_equal(found + 0.0, expected + 0.0)  # of a zero the sign is nobody's
