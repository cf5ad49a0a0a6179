"""Counters as columns: what is asked for by name and rank is what a search through all rows would find."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.diagnose import xids
from rankscope.diagnose.infer.fleet.counters import Columns, Counters
from rankscope.diagnose.infer.fleet.labels import Labels
from rankscope.diagnose.infer.fleet.ports import classes, grown, peers_of

NAMES = ("nic.tx_bytes", "gpu.power_w", "gpu.lost", "never")


def some(seed: int, rows: int = 211) -> Counters:
    rng = np.random.default_rng(seed)
    text = Labels(rng.integers(0, 3, rows), ("a", "b", "c"))
    value = rng.normal(0, 1, rows)
    name = Labels(rng.integers(0, 3, rows), NAMES)
    return Counters(
        Columns(text, text, text, rng.integers(-1, 7, rows), name, text, text, value, value, value, value, text, np.full(rows, -1))
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_found_by_name_and_rank(seed: int) -> None:
    counters = some(seed)
    everything = list(counters)
    assert len(everything) == len(counters) == 211
    for name in NAMES:
        mine = [each for each in everything if each.name == name]
        assert sorted(each.value for each in counters.named(name)) == sorted(each.value for each in mine)
        assert (name in counters) == bool(mine)
        assert sorted(each.value for each in counters.moved(name)) == sorted(v.value for v in mine if v.value > 0)
        for ranks in (3, -1, 9, np.array([1, 5]), np.empty(0, np.int64)):
            wanted = set(np.atleast_1d(ranks).tolist())
            found = sorted(each.value for each in counters.of(name, ranks))
            assert found == sorted(each.value for each in mine if each.rank in wanted)
    assert counters.names("gpu.") == ("gpu.lost", "gpu.power_w")


def test_no_counters_at_all() -> None:
    nothing = Counters()
    assert (
        len(nothing) == 0 and not nothing.names() and not list(nothing.of("gpu.lost", 0)) and "gpu.lost" not in nothing
    )


def test_ports_are_compared_with_their_own_kind_and_without_themselves() -> None:
    values = np.array([10.0, 10.0, 2.0, 50.0, 50.0, np.nan])
    group = np.array([0, 0, 0, 1, 1, 1])
    middle, _, count = peers_of(values, group)
    assert middle.tolist() == [6.0, 6.0, 10.0, 50.0, 50.0, 50.0]
    assert count.tolist() == [2, 2, 2, 1, 1, 2]


def test_a_port_alone_has_no_peers() -> None:
    middle, _, count = peers_of(np.array([7.0]), np.array([0]))
    assert np.isnan(middle[0]) and count[0] == 0


@pytest.mark.parametrize(("slow", "kinds"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_few_ports_of_another_speed_are_no_kind_of_their_own(slow: int, kinds: int) -> None:
    capability = np.array([100.0] * slow + [400.0] * (8 - slow))
    assert len(np.unique(classes(capability))) == kinds


def test_events_must_be_many_and_far_above_the_peers() -> None:
    group = np.zeros(5, dtype=np.int64)
    assert grown(np.array([0, 0, 1, 0, 90.0]), group, 20).tolist() == [False, False, False, False, True]
    assert not grown(np.array([30.0, 20, 25, 40, 90]), group, 20).any()
    assert not grown(np.full(5, np.nan), group, 20).any()


def test_xids_are_told_apart_by_who_causes_them() -> None:
    for number in (13, 31, 32, 43, 45, 65, 68, 69):
        assert xids.by_application(number) and not xids.ends_ranks(number)
    for number in (48, 62, 79, 94, 95, 119):
        assert xids.ends_ranks(number) and not xids.by_application(number)
    assert xids.ends_application(31) and xids.ends_application(69) and not xids.ends_application(45)
    assert xids.means_lost(79) and xids.of_memory(94) and xids.of_nvlink(74)
    assert xids.meaning(9999)[1] == "warning" and not xids.ends_ranks(9999)
