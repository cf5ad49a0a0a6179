"""Links where processes wait for CPUs: rates are uneven whatever the network does, how long packets stand in a queue is not."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from builders import Job, build, columns
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.link import slow_flows
from rankscope.diagnose.infer.causes.link.shapers import tight_ends
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.model import Fleet, Flows
from rankscope.observer.window.folder import Window

_STEP_S, _TRANSFER_S, _STEPS = 0.2, 0.04, 80
_UNEVEN = {0: 6e6, 1: 40e6, 2: 5e6, 3: 12e6}  # by the number of the sending host, bytes/s: it was waiting for a CPU


def _sent(
    window: Window,
    round_trips: dict[tuple[int, int], float],
    rates: dict[int, float] = _UNEVEN,
    back: dict[int, float] | None = None,
) -> Fleet:
    """Flows of four hosts of a ring, 400 KB a step forwards and 100 KB back. `round_trips`: over the least, by sender and receiver;
    `rates`, and of what is sent back: by sender."""
    flows = []
    for source in range(4):
        for peer in ((source + 1) % 4, (source - 1) % 4):
            row = dict(next(row for row in window.flows.to_pylist() if row["sent_bytes"] > 1e6))
            forwards = peer == (source + 1) % 4
            sent, rate = (4e5 if forwards else 1e5) * _STEPS, (rates if forwards else rates | (back or {}))[source]
            row |= {"rank": 2 * source, "local": f"198.18.0.{10 + source}:4{source}{peer}", "sent_bytes": int(sent),
                    "peer": f"198.18.0.{10 + peer}:3{source}{peer}", "busy_s": sent / rate, "min_rtt_s": 1e-5,
                    "rtt_s": 1e-5 * round_trips.get((source, peer), 100.0), "retransmitted_bytes": 0}  # fmt: skip
            flows.append(row)
    return gather([columns(window, "flows", flows)])


@pytest.fixture
def window() -> Window:
    (window,) = build(Job(ranks=8, namespaces=4, steps=_STEPS))
    return window


def _named(fleet: Fleet) -> list[str]:
    found = slow_flows.judge(fleet, _STEPS, _STEP_S, _TRANSFER_S)
    return [f"{each.cause} {each.host}" for each in found]


def test_a_host_towards_which_and_from_which_packets_stand_longest_has_the_slow_link(window: Window) -> None:
    assert _named(_sent(window, {(0, 1): 1200.0, (1, 2): 1100.0})) == ["slow-link lab-host-1"]


def test_packets_that_stand_one_way_only_or_everywhere_name_no_link(window: Window) -> None:
    assert _named(_sent(window, {})) == []
    assert _named(_sent(window, {(0, 1): 1200.0})) == []
    assert _named(_sent(window, {(0, 1): 1200.0, (1, 2): 1100.0, (2, 3): 900.0})) == []


def test_a_pair_that_carries_little_is_slow_by_its_round_trips_and_not_the_networks_fault(window: Window) -> None:
    # Backwards it carries less than half of what others do.
    assert _named(_sent(window, {}, back={3: 2e5})) == []
    assert _named(_sent(window, {(3, 2): 900.0}, back={3: 2e5})) != []
    slow = {**_UNEVEN, 0: 4e5}
    assert _named(_sent(window, {}, slow)) == ["slow-link lab-host-0"]


def test_a_pair_that_carries_little_is_as_slow_as_its_round_trips_are_longer(window: Window) -> None:
    # A receiver that reads late acknowledges late: twice as long is no fifth of a rate.
    assert _named(_sent(window, {(3, 2): 260.0}, back={3: 2e5})) == []


def test_how_long_small_messages_take_to_be_read_hides_no_slow_host_from_those_that_carry_most(window: Window) -> None:
    # GIVEN a host both ways to and from which a ring sends three times slower, and standing in a queue three times longer
    trips = {
        (0, 1): 330.0,
        (1, 2): 340.0,
        (2, 3): 110.0,
        (3, 0): 60.0,
        (1, 0): 350.0,
        (2, 1): 340.0,
        (3, 2): 260.0,
        (0, 3): 540.0,
    }
    # AND acknowledgements of small messages back that all wait for who reads them
    slow = _sent(window, trips, {0: 6.3e6, 1: 6.5e6, 2: 18e6, 3: 26e6}, back={0: 3.2e6, 1: 4.5e6, 2: 5.8e6, 3: 6.3e6})
    # THEN
    assert _named(slow) == ["slow-link lab-host-1"]


def test_very_many_pairs_are_judged_soon_and_the_slow_end_among_them_named(window: Window) -> None:
    # GIVEN each of 60 addresses with each other, at uneven rates, and one that is slow both ways
    fleet, count = _sent(window, {}), 60
    source, peer = (each.reshape(-1) for each in np.meshgrid(np.arange(count), np.arange(count)))
    source, peer = source[source != peer], peer[source != peer]
    slow = (source == 7) | (peer == 7)
    rate = np.where(slow, 1e6, np.random.default_rng(0).uniform(1e8, 9e8, len(slow)))
    sent, trips = np.full(len(slow), 1e8), np.where(slow, 1e-2, 1e-5)
    names = [tuple(f"198.18.0.{each}" for each in end.tolist()) for end in (source, peer)]
    none = np.zeros(len(slow))
    flows = Flows(source % 8, *names, ("",) * len(slow), sent, sent, none, sent / rate, none, trips, none + 1e-5)
    began = time.process_time()
    found = slow_flows.judge(replace(fleet, flows=flows), _STEPS, _STEP_S, _TRANSFER_S)
    assert time.process_time() - began < 3
    assert [each.instance for each in found] == ["198.18.0.7"]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_a_shaper_is_tight_that_is_clearly_below_the_median_of_the_others(values: list[int]) -> None:
    found = tight_ends({str(place): float(value) for place, value in enumerate(values)})
    others = [values[:place] + values[place + 1 :] for place in range(len(values))]
    assert list(found) == [
        str(place) for place, rest in enumerate(others) if not rest or values[place] <= limits.MOST * np.median(rest)
    ]
