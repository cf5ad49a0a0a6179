"""The detector of shifts in a series that never ends, and of pauses in it."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.diagnose.stats.change import KEPT, LEARNT, RUN, Change, ChangeDetector, State, learn
from rankscope.probes.base.arrays import Floats


def noise(count: int, share: float = 0.02, seed: int = 0) -> Floats:
    return np.asarray(np.exp(share * np.random.default_rng(seed).standard_normal(count)), dtype=np.float64)


def states(changes: list[Change]) -> list[State]:
    return [change.state for change in changes]


def test_healthy_steps_of_a_day_raise_no_alarm() -> None:
    assert ChangeDetector().feed(noise(86400)) == []


@pytest.mark.parametrize("seed", range(8))
def test_a_tenth_more_is_told_within_ten_steps_at_two_percent_noise(seed: int) -> None:
    values = noise(2000, seed=seed)
    values[1500:] *= 1.1
    (change,) = ChangeDetector().feed(values)
    assert change.state is State.HIGHER
    assert 1500 <= change.at < 1510
    assert abs(change.since - 1500) <= 3
    assert change.before == pytest.approx(1.0, rel=0.01)
    assert change.after == pytest.approx(1.1, rel=0.03)


def test_portions_make_no_difference() -> None:
    values = noise(3000)
    values[2000:2400] *= 1.15
    whole, piecewise = ChangeDetector(), ChangeDetector()
    told = [change for value in values for change in piecewise.feed(np.array([value]))]
    assert whole.feed(values) == told
    assert states(told) == [State.HIGHER, State.BACK]


def test_what_was_told_is_told_again_when_it_is_over() -> None:
    values = noise(3000)
    values[2000:2200] *= 1.3
    higher, back = ChangeDetector().feed(values)
    assert (higher.state, back.state) == (State.HIGHER, State.BACK)
    assert 2200 <= back.at < 2210
    assert back.before == pytest.approx(1.3, rel=0.03)
    assert back.after == pytest.approx(1.0, rel=0.03)


def test_a_few_short_values_are_not_the_end_of_a_shift() -> None:
    values = noise(3000)
    values[2000:2300] *= 1.5
    values[2100 : 2100 + RUN] = 0.2
    higher, back = ChangeDetector().feed(values)
    assert (higher.state, back.state) == (State.HIGHER, State.BACK)
    assert 2300 <= back.at < 2310


def test_what_stays_becomes_the_baseline_and_the_next_shift_is_told_against_it() -> None:
    values = noise(6000)
    values[2000:] *= 1.2
    values[4500:] *= 1.2
    told = ChangeDetector().feed(values)
    assert states(told) == [State.HIGHER, State.STAYS, State.HIGHER, State.STAYS]
    assert told[2].before == pytest.approx(1.2, rel=0.02)


def test_a_run_of_few_long_values_is_no_shift_however_long_they_are() -> None:
    values = noise(3000)
    values[2000 : 2000 + RUN - 1] *= 50
    assert ChangeDetector().feed(values) == []


def test_pauses_that_repeat_are_masked_once_they_are_known() -> None:
    """Seven long values every 300: too many to be passed over as outliers."""
    values = noise(6000)
    for begin in range(290, 6000, 300):
        values[begin : begin + 7] *= 3
    told = [change for change in ChangeDetector().feed(values) if change.state is State.HIGHER]
    assert len(told) <= 3
    assert all(change.at < 1300 for change in told)


def test_a_shift_beside_known_pauses_is_told() -> None:
    values = noise(4000)
    values[99::100] *= 10
    values[3030:] *= 1.1
    (change,) = ChangeDetector().feed(values)
    assert 3030 <= change.at < 3042


def test_a_job_that_becomes_faster_is_learnt_anew_without_a_word() -> None:
    values = noise(4000)
    values[1500:] *= 0.6
    values[3000:] *= 1.2
    (change,) = ChangeDetector().feed(values)
    assert 3000 <= change.at < 3010
    assert change.before == pytest.approx(0.6, rel=0.02)


def test_nothing_is_told_before_enough_is_learnt() -> None:
    values = noise(LEARNT)
    values[LEARNT // 2 :] *= 3
    assert ChangeDetector().feed(values) == []


def test_slow_drift_is_followed() -> None:
    values = noise(40000) * np.linspace(1.0, 1.5, 40000)
    assert ChangeDetector().feed(values) == []


def test_autocorrelation_widens_what_counts_as_noise() -> None:
    rng = np.random.default_rng(3)
    white = rng.standard_normal(KEPT)
    wandering = np.zeros(KEPT)
    for at in range(1, KEPT):
        wandering[at] = 0.9 * wandering[at - 1] + np.sqrt(1 - 0.81) * white[at]
    alone, together = learn(0.03 * white), learn(0.03 * wandering)
    assert alone.long_run < 0.05
    assert together.long_run > 0.08  # 0.03 sqrt(1.9 / 0.1) = 0.13


def test_a_level_that_wanders_by_itself_asks_for_more() -> None:
    """± 1.5 % for some hundred steps at a time is what this series does; 3 % more is not yet an alarm."""
    rng = np.random.default_rng(5)
    level = np.repeat(rng.normal(0, 0.015, 200), 300)
    assert ChangeDetector().feed(np.exp(level + 0.01 * rng.standard_normal(len(level)))) == []


def test_a_second_fault_beside_a_small_first_one_is_told_and_drift_only_when_it_has_doubled() -> None:
    about = noise(1300, seed=5)
    level = np.concatenate([np.full(400, 0.1), np.full(200, 0.111), np.full(100, 0.16), np.full(200, 0.111)])
    told = ChangeDetector().feed(level * about[:900])
    assert [each.state for each in told] == [State.HIGHER, State.HIGHER, State.BACK, State.HIGHER]
    first, again, back, _ = told
    assert 600 <= again.since <= 602 and again.at <= 612
    assert again.before == first.before and again.after > 1.5 * again.before
    assert back.before == again.after
    drift = 0.1 * np.exp(np.concatenate([np.zeros(400), np.linspace(0.0, 0.4, 900)]))
    assert len(ChangeDetector().feed(drift * about)) <= 5
    one_by_one = ChangeDetector()
    assert [change for value in level * about[:900] for change in one_by_one.feed(np.array([value]))] == told
