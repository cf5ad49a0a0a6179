"""A fault that the service did not name is not counted as named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchkit.service.watch_faults import Case, Piece, _answer, _Beside, _summary
from labkit import verdicts
from labkit.faults.base import Truth

TRUTH = Truth("fault", {"python": frozenset({"slow-function"})}, (1,), function="tokenize")
SUSPECT: dict[str, Any] = {
    "component": "python", "cause": "slow-function", "scope": "rank", "host": "a", "instance": "", "ranks": [1],
    "function": {"kind": "python", "name": "tokenize", "file": "/job/train.py", "line": 14}, "lost_seconds_per_step": 0.05,
    "lost_percent": 30.0, "confidence": 0.9, "since": None, "evidence": [], "action": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "suspects", "right"),
    [("fault", [SUSPECT], True), ("unknown", [], False), ("fault", [{**SUSPECT, "ranks": [0]}], False)],
    ids=["named", "nobody", "another rank"],
)
def test_only_who_is_named_counts(status: str, suspects: list[dict[str, Any]], right: bool) -> None:
    event = {"verdict": {"schema": "rankscope.verdict/1", "status": status, "suspects": suspects, "notes": []}}
    assert (_answer(event, TRUTH, 9.0).outcome == verdicts.FIRST) == right


def test_a_fault_without_effect_is_told_and_not_counted() -> None:
    named = Case("slow-read", verdicts.FIRST, 3.0, 3.1, 8.5, True, "fault", 0.04, grew=1.5)
    unseen = Case("slow-read", verdicts.SILENT, None, None, None, False, "nothing", grew=1.4)
    idle = Case("slow-read", verdicts.SILENT, None, None, None, False, "nothing", grew=1.0)
    lines, fine = _summary([Piece((named, idle), 60.0, (), (1, 1))])
    assert fine and any("no effect" in line for line in lines)
    assert not _summary([Piece((named, unseen), 60.0, (), (1, 1))])[1]


@pytest.mark.parametrize(("longer", "true"), [(1.11, True), (1.01, False)])
def test_an_alarm_that_the_jobs_own_steps_show_is_not_false(longer: float, true: bool) -> None:
    beside = _Beside(SimpleNamespace(pace=lambda since, until: SimpleNamespace(step_s=0.2 * longer)), None, None)  # type: ignore[arg-type]
    beside._usual_s = 0.2
    beside._note({"alarm": "slower", "words": "0.198 → 0.218 s/step", "time": "2026-11-24T07:01:15.702Z"})
    assert (len(beside.true_alarms), len(beside.false_alarms)) == (int(true), int(not true))
