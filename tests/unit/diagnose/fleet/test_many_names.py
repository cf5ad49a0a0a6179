"""How many names of functions, frames and counters there are is chosen by whoever writes a window: none gets a matrix of its own."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import builders
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.fleet import roles as work
from rankscope.diagnose.infer.fleet.counters import Columns, Counters
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.labels import Labels
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.ports import ports
from rankscope.diagnose.infer.fleet.stacks import Stacks, merged
from rankscope.diagnose.infer.model.functions import Functions
from rankscope.diagnose.infer.past.baseline import function_medians
from rankscope.observer.window.stacks import StackFrame

RANKS, NAMES = 500, 2000  # a matrix of them: 8 megabytes


@contextmanager
def at_most(megabytes: float) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes * 1e6
    finally:
        tracemalloc.stop()


def fleet_of(names: int = NAMES, ranks: int = RANKS, kind: str = "python") -> Fleet:
    """One rank with this many functions, the others with the first of them."""
    fleet = gather(builders.build(builders.Job()))
    table, count = fleet.patterns, names + ranks - 1
    every = np.zeros(ranks, dtype=np.int64)

    def all_say(text: str) -> Labels:
        return Labels(np.zeros(count, dtype=np.int64), (text,))

    rows = np.zeros(count, dtype=np.int64)
    alike = replace(
        table,
        rank=np.append(np.zeros(names, dtype=np.int64), np.arange(1, ranks)),
        thread=all_say("training"),
        kind=all_say(kind),
        name=Labels(np.append(np.arange(names), np.zeros(ranks - 1, dtype=np.int64)), tuple(map(str, range(names)))),
        file=all_say("f.py"),
        line=rows,
        detail=all_say(""),
        caller=all_say(""),
        stack=Stacks.none(count),
        beta=np.append(np.full(names, 0.5), np.full(ranks - 1, 0.7)),
        count=rows + 1,
        per_step_s=np.arange(1.0, count + 1),
        sd_s=None,
        bytes=None,
        mu=None,
        sigma=None,
        holder=None,
        native=None,
    )
    return replace(fleet, ranks=fleet.ranks.taken(every), steps=fleet.steps.taken(every), patterns=alike)


def usual(fleet: Fleet) -> object:
    return Functions(fleet).functions(1, np.arange(RANKS))


@pytest.mark.parametrize("use", [function_medians, usual])
def test_what_few_ranks_do_has_a_median_of_0_and_no_room(use: Callable[[Fleet], object]) -> None:
    fleet = fleet_of()
    with at_most(5):
        use(fleet)


def test_medians_of_functions_are_those_of_all_ranks() -> None:
    fleet = fleet_of(names=3, ranks=6)
    found = {name: seconds for (_, name, _, _, _), seconds in function_medians(fleet).items()}
    assert found == {"0": 5.5, "1": 0.0, "2": 0.0}  # 1, 4, 5, 6, 7, 8
    even = fleet_of(names=3, ranks=2)
    assert list(function_medians(even).values()) == [2.5, 1.0, 1.5]


@pytest.mark.parametrize(("read", "kind"), [(work._by_function, "python"), (work._by_collectives, "collective")])
def test_of_more_functions_than_fit_beside_the_ranks_the_largest_tell_roles(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[Fleet], np.ndarray], kind: str
) -> None:
    fleet = fleet_of(kind=kind)
    monkeypatch.setattr(budgets, "CELLS_MOST", 10 * RANKS)
    with at_most(3):
        found = read(fleet)
    # THEN what all do is among them
    assert found.shape[1:] in ((), (10,)) and len(np.unique(found[1:], axis=0)) == 1
    assert found.ndim == 1 or found[1].max() == 0.7


def test_stacks_by_frames_have_room_or_tell_no_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN ranks each with stacks of its own, of frames of its own
    fleet = fleet_of(names=1, ranks=40)
    frames = tuple(StackFrame(f"f{number}", "f.py", 1) for number in range(40))
    stack = Stacks(np.arange(40), np.full(40, -1), np.arange(40), frames)
    fleet = replace(fleet, patterns=replace(fleet.patterns, stack=stack))
    assert work._inclusive(fleet) is not None
    # WHEN there is no room for stacks x frames
    monkeypatch.setattr(budgets, "CELLS_MOST", 40 * 40 - 1)
    assert work._inclusive(fleet) is None


def test_a_frame_counts_once_for_its_stack_however_deep_it_recurs() -> None:
    # GIVEN a > b > a > c on one rank, b > c on the others
    frames = tuple(StackFrame(name, "f.py", 1) for name in "abc")
    stack = Stacks(np.array([3, 5, 5]), np.array([-1, 0, 1, 2, -1, 4]), np.array([0, 1, 0, 2, 1, 2]), frames)
    fleet = fleet_of(names=1, ranks=3)
    fleet = replace(fleet, patterns=replace(fleet.patterns, stack=stack, beta=np.array([0.5, 0.25, 0.125])))
    found = work._inclusive(fleet)
    assert found is not None and found.tolist() == [[0.5, 0.5, 0.5], [0, 0.25, 0.25], [0, 0.125, 0.125]]


def test_counters_of_ports_cost_their_rows_whatever_they_are_called() -> None:
    # GIVEN as many ports as names of counters
    count = 600
    fleet = gather(builders.build(builders.Job()))
    rows, values = np.arange(count), np.arange(1.0, count + 1)
    same, other = Labels(np.zeros(count, np.int64), ("x",)), Labels(rows, tuple(f"port{row}" for row in rows))
    names = Labels(rows, ("nic.tx_bytes", "nic.rx_bytes", *(f"nic.{row}" for row in rows[2:])))
    columns = Columns(
        same, same, other, np.zeros(count, np.int64), names, same, same, values, values, values, values, same, rows
    )  # fmt: skip
    fleet = replace(fleet, counters=Counters(columns))
    with at_most(2):
        found = ports(fleet, "nic.")
        assert len(found) == count and found.value("nic.7")[7] == 8.0
        assert np.isfinite(found.value("nic.7")).sum() == np.isfinite(found.limit("nic.7")).sum() == 1
        assert found.bytes[:3].tolist()[:2] == [1.0, 2.0] and np.isnan(found.bytes[2])
        assert np.isnan(found.lowest("nic.none")).all()


@given(st.lists(st.tuples(st.integers(-1, 6), st.integers(0, 2)), max_size=12))
def test_each_stack_stands_once_and_says_what_it_said(nodes: list[tuple[int, int]]) -> None:
    parent = np.array([min(caller, at - 1) for at, (caller, _) in enumerate(nodes)], dtype=np.int64)
    frame = np.array([code for _, code in nodes], dtype=np.int64)
    frames = tuple(StackFrame(name, "a.py", 1) for name in "xyz")
    before = Stacks(np.arange(len(nodes)), parent, frame, frames)
    after = merged(before.codes, parent, frame, frames)
    said = [after.of(int(node)) for node in after.codes]
    assert said == [before.of(node) for node in range(len(nodes))]
    assert len({int(node) for node in after.codes}) == len(after.parent) == len({tuple(each) for each in said})
    assert (after.parent < np.arange(len(after.parent))).all()
