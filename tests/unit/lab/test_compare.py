"""Two judgings of the same windows: what differs is printed, what agrees is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from labcases import AUGMENT, FOREIGN, PYTHON, result, suspect, verdict

from labkit import compare
from labkit.cli import main
from labkit.machine.shell import LabError
from labkit.result_file import save

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


def test_a_file_of_results_and_a_folder_of_kept_cases_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a file with two cases, and a folder in which one of them was kept
    save(
        tmp_path / "before.json", [result("python-slow", PYTHON, BEFORE), result("python-slow", PYTHON, BEFORE, seed=2)]
    )
    kept = tmp_path / "kept/python-slow-strong-1"
    kept.mkdir(parents=True)
    (kept / "verdict.json").write_text(BEFORE)
    # THEN that one is the same, and the other is missing
    assert main(["--compare", str(tmp_path / "before.json"), str(tmp_path / "kept")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "python-slow-strong-2: only in the first", "1 cases compared: 1 the same, 0 differ"
    ]  # fmt: skip
    assert main(["--compare", str(tmp_path / "kept"), str(tmp_path / "before.json")]) == 0


def test_a_place_without_verdicts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    for place in (tmp_path, tmp_path / "none.json", tmp_path / "other.json"):
        with pytest.raises(LabError):
            compare.judgings(place)
