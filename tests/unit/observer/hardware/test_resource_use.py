"""Trimming keeps the transfer and drops the waiting; μ and σ tell a slow link from the peers that wait for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.observer.thread.resource_use import SHARE, executions, measure, trim

SAMPLES = st.lists(st.one_of(st.just(0.0), st.floats(0.01, 1.0)), min_size=1, max_size=61)


def longest_idle(use: np.ndarray) -> int:
    longest = run = 0
    for value in use:
        run = run + 1 if value <= 0 else 0
        longest = max(longest, run)
    return longest


@given(SAMPLES)
@settings(max_examples=307, deadline=None)
def test_what_is_kept_holds_its_share_and_no_piece_with_shorter_idle_runs_does(values: list[float]) -> None:
    use = np.array(values)
    kept = use[trim(use)]
    if not (use > 0).any():
        assert len(kept) == 0
        return
    assert kept[0] > 0 and kept[-1] > 0
    assert kept.sum() >= SHARE * use.sum() * (1 - 1e-9)
    worst = longest_idle(kept)
    for start in range(len(use)):
        for stop in range(start + 1, len(use) + 1):
            if longest_idle(use[start:stop]) < worst:
                assert use[start:stop].sum() < SHARE * use.sum() * (1 + 1e-9)


@given(SAMPLES, st.integers(0, 29), st.integers(0, 29))
@settings(max_examples=97, deadline=None)
def test_waiting_before_and_after_changes_nothing(values: list[float], before: int, after: int) -> None:
    use = np.array(values)
    padded = np.concatenate((np.zeros(before), use, np.zeros(after)))
    assert padded[trim(padded)].tolist() == use[trim(use)].tolist()


@given(SAMPLES, st.floats(0.01, 100.0))
@settings(max_examples=97, deadline=None)
def test_the_unit_of_utilisation_does_not_matter(values: list[float], unit: float) -> None:
    use = np.array(values)
    one, other = measure([(use, np.ones(len(use)))]), measure([(use * unit, np.ones(len(use)))])
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert (other.mu, other.sigma) == pytest.approx((one.mu * unit, one.sigma * unit), abs=1e-9)


def test_a_late_start_does_not_dilute_the_transfer() -> None:
    use = np.concatenate((np.zeros(211), np.full(89, 0.9), np.zeros(7)))
    found = measure([(use, np.full(len(use), 0.001))])
    assert found is not None
    assert (found.mu, found.sigma, found.executions) == (pytest.approx(0.9), pytest.approx(0.0, abs=1e-9), 1)
    assert found.seconds == pytest.approx(0.089)


def test_a_slow_link_is_low_and_flat_its_peers_burst_and_wait() -> None:
    slow = np.full(112, 0.25)
    peers = np.tile([1.0, 0.0, 0.0, 0.0], 28)
    length = np.full(112, 0.001)
    culprit, victim = measure([(slow, length)]), measure([(peers, length)])
    assert culprit is not None and victim is not None
    assert culprit.mu == pytest.approx(victim.mu, abs=0.01)
    assert culprit.sigma == pytest.approx(0.0) and victim.sigma > 0.4
    assert (culprit.moving, victim.moving) == (pytest.approx(0.25), pytest.approx(1.0))


def test_long_pauses_part_executions_short_ones_do_not() -> None:
    use = np.concatenate((np.ones(13), np.zeros(5), np.ones(13), np.zeros(31), np.ones(17), np.zeros(3)))
    assert [(part.start, part.stop) for part in executions(use, most_idle=7)] == [(0, 31), (62, 79)]
    assert executions(np.zeros(11), most_idle=7) == []


def test_nothing_that_moved_is_none_and_unknown_samples_are_left_out() -> None:
    assert measure([]) is None
    assert measure([(np.zeros(5), np.ones(5)), (np.full(3, np.nan), np.ones(3))]) is None
    found = measure([(np.array([np.nan, 0.5, 0.5, np.nan]), np.array([1.0, 1.0, 1.0, 0.0]))])
    assert found is not None and found.mu == pytest.approx(0.5)
