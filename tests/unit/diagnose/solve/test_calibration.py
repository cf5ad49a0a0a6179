"""Confidence: the map from scores is monotone, honest about few cases, and can be counted anew from the lab."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import builders
import numpy as np
import pytest
from builders import Job, build
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnose.cli.report import report
from rankscope.diagnose.hypotheses.hypothesis import SCORE_MOST
from rankscope.diagnose.solve.calibration import (
    LEAST,
    MOST,
    POINTS,
    calibrate,
    calibrate_hang,
    cautious,
    expected_error,
    fit,
    from_lab,
    reliability,
    score_of,
    wilson,
)
from rankscope.diagnose.solve.judge import diagnose
from rankscope.diagnose.verdict.contract import AGAINST, Suspect
from rankscope.probes.errors import BadData


def sample(count: int, truth: float = 1.0, seed: int = 3) -> list[tuple[float, bool]]:
    """Scores whose chance to be right is `truth` times the score."""
    rng = np.random.default_rng(seed)
    scores = rng.random(count)
    return [(float(score), bool(rng.random() < truth * score)) for score in scores]


def test_the_map_in_use_is_strictly_rising_and_can_be_undone() -> None:
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(POINTS))
    for score in np.linspace(0.1, 0.9, 17):
        assert score_of(calibrate(float(score))) == pytest.approx(score, abs=1e-9)


@given(score=st.floats(allow_nan=True, allow_infinity=True))
def test_any_score_gives_a_confidence_that_is_never_certain(score: float) -> None:
    assert LEAST <= calibrate(score) <= MOST


@given(pairs=st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=300))
def test_any_pairs_give_a_rising_map(pairs: list[tuple[float, bool]]) -> None:
    for points in (fit(pairs), cautious(fit(pairs))):
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


def test_the_table_counts_every_verdict_once() -> None:
    bins = reliability([(0.1, False), (0.55, True), (1.0, True), (0.9, True)])
    assert [(each.low, each.count, each.right) for each in bins] == [(0.0, 1, 0.0), (0.5, 1, 1.0), (0.9, 2, 1.0)]


def test_results_of_the_lab_are_read(tmp_path: Path) -> None:
    verdict = json.dumps({"suspects": [{"confidence": 0.8}]})
    results = [
        {"outcome": "first", "verdict": verdict},
        {"outcome": "wrong", "verdict": json.loads(verdict)},
        {"outcome": "first", "confidence": 0.6},
        {"outcome": "in three", "confidence": 0.7, "accused": True, "accused_rightly": True},
        {"outcome": "silent", "confidence": 0.0, "accused": False, "accused_rightly": False},
        {"outcome": "silent", "verdict": json.dumps({"suspects": []})},
        {"outcome": "failed", "verdict": "no json"},
        {"outcome": "first", "confidence": "high"},
        "nonsense",
    ]
    for content in (results, {"results": results}):
        (tmp_path / "results.json").write_text(json.dumps(content))
        assert from_lab(tmp_path / "results.json") == ((0.8, True), (0.8, False), (0.6, True), (0.7, True))


def test_hangs_are_counted_apart_from_slow_jobs(tmp_path: Path) -> None:
    verdicts = [{"status": status, "suspects": [{"confidence": 0.8}]} for status in ("fault", "hang", "hang")]
    results = [
        {"outcome": outcome, "verdict": json.dumps(each)}
        for outcome, each in zip(("wrong", "first", "wrong"), verdicts, strict=True)
    ]
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert from_lab(tmp_path / "results.json") == ((0.8, False),)
    assert from_lab(tmp_path / "results.json", hangs=True) == ((0.8, True), (0.8, False))


@pytest.mark.parametrize("score", np.linspace(0, 1, 21))
def test_a_hang_is_never_surer_than_it_says_nor_than_the_map_lets_it(score: float) -> None:
    assert calibrate_hang(score) <= min(score, calibrate(score), MOST)
    assert calibrate_hang(score) >= calibrate_hang(score - 0.05)


def test_the_confidence_of_a_hang_passes_the_map() -> None:
    (suspect,) = diagnose(build(builders.stopped(2))).suspects
    assert (suspect.component, suspect.cause) == ("process", "stopped")
    assert suspect.confidence == calibrate_hang(SCORE_MOST) == pytest.approx(calibrate(SCORE_MOST))


@pytest.mark.parametrize("content", ["", "[", "7", '{"results": 3}'])
def test_other_files_are_bad_data(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(BadData):
        from_lab(tmp_path / "results.json")


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
    assert any(line.startswith("  against  storage/slow-read would explain") for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_an_excess_that_was_partly_there_before_speaks_against() -> None:
    now = build(Job(extra={3: [(builders.BUSY, 0.10)]}))
    before = build(Job(extra={3: [(builders.BUSY, 0.05)]}, start=1_759_990_000.0, seed=97))
    suspect = diagnose(now, before).suspects[0]
    assert suspect.component == "python"
    assert any(e.source == f"{AGAINST}baseline" and e.value == pytest.approx(0.05, rel=0.2) for e in suspect.evidence)
