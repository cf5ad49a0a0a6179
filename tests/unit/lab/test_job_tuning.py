"""How much longer steps became is measured where steps are made, and not while an evaluation takes all of the time."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.jobs.faults import SlowPython
from labkit.jobs.launch import JobEnded
from labkit.jobs.lines import Line

USUAL_S, SLOW_S = 0.03, 0.04


def made(steps: int, step_s: float) -> list[list[Line]]:
    return [
        [Line(rank, step, step * step_s, step * step_s, step_s, 40, 7) for step in range(steps)] for rank in range(2)
    ]


def pace(looks: Iterator[list[list[Line]]], monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    job = SimpleNamespace(row=SimpleNamespace(ranks=2, victims=()), recent=lambda _: next(looks))
    return SlowPython(cast(Any, job), random.Random(1), USUAL_S).pace_s()


def test_the_few_quick_steps_after_an_evaluation_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([made(0, USUAL_S), made(5, USUAL_S), made(60, SLOW_S)])
    assert pace(looks, monkeypatch) == pytest.approx(SLOW_S)


def test_batches_that_come_three_at_a_time_are_late_together(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN steps of 90, 3 and 3 ms: 32 on average
    seconds = [3 * USUAL_S if step % 3 == 0 else USUAL_S / 10 for step in range(91)]
    ends = list(itertools.accumulate(seconds))
    steps = [
        [Line(rank, step, ends[step], ends[step], seconds[step], 40, 7) for step in range(91)] for rank in range(2)
    ]
    assert pace(iter([steps]), monkeypatch) == pytest.approx(0.032, abs=0.001)


def test_an_evaluation_in_the_seconds_of_one_step_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = [[*of_rank, Line(0, 60, 3.0, 3.0, 2.5, 40, 7)] for of_rank in made(5, USUAL_S)]
    looks = iter([evaluated, made(60, SLOW_S)])
    assert pace(looks, monkeypatch) == pytest.approx(SLOW_S)


def test_a_rank_that_makes_no_step_for_long_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    never: list[list[Line]] = made(0, USUAL_S)
    with pytest.raises(JobEnded):
        pace(itertools.repeat(never), monkeypatch)
