"""Numbers of a column, of whatever kind: those that need no cast of Arrow's are the same as those that do."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rankscope.observer.window.store.columns import floats, ints


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()])
@pytest.mark.parametrize("parts", [1, 2])
def test_whole_numbers_are_64_bits_wide_and_absent_ones_minus_one(kind: pa.DataType, parts: int) -> None:
    known = pa.table({"n": pa.chunked_array([[7, 0, 120]] * parts, kind)})
    with_absent = pa.table({"n": pa.chunked_array([[7, None, 120]] * parts, kind)})
    assert ints(known, "n").tolist() == [7, 0, 120] * parts
    assert ints(with_absent, "n").tolist() == [7, -1, 120] * parts
    assert ints(known, "n").dtype == ints(with_absent, "n").dtype == np.int64


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.int32(), pa.uint64()])
@pytest.mark.parametrize("parts", [0, 1, 2])
def test_numbers_are_64_bits_wide_and_absent_ones_nan(kind: pa.DataType, parts: int) -> None:
    known = pa.table({"n": pa.chunked_array([[7, 0, 120]] * parts, kind)})
    with_absent = pa.table({"n": pa.chunked_array([[7, None, 120]] * parts, kind)})
    assert floats(known, "n").tolist() == [7.0, 0.0, 120.0] * parts
    np.testing.assert_array_equal(floats(with_absent, "n"), [7.0, np.nan, 120.0] * parts)
    assert floats(known, "n").dtype == floats(with_absent, "n").dtype == np.float64


def test_a_number_that_64_bits_cannot_hold_is_none() -> None:
    with pytest.raises(pa.ArrowInvalid):
        ints(pa.table({"n": pa.array([1 << 63], pa.uint64())}), "n")
