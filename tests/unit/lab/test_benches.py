"""Benches: what counts as named beside the service, and the table of scripts/bench overhead."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest

from benchkit.overhead import OBSERVERS, TARGETS, Round, _lines, _summary
from benchkit.service.watch_faults import Case, Piece, _answer, _Beside
from benchkit.service.watch_faults import _summary as _pieces_summary
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
    lines, fine = _pieces_summary([Piece((named, idle), 60.0, (), (1, 1))])
    assert fine and any("no effect" in line for line in lines)
    assert not _pieces_summary([Piece((named, unseen), 60.0, (), (1, 1))])[1]


@pytest.mark.parametrize(("longer", "true"), [(1.11, True), (1.01, False)])
def test_an_alarm_that_the_jobs_own_steps_show_is_not_false(longer: float, true: bool) -> None:
    beside = _Beside(SimpleNamespace(pace=lambda since, until: SimpleNamespace(step_s=0.2 * longer)), None, None)  # type: ignore[arg-type]
    beside._usual_s = 0.2
    beside._note({"alarm": "slower", "words": "0.198 → 0.218 s/step", "time": "2026-11-24T07:01:15.702Z"})
    assert (len(beside.true_alarms), len(beside.false_alarms)) == (int(true), int(not true))


OPTIONS = argparse.Namespace(ranks=2, rounds=3, window=10.0)


def _rounds(loading_s: float) -> list[Round]:
    rounds = []
    for number in range(3):
        for observer in OBSERVERS:
            slower = {"nobody": 1.0, "rankscope": 1.02 + 0.01 * number, "py-spy": 1.1, "rankscope, cold": 1.3}[observer]
            cpu_s = {"rankscope": loading_s + 0.01 * number, "rankscope, cold": 4.0}.get(observer, 0.0)
            rounds.append(Round(observer, 0.2, 2.0, 0.1, 0.05, 1e8, 10.0, 100, 0, cpu_s, 0.2 * slower))
    return rounds


def test_the_slow_down_over_the_whole_command_is_the_mean_of_the_rounds_with_its_interval() -> None:
    table = _summary(_rounds(0.5), 2)
    assert table["whole"] == pytest.approx(3.0)
    # Of 2, 3, 4 %: Student's t with 2 degrees of freedom, 4.303, times 1 % / sqrt(3).
    assert (table["whole_low"], table["whole_high"]) == pytest.approx((3 - 2.484, 3 + 2.484), abs=0.001)
    assert table["whole_cold"] == pytest.approx(30.0)
    assert any("95 %: 0.52 to 5.48" in line for line in _lines(table, _rounds(0.5), OPTIONS))


def test_what_kernel_and_observer_take_is_one_target_and_told_apart() -> None:
    rounds = _rounds(0.5)
    table = _summary(rounds, 2)
    # 0.05 s in the kernel and 0.1 s in the observer, of 10 s on 2 ranks
    assert (table["kernel"], table["observer"], table["together"]) == pytest.approx((0.25, 0.5, 0.75))
    row, parts = _lines(table, rounds, OPTIONS)[3:5]
    assert row.startswith(TARGETS["together"][0]) and "0.75" in row and "MISSED" in row
    assert "0.25 / 0.50" in parts


@pytest.mark.parametrize(("loading_s", "met"), [(0.5, True), (1.5, False)])
def test_loading_has_a_target_that_the_first_start_is_not_held_to(loading_s: float, met: bool) -> None:
    rounds = _rounds(loading_s)
    table = _summary(rounds, 2)
    assert table["loading"] == pytest.approx(loading_s + 0.01)
    assert table["loading_cold"] == pytest.approx(4.0)
    (row,) = (line for line in _lines(table, rounds, OPTIONS) if line.startswith(TARGETS["loading"][0]))
    assert ("MISSED" not in row) == met
