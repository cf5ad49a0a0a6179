"""What the sums of a step hide where ranks meet several times in it: held against jobs that run collective by collective."""

from __future__ import annotations

import numpy as np
import pytest
from builders import Job, build, columns

from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.replay import shrink, unmet_s
from rankscope.probes.base.arrays import Floats

RANKS, STEPS = 8, 400
LATE = 0.3


def work(collectives: int, seed: int) -> Floats:
    """Seconds of healthy ranks before each collective, a second per step in all: ranks x steps x collectives."""
    rng = np.random.default_rng(seed)
    return rng.normal(1 / collectives, 0.1 / np.sqrt(collectives), (RANKS, STEPS, collectives))


def step_s(ranks: Floats) -> float:
    """As long as the sum of the longest in each collective."""
    return float(ranks.max(axis=0).sum(axis=1).mean())


def by_sums(slow: Floats, healthy: Floats) -> float:
    return shrink(slow.sum(axis=2), healthy.sum(axis=2), whole=True)


@pytest.mark.parametrize("collectives", [1, 2, 4, 12])
def test_a_rank_that_is_late_at_one_of_several_collectives_costs_what_the_sums_hide_too(collectives: int) -> None:
    healthy = work(collectives, collectives)
    slow = healthy.copy()
    slow[3, :, 0] += LATE
    true_s, sums_s = step_s(slow) - step_s(healthy), by_sums(slow, healthy)
    hidden_s = unmet_s(np.delete(healthy.sum(axis=2), 3, axis=0), np.array([LATE]), collectives)
    # THEN both together are the truth, of which the sums alone are the less the oftener ranks meet
    assert sums_s + hidden_s == pytest.approx(true_s, rel=0.06)
    assert (hidden_s == 0) == (collectives == 1)
    assert hidden_s >= 0.04 * true_s * (collectives > 1)


@pytest.mark.parametrize("collectives", [1, 2, 4])
def test_of_several_ranks_that_are_late_anywhere_the_sums_show_the_latest(collectives: int) -> None:
    told, true = [], []
    for first in range(collectives):
        for second in range(collectives):
            healthy = work(collectives, 1)
            slow = healthy.copy()
            slow[3, :, first] += LATE
            slow[5, :, second] += 0.2
            true.append(step_s(slow) - step_s(healthy))
            innocent = np.delete(healthy.sum(axis=2), [3, 5], axis=0)
            told.append(by_sums(slow, healthy) + unmet_s(innocent, np.array([LATE, 0.2]), collectives))
    assert np.mean(told) == pytest.approx(np.mean(true), rel=0.1)


def test_one_innocent_rank_tells_nothing_of_how_often_it_waits() -> None:
    assert unmet_s(np.ones((1, 9)), np.array([LATE]), 4) == 0
    assert unmet_s(np.empty((0, 9)), np.array([LATE, 0.2]), 4) == pytest.approx(0.15)


def test_collectives_of_a_step_are_counted_and_those_that_overlap_are_one() -> None:
    window = build(Job(ranks=3, steps=10))[0]
    waits_s = {(row["rank"], row["step"]): row["wait_s"] for row in window.steps.to_pylist()}

    def each(made: int, stay: float) -> float:
        rows = [
            {"rank": rank, "sequence": made * step + slot, "step": step, "slot": slot, "op": f"{slot} of {rank}",
             "stay_s": stay * waits_s[rank, step] / made, "bytes": 0}
            for rank in range(3) for step in range(10) for slot in range(made)
        ]  # fmt: skip
        return gather([columns(window, "collectives", rows)]).collectives

    assert each(4, 1.0) == pytest.approx(4)
    assert each(4, 2.0) == pytest.approx(
        2.5
    )  # twice as long under way as anybody waits: half of the three that come before
    assert each(1, 1.0) == gather([columns(window, "collectives", [])]).collectives == 1
