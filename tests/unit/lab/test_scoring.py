"""A verdict is compared with the truth: one culprit, two, none, and work that is uneven by design."""

from __future__ import annotations

from dataclasses import replace

import pytest
from labcases import AUGMENT, FOREIGN, HEALTHY, PYTHON, READ, SLOW_READ, UNEVEN, suspect, verdict

from labkit.faults import Truth
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
