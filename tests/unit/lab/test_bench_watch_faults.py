"""A fault that the service did not name is not counted as named."""

from __future__ import annotations

from typing import Any

import pytest

from benchkit.service.watch_faults import _answer
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
