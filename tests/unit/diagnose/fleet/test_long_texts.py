"""Names that others choose are as long as they are themselves, and no other name is longer for it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import builders
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnose.infer.fleet.gather import _hosts, gather
from rankscope.diagnose.infer.fleet.labels import distinct_texts
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.roles import roles
from rankscope.diagnose.infer.fleet.roll_call import RollCall, jobs_in
from rankscope.diagnose.infer.model.busy_host import taken_s
from rankscope.observer.window.store.summary import WINDOW

COUNT, LONGEST = 1000, 4096  # as an array of numpy's 16 megabytes
LONG = ("x" * LONGEST, *(f"name {number}" for number in range(COUNT - 1)))


@given(st.lists(st.text(st.characters(exclude_characters="\0"), max_size=3)))
def test_distinct_texts_are_those_of_numpy(texts: list[str]) -> None:
    found, place = distinct_texts(texts)
    expected, of_each = np.unique(np.array(texts, dtype=str), return_inverse=True)
    assert found == tuple(expected.tolist())
    np.testing.assert_array_equal(place, of_each.reshape(-1))


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    few = gather(builders.build(builders.Job()))
    rows = np.zeros(COUNT, dtype=np.int64)
    ranks = replace(few.ranks.taken(rows), role=LONG, observed_on=LONG)
    return replace(few, ranks=ranks, steps=few.steps.taken(rows))


def hosts_of(fleet: Fleet) -> object:
    like = builders.build(builders.Job())[0].manifest
    return _hosts(fleet.ranks, [replace(like, host=name) for name in LONG])


def jobs_of(fleet: Fleet) -> object:
    window = builders.build(builders.Job())[0]
    table = {"job": ["job"] * COUNT, "title": list(LONG), WINDOW: np.zeros(COUNT, np.int32)}
    return jobs_in(RollCall((window.manifest,), pa.table(table)))


@pytest.mark.parametrize("use", [roles, taken_s, hosts_of, jobs_of])
def test_one_long_name_costs_its_own_room_alone(fleet: Fleet, use: Callable[[Fleet], object]) -> None:
    tracemalloc.start()
    try:
        use(fleet)
        assert tracemalloc.get_traced_memory()[1] < 12e6
    finally:
        tracemalloc.stop()
