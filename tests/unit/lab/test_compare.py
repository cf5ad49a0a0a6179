"""Two verdicts on the same window: what differs is said, what agrees is not."""

from __future__ import annotations

import pytest
from labcases import AUGMENT, FOREIGN, suspect, verdict

from labkit import compare

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
