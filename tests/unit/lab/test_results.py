"""Results are kept in a file that a later run extends, and come out of it as they went in; the tables count them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from labcases import AUGMENT, FOREIGN, HEALTHY, PYTHON, READ, SLOW_READ, UNEVEN, result, suspect, verdict

from labkit import table, verdicts
from labkit.cases import Result, read
from labkit.result_file import save
from labkit.run import judge_again, judged

BOTH = replace(PYTHON, also=(READ,))


def some_results() -> list[Result]:
    return [
        judged(result("python-slow", PYTHON, verdict("fault", AUGMENT))),
        judged(result("python-slow", PYTHON, verdict("fault", FOREIGN), seed=2)),
        judged(result("python-slow", PYTHON, verdict("healthy"), dose="weak")),
        judged(result("two-functions", BOTH, verdict("fault", AUGMENT, SLOW_READ))),
        judged(result("two-functions", BOTH, verdict("fault", {**AUGMENT, "confidence": 0.55}), seed=2)),
        judged(result("in-turn", UNEVEN, verdict("imbalance"))),
        judged(result("none", HEALTHY, verdict("healthy"))),
    ]


def test_results_come_out_of_the_file_as_they_went_in(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert read(path) == []
    save(path, some_results())
    assert read(path) == some_results()
    assert list(tmp_path.iterdir()) == [path]


def test_a_case_is_recognised_in_the_file(tmp_path: Path) -> None:
    save(tmp_path / "results.json", some_results())
    done = {found.case.key for found in read(tmp_path / "results.json")}
    first = some_results()[0].case
    assert first.key in done
    for other in (replace(first, dose="weak", seed=2), replace(first, seed=3), replace(first, observe=False)):
        assert other.key not in done
    assert replace(first, keep=True).key in done


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    for text in ('{"a": 1}', "[1]", "no json", '[{"case": {}}]'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError):
            read(tmp_path / "other.json")


def test_the_tally_counts_what_precision_and_recall_are_made_of() -> None:
    found = table.tally(some_results())
    assert found.named == {"strong": (3, 5), "weak": (0, 1)}
    assert (found.accused, found.accused_rightly) == (4, 3)
    assert (found.guilty, found.guilty_named) == (5, 2)
    assert (found.healthy, found.accused_healthy) == (1, 0)
    assert found.precision == pytest.approx(0.75)
    assert found.recall == pytest.approx(0.4)
    assert found.f1 == pytest.approx(2 * 0.75 * 0.4 / 1.15)
    assert not table.good_enough(some_results())
    assert table.good_enough([some_results()[0], some_results()[-1]])


def test_an_accusation_in_a_healthy_run_is_never_good_enough() -> None:
    right = [judged(result("python-slow", PYTHON, verdict("fault", AUGMENT), seed=seed)) for seed in range(1, 102)]
    assert table.good_enough(right)
    assert not table.good_enough([*right, judged(result("none", HEALTHY, verdict("fault", FOREIGN)))])


def test_what_is_impossible_here_counts_for_nothing() -> None:
    left_out = replace(result("slow-read", READ, ""), outcome=verdicts.IMPOSSIBLE, said="no device", truth=None)
    assert table.tally([left_out]).named == {}
    assert any("not possible here: slow-read" in line for line in table.verdict_table([left_out]))


def test_the_tables_are_narrow_and_say_how_far_confidence_can_be_trusted() -> None:
    lines = list(table.verdict_table(some_results()))
    assert max(len(line) for line in lines if not line.startswith("precision")) <= 80
    (strong,) = (line for line in lines if line.startswith("python-slow     strong"))
    assert strong.split()[2:8] == ["2", "1", "1", "1", "0", "0"]
    assert any(line.split() == ["0.90-0.95", "3", "0.90", "2", "0.67"] for line in lines)
    assert any(line.split() == ["0.50-0.60", "1", "0.55", "1", "1.00"] for line in lines)
    effects = list(table.effect_table(some_results()))
    assert max(map(len, effects)) <= 80
    assert "+50%" in effects[1]


def test_a_verdict_that_cannot_be_read_is_a_failure() -> None:
    assert judged(result("none", HEALTHY, "oops")).outcome == verdicts.FAILED


def test_nothing_kept_is_nothing_to_judge_again(tmp_path: Path) -> None:
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "result.json").write_text(json.dumps(some_results()[0].as_json()))
    assert list(judge_again(tmp_path)) == []


def test_said_names_the_suspects() -> None:
    said = judged(result("python-slow", PYTHON, verdict("fault", suspect("cpu", "quota", (1,))))).said
    assert said == "fault: cpu/quota ranks 1"
