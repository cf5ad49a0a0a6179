"""Confidence: the map from scores is monotone, honest about few cases, and can be counted anew from the lab."""

from __future__ import annotations

import itertools

import builders
import numpy as np
import pytest
from builders import Job, build
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.causes.hypothesis import SCORE_MOST
from rankscope.diagnose.infer.solve.calibration import (
    LEAST,
    MOST,
    POINTS,
    calibrate,
    calibrate_uncounted,
    expected_error,
    fit,
    reliability,
    wilson,
)
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import AGAINST, Suspect


def sample(count: int, truth: float = 1.0, seed: int = 3) -> list[tuple[float, bool]]:
    """Scores whose chance to be right is `truth` times the score."""
    rng = np.random.default_rng(seed)
    scores = rng.random(count)
    return [(float(score), bool(rng.random() < truth * score)) for score in scores]


def test_the_map_in_use_is_strictly_rising() -> None:
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(POINTS))


def test_what_was_counted_in_the_lowest_group_holds_for_all_of_it() -> None:
    points = fit([(0.3 + 0.002 * number, number % 10 > 0) for number in range(30)])
    assert calibrate(0.3, points) == pytest.approx(calibrate(0.35, points), abs=1e-3)
    assert calibrate(0.2, points) < calibrate(0.3, points), "below it nothing was counted"


@given(score=st.floats(allow_nan=True, allow_infinity=True))
def test_any_score_gives_a_confidence_that_is_never_certain(score: float) -> None:
    assert LEAST <= calibrate(score) <= MOST


@given(pairs=st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=300))
def test_any_pairs_give_a_rising_map(pairs: list[tuple[float, bool]]) -> None:
    points = fit(pairs)
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(points))
    assert points[0][1] >= 0 and points[-1][1] <= 1.03


def test_what_was_fitted_on_half_of_the_cases_holds_on_the_other_half() -> None:
    # GIVEN scores that are twice too sure
    points = fit(sample(1997, 0.5))
    fresh = [(calibrate(score, points), right) for score, right in sample(1997, 0.5, seed=5)]
    # THEN the map takes it back
    assert expected_error(reliability(sample(1997, 0.5, seed=5))) > 0.2
    assert expected_error(reliability(fresh)) < 0.05


def test_few_cases_are_never_certainty() -> None:
    assert calibrate(0.99, fit([(0.9, True)] * 29)) < 0.98
    assert calibrate(0.99, fit([(0.9, True)] * 7)) < 0.8
    assert wilson(7, 7)[0] < 0.7 and wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (7, 7), (0, 23), (5, 23), (394, 395)])
def test_the_interval_of_a_share_is_that_of_statsmodels(right: int, count: int) -> None:
    assert wilson(right, count) == pytest.approx(proportion_confint(right, count, method="wilson"), abs=1e-12)


def test_the_table_counts_every_verdict_once() -> None:
    bins = reliability([(0.1, False), (0.55, True), (1.0, True), (0.9, True)])
    assert [(each.low, each.count, each.right) for each in bins] == [(0.0, 1, 0.0), (0.5, 1, 1.0), (0.9, 2, 1.0)]


@pytest.mark.parametrize("score", np.linspace(0, 1, 21))
def test_a_hang_is_never_surer_than_it_says_nor_than_the_map_lets_it(score: float) -> None:
    assert calibrate_uncounted(score) <= min(score, calibrate(score), MOST)
    assert calibrate_uncounted(score) >= calibrate_uncounted(score - 0.05)


def test_the_confidence_of_a_hang_passes_the_map() -> None:
    (suspect,) = diagnose(build(builders.stopped(2))).suspects
    assert (suspect.component, suspect.cause) == ("process", "stopped")
    assert suspect.confidence == calibrate_uncounted(SCORE_MOST) == pytest.approx(calibrate(SCORE_MOST))


# ---- what speaks against -------------------------------------------------------------------------------------------------


def first(job: Job) -> Suspect:
    return diagnose(build(job)).suspects[0]


def test_a_rival_is_shown_and_makes_less_sure() -> None:
    alone = first(Job(extra={3: [(builders.BUSY, 0.08)]}))
    rivalled = first(Job(extra={3: [(builders.BUSY, 0.08), (builders.READ, 0.05)]}))
    assert rivalled.component == "python"
    assert any(e.source.startswith(AGAINST) and "storage/slow-read" in e.measure for e in rivalled.evidence)
    assert rivalled.confidence < alone.confidence
    assert not any(e.source.startswith(AGAINST) for e in alone.evidence)


def test_what_speaks_against_has_a_line_of_its_own_in_the_report() -> None:
    verdict = diagnose(build(Job(extra={3: [(builders.BUSY, 0.08), (builders.READ, 0.05)]})))
    lines = list(report(verdict))
    assert any(line.startswith("  against   it could also be storage/slow-read, which explains") for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_an_excess_that_was_partly_there_before_speaks_against() -> None:
    now = build(Job(extra={3: [(builders.BUSY, 0.10)]}))
    before = build(Job(extra={3: [(builders.BUSY, 0.05)]}, start=1_759_990_000.0, seed=97))
    suspect = diagnose(now, before).suspects[0]
    assert suspect.component == "python"
    assert any(e.source == f"{AGAINST}baseline" and e.value == pytest.approx(0.05, rel=0.2) for e in suspect.evidence)
