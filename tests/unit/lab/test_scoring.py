"""A verdict is compared with the truth, and with another verdict on the same window; results are kept in a file, and counted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from labcases import AUGMENT, FOREIGN, HEALTHY, PYTHON, READ, SLOW_READ, UNEVEN, result, suspect, verdict

from labkit import compare, table, verdicts
from labkit.cases import Result
from labkit.faults import Truth
from labkit.result_file import plain, read, save
from labkit.run import judge_again, judged
from labkit.verdicts import FIRST, IN_THREE, SILENT, WRONG, BadVerdict, first_is_right, names, parse, score

ALL_RANKS = (0, 1, 2, 3)


def outcome(truth: Truth, status: str, *suspects: dict[str, object]) -> str:
    return score(parse(verdict(status, *suspects)), truth)


@pytest.mark.parametrize(
    ("suspects", "expected"),
    [
        ((AUGMENT,), FIRST),
        ((FOREIGN, AUGMENT), IN_THREE),
        ((FOREIGN, FOREIGN, FOREIGN, AUGMENT), WRONG),
        ((FOREIGN,), WRONG),
        ((), SILENT),
        ((suspect("python", "slow-function", (1,), "collate"),), WRONG),
        ((suspect("python", "slow-function", (2,), "augment"),), WRONG),
    ],
)
def test_one_culprit_must_be_named_with_component_rank_and_function(
    suspects: tuple[dict[str, object], ...], expected: str
) -> None:
    assert outcome(PYTHON, "fault", *suspects) == expected


@pytest.mark.parametrize(
    ("suspects", "expected"),
    [
        ((AUGMENT, SLOW_READ), FIRST),
        ((SLOW_READ, AUGMENT), FIRST),
        ((SLOW_READ, FOREIGN, AUGMENT), IN_THREE),
        ((AUGMENT,), SILENT),
        ((FOREIGN, AUGMENT), WRONG),
        ((), SILENT),
    ],
)
def test_of_two_culprits_both_must_be_the_first_two(suspects: tuple[dict[str, object], ...], expected: str) -> None:
    assert outcome(replace(PYTHON, also=(READ,)), "fault", *suspects) == expected


def test_two_who_do_the_same_may_be_one_suspect() -> None:
    truth = replace(PYTHON, also=(replace(PYTHON, ranks=(3,)),))
    ranks = (*PYTHON.ranks, 3)
    assert outcome(truth, "fault", suspect("python", "slow-function", ranks, "augment")) == FIRST
    assert outcome(truth, "fault", suspect("python", "slow-function", (*ranks, 7), "augment")) == WRONG
    other = replace(PYTHON, also=(replace(PYTHON, ranks=(3,), function="collate"),))
    assert outcome(other, "fault", suspect("python", "slow-function", ranks, "augment")) == WRONG


@pytest.mark.parametrize(
    ("truth", "status", "suspects", "expected"),
    [
        (HEALTHY, "healthy", (), FIRST),
        (HEALTHY, "unknown", (), SILENT),
        (HEALTHY, "fault", (AUGMENT,), WRONG),
        (UNEVEN, "imbalance", (), FIRST),
        (UNEVEN, "healthy", (), SILENT),
        (UNEVEN, "fault", (AUGMENT,), WRONG),
    ],
)
def test_where_nobody_is_guilty_an_accusation_is_wrong(
    truth: Truth, status: str, suspects: tuple[dict[str, object], ...], expected: str
) -> None:
    assert outcome(truth, status, *suspects) == expected
    assert not first_is_right(parse(verdict(status, *suspects)), truth)


WASTE = {**suspect("python", "gc", ALL_RANKS), "waste": True}
COLLECTS = Truth("inefficient", {"python": frozenset({"gc"})}, ALL_RANKS, everyone=True)


@pytest.mark.parametrize(
    ("truth", "status", "suspects", "expected"),
    [
        (HEALTHY, "inefficient", (WASTE,), FIRST),
        (PYTHON, "fault", (AUGMENT, WASTE), FIRST),
        (PYTHON, "inefficient", (WASTE,), SILENT),
        (COLLECTS, "inefficient", (WASTE,), FIRST),
        (COLLECTS, "inefficient", ({**FOREIGN, "waste": True}, WASTE), IN_THREE),
        (COLLECTS, "fault", (AUGMENT, WASTE), WRONG),
        (COLLECTS, "healthy", (), SILENT),
    ],
)
def test_waste_accuses_nobody_and_is_right_where_the_truth_is_waste(
    truth: Truth, status: str, suspects: tuple[dict[str, object], ...], expected: str
) -> None:
    assert outcome(truth, status, *suspects) == expected


def test_a_stopped_rank_is_right_only_in_a_hang() -> None:
    stopped = Truth("hang", {"process": frozenset({"stopped"})}, (1,))
    said = suspect("process", "stopped", (1,))
    assert outcome(stopped, "hang", said) == FIRST
    assert outcome(stopped, "fault", said) == IN_THREE


def test_other_answers_that_an_operator_would_take_are_right() -> None:
    collector = Truth("fault", {"python": frozenset({"gc"})}, (1,), exact=True, alternatives=(PYTHON,))
    assert outcome(collector, "fault", suspect("python", "gc", (1,))) == FIRST
    assert outcome(collector, "fault", AUGMENT) == FIRST
    assert outcome(collector, "fault", suspect("python", "lock", (1,))) == WRONG


def test_where_all_suffer_alike_naming_all_or_none_is_the_same() -> None:
    everywhere = Truth("fault", {"workload": frozenset({"slow-everywhere"})}, ALL_RANKS, everyone=True)
    for ranks, right in ((ALL_RANKS, True), ((), True), ((0, 1), False)):
        (found,) = parse(verdict("fault", suspect("workload", "slow-everywhere", ranks))).suspects
        assert names(found, everywhere) is right


def test_an_imbalance_is_no_accusation() -> None:
    said = parse(verdict("imbalance", suspect("workload", "stage-imbalance", (1,))))
    assert not said.accuses
    assert not first_is_right(said, PYTHON)


def test_a_text_that_is_no_verdict_is_refused() -> None:
    for text in (
        "",
        "{}",
        '{"schema": "other/1", "status": "healthy", "suspects": []}',
        verdict("fault", {"component": "cpu"}),
    ):
        with pytest.raises(BadVerdict):
            parse(text)


BEFORE = verdict("fault", {**AUGMENT, "lost_seconds_per_step": 0.1})


def test_equal_verdicts_do_not_differ() -> None:
    nearly = verdict("fault", {**AUGMENT, "lost_seconds_per_step": 0.1009, "confidence": 0.91, "evidence": ["other"]})
    assert compare.differences(BEFORE, BEFORE) == []
    assert compare.differences(BEFORE, nearly) == []


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (verdict("hang", {**AUGMENT, "lost_seconds_per_step": 0.1}), "status fault → hang"),
        (verdict("fault", FOREIGN), "suspect 1: python/slow-function ranks 1 augment → cpu/contended ranks 2"),
        (verdict("fault"), "suspect 1: python/slow-function ranks 1 augment → nobody"),
        (verdict("fault", {**AUGMENT, "lost_seconds_per_step": 0.0985}), "lost 0.100000 → 0.098500 s per step"),
        (verdict("fault", {**AUGMENT, "lost_seconds_per_step": 0.1, "confidence": 0.5}), "confidence 0.90 → 0.50"),
        (verdict("fault", suspect("python", "slow-function", (1,), "collate")), "augment → python/slow-function"),
        ("no verdict at all", "not to be compared"),
    ],
)
def test_what_differs_is_said(after: str, said: str) -> None:
    (line,) = compare.differences(BEFORE, after)
    assert said in line


def test_a_function_of_the_same_name_in_another_file_is_another() -> None:
    moved = {**AUGMENT, "lost_seconds_per_step": 0.1, "function": {**AUGMENT["function"], "file": "other.py"}}
    assert len(compare.differences(BEFORE, verdict("fault", moved))) == 1


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
    assert read(path, Result) == []
    save(path, some_results())
    assert read(path, Result) == some_results()
    assert list(tmp_path.iterdir()) == [path]


def test_a_case_is_recognised_in_the_file(tmp_path: Path) -> None:
    save(tmp_path / "results.json", some_results())
    done = {found.case.key for found in read(tmp_path / "results.json", Result)}
    first = some_results()[0].case
    assert first.key in done
    for other in (replace(first, dose="weak", seed=2), replace(first, seed=3), replace(first, observe=False)):
        assert other.key not in done
    assert replace(first, keep=True).key in done


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    for text in ('{"a": 1}', "[1]", "no json", '[{"case": {}}]'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(ValueError):
            read(tmp_path / "other.json", Result)


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
    (tmp_path / "case" / "result.json").write_text(json.dumps(plain(some_results()[0])))
    assert list(judge_again(tmp_path)) == []


def test_said_names_the_suspects() -> None:
    said = judged(result("python-slow", PYTHON, verdict("fault", suspect("cpu", "quota", (1,))))).said
    assert said == "fault: cpu/quota ranks 1"
