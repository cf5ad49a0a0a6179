"""Roles that work at once, or one after another: told by what makes steps longer."""

from __future__ import annotations

import numpy as np
import pytest

from rankscope.diagnose.infer.fleet.model import Slots
from rankscope.diagnose.infer.model.slots import alone_s
from rankscope.diagnose.infer.model.waiting import gain_in_turn, least_waiter_share, one_after_another
from rankscope.diagnose.stats.slopes import slopes
from rankscope.probes.base.arrays import Floats

ROLES = np.array([0, 1, 1])  # a learner, two actors


def worked(seed: int, steps: int = 200, actor_s: float = 0.010, learner_s: float = 0.015) -> tuple[Floats, Floats]:
    """(own, queued) of three ranks whose work and queue vary from step to step, ranks x steps, seconds."""
    rng = np.random.default_rng(seed)
    usual = np.array([learner_s, actor_s, actor_s])[:, None]
    work = usual * np.exp(rng.normal(0, 0.08, (3, steps)))
    queued = rng.exponential(0.003, (3, steps)) * (rng.random((3, steps)) < 0.6)
    return work + queued, queued


def in_turn(own: Floats, queued: Floats) -> Floats:
    """Steps of a learner that works when the actors have; half of its queue is while they work, and costs nothing."""
    return np.asarray(own[0] - 0.5 * queued[0] + own[1:].max(axis=0) + 0.001)


def at_once(own: Floats) -> Floats:
    return np.asarray(own.max(axis=0) + 0.012)


@pytest.mark.parametrize("seed", range(5))
def test_roles_that_work_one_after_another_are_told(seed: int) -> None:
    own, queued = worked(seed)
    assert one_after_another(own, queued, ROLES, in_turn(own, queued)) is True


@pytest.mark.parametrize("learner_s", [0.005, 0.010, 0.011, 0.030])
@pytest.mark.parametrize("seed", range(5))
def test_roles_that_work_at_once_never_are(seed: int, learner_s: float) -> None:
    own, queued = worked(seed, learner_s=learner_s)
    assert one_after_another(own, queued, ROLES, at_once(own)) is not True


@pytest.mark.parametrize("seed", range(5))
def test_what_has_no_room_in_a_step_is_not_in_turn(seed: int) -> None:
    own, queued = worked(seed)
    assert one_after_another(own, queued, ROLES, in_turn(own, queued) - 0.010) is False


def test_few_steps_tell_nothing() -> None:
    own, queued = worked(1, steps=11)
    assert one_after_another(own, queued, ROLES, in_turn(own, queued)) is None


def test_one_role_takes_no_turns() -> None:
    own, queued = worked(1)
    assert one_after_another(own, queued, np.zeros(3, dtype=np.int64), at_once(own)) is False


def test_steps_that_a_rank_does_not_have_are_left_out() -> None:
    own, queued = worked(2)
    step = in_turn(own, queued)
    own[0, :50], own[1:, 60:70], queued[2] = np.nan, np.nan, np.nan
    assert one_after_another(own, np.zeros_like(own), ROLES, step) in (True, None)
    assert np.isfinite(gain_in_turn(own, own * 0.9, ROLES))


def stays(learner: Floats, actors: Floats, at_once: bool) -> Slots:
    """Of a broadcast, for which the actors wait while the learner learns, and a gather, for which it waits while they act; of roles that
    work at once all meet once. Steps are known one in three."""
    stay = np.full((3, learner.size, 2), np.nan)
    for column in range(0, learner.size, 3):
        own = np.array([learner[column], *actors[:, column]])
        if at_once:
            stay[:, column] = np.stack([own.max() - own + 0.012, np.full(3, 0.001)], axis=1)
        else:
            stay[:, column, 0] = 0.0003, *(own[0] + own[1:].max() - own[1:])
            stay[:, column, 1] = own[1:].max(), 0.0001, 0.0001
    return Slots(stay, ("broadcast", "gather"), whole=False)


def test_of_roles_that_work_one_after_another_each_is_waited_for_alone() -> None:
    own, _ = worked(5)
    alone = alone_s(stays(own[0], own[1:], at_once=False), ROLES)
    assert alone is not None
    assert alone == pytest.approx([np.median(own[0]), np.median(own[1:].max(axis=0))], rel=0.1)
    # AND of such as work at once only one is
    alone = alone_s(stays(own[0] + 0.01, own[1:], at_once=True), ROLES)
    assert alone is not None and alone[0] > 0.005 and alone[1] == 0.0


def test_of_one_role_or_a_few_steps_nobody_says_who_waits_alone() -> None:
    own, _ = worked(6)
    assert alone_s(stays(own[0], own[1:], at_once=False), np.zeros(3, dtype=np.int64)) is None
    assert alone_s(stays(own[0, :12], own[1:, :12], at_once=False), ROLES) is None


def test_a_slow_actor_costs_what_it_is_longer_than_the_other() -> None:
    own, _ = worked(3)
    slow = own.copy()
    slow[2] += 0.008
    assert gain_in_turn(slow, own, ROLES) == pytest.approx((slow[1:].max(0) - own[1:].max(0)).mean(), rel=0.1)
    assert gain_in_turn(own, own, ROLES) == 0.0


def test_slopes_are_those_of_least_squares_and_no_outlier_moves_them() -> None:
    rng = np.random.default_rng(4)
    series = rng.normal(0, 1, (2, 400))
    value = 2.0 * series[0] - 0.5 * series[1] + 7.0 + rng.normal(0, 0.1, 400)
    value[::20] += 30.0
    found = slopes(series, value)
    assert found is not None
    assert found.slope == pytest.approx([2.0, -0.5], abs=0.03) and found.rest == pytest.approx(7.0, abs=0.03)
    total, error = found.sum_of(np.array([1.0, 1.0]))
    assert total == pytest.approx(1.5, abs=4 * error) and 0.002 < error < 0.03


def test_errors_of_slopes_are_those_of_repeated_experiments() -> None:
    rng = np.random.default_rng(5)
    series = rng.normal(0, 1, (2, 80))
    found = [slopes(series, series.sum(axis=0) + rng.normal(0, 1, 80)) for _ in range(300)]
    told = [each for each in found if each is not None]
    assert np.std([each.slope[0] for each in told]) == pytest.approx(
        float(np.mean([each.covariance[0, 0] for each in told]) ** 0.5), rel=0.25
    )


def test_series_that_cannot_be_told_apart_have_no_slopes() -> None:
    line = np.arange(50.0)
    assert slopes(np.array([line, 2 * line]), line) is None
    assert slopes(np.array([line, np.ones(50)]), line) is None
    assert slopes(np.array([line[:4], line[:4] ** 2]), line[:4]) is None


def test_a_step_in_which_several_ranks_wait_least_is_divided_among_them() -> None:
    wait = np.array([[0.0, 0.2, np.nan, 0.1], [0.0, 0.3, np.nan, np.nan], [0.4, 0.2, np.nan, 0.3]])
    assert least_waiter_share(wait).tolist() == [(0.5 + 0.5 + 0 + 1) / 4, 0.5 / 4, 0.5 / 4]
    assert least_waiter_share(wait[:, :0]).tolist() == [0, 0, 0]
