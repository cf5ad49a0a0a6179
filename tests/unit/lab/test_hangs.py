"""The lab of hangs: what the service and the command say is compared with the truth and with the clock."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from labkit import verdicts
from labkit.faults.base import Truth
from labkit.hangs import score, table
from labkit.hangs.cases import Answer, Case, Result
from labkit.hangs.kinds import ALL, Hang
from labkit.hangs.run import plan
from labkit.result_file import read, save

LAST_STEP = 1_800_000_000.0
LOCK = Truth("hang", {"python": frozenset({"lock"})}, (1,), function="log_metrics", exact=True)
KILLED = Truth("hang", {"process": frozenset({"exited"})}, (1,), exact=True)
NO_HANG = Truth("healthy", {})


def verdict(status: str, *suspects: tuple[str, str, int, str | None]) -> dict[str, Any]:
    return {
        "schema": "rankscope.verdict/1",
        "status": status,
        "suspects": [
            {"component": component, "cause": cause, "ranks": [rank], "function": name and {"name": name}, "confidence": 0.9}
            for component, cause, rank, name in suspects
        ],
    }  # fmt: skip


def event(kind: str, after_s: float, **more: Any) -> dict[str, Any]:
    at = datetime.fromtimestamp(LAST_STEP + after_s, timezone.utc).isoformat().replace("+00:00", "Z")
    return {"kind": kind, "time": at, "words": "", **more}


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (verdict("hang", ("python", "lock", 1, "Metrics.log_metrics")), verdicts.FIRST),
        (verdict("hang", ("python", "lock", 2, "Metrics.log_metrics")), verdicts.WRONG),
        (verdict("hang", ("process", "deadlock", 1, "Metrics.log_metrics")), verdicts.WRONG),
        (verdict("hang", ("python", "lock", 1, "tokenize")), verdicts.WRONG),
        (verdict("hang"), verdicts.SILENT),
    ],
)
def test_rank_kind_and_place_must_be_right(said: dict[str, Any], outcome: str) -> None:
    assert score.of_command(json.dumps(said), LOCK, 9.0).outcome == outcome


def test_the_first_verdict_of_the_service_counts_from_the_last_step() -> None:
    told = [
        event("alarm", 5.2, alarm="silent"),
        event("verdict", 11.5, verdict=verdict("hang", ("python", "lock", 1, "log_metrics"))),
    ]
    answer = score.of_service(told, LOCK, LAST_STEP)
    assert (answer.outcome, answer.after_s) == (verdicts.FIRST, pytest.approx(11.5))
    assert score.is_right(answer, LOCK)
    assert not score.is_right(Answer(verdicts.FIRST, "", 15.1), LOCK)
    assert score.of_service([], LOCK, LAST_STEP).outcome == verdicts.SILENT


def test_a_death_is_told_by_its_alarm() -> None:
    dead = {"alarm": "dead", "ranks": [1]}
    assert (
        score.of_service(
            [event("alarm", 1.0, **dead | {"words": "rank 1 killed by SIGKILL"})], KILLED, LAST_STEP
        ).outcome
        == "first"
    )
    memory = Truth("hang", {"memory": frozenset({"oom-kill"})}, (1,), exact=True)
    told = {"words": "rank 1 killed by SIGKILL, out of memory: its control group is at its limit"}
    assert score.of_service([event("alarm", 1.0, **dead | told)], memory, LAST_STEP).outcome == "first"
    assert (
        score.of_service(
            [event("alarm", 1.0, **dead | {"words": "rank 1 killed by SIGKILL"})], memory, LAST_STEP
        ).outcome
        == "wrong"
    )


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        ([], verdicts.FIRST),
        ([event("verdict", 20.0, verdict=verdict("unknown"))], verdicts.FIRST),
        ([event("verdict", 20.0, verdict=verdict("hang"))], verdicts.WRONG),
        ([event("alarm", 1.0, alarm="dead", ranks=[0])], verdicts.WRONG),
    ],
)
def test_what_is_no_hang_may_be_called_anything_but_a_hang(told: list[dict[str, Any]], outcome: str) -> None:
    assert score.of_service(told, NO_HANG, LAST_STEP).outcome == outcome


@pytest.mark.parametrize("kind", list(ALL))
def test_every_kind_has_a_job_that_it_can_be_done_to(kind: str) -> None:
    fault = ALL[kind]
    assert issubclass(fault, Hang) and fault.__doc__
    for seed in range(1, 8):
        shape = plan(Case(kind, seed))
        assert shape.ranks >= fault.min_ranks and shape.hosts >= fault.min_hosts and shape.lone < shape.ranks


def test_there_are_twelve_hangs_and_five_that_are_none() -> None:
    hangs = [kind for kind in ALL.values() if issubclass(kind, Hang) and kind.hangs]
    assert (len(hangs), len(ALL) - len(hangs)) == (12, 5)


def test_results_are_counted_and_come_back_from_their_file(tmp_path: Path) -> None:
    right = Result(Case("lock", 1), 4, 2, LOCK, Answer("first", "", 11.0), Answer("first", "", 14.0))
    late = Result(Case("lock", 2), 4, 2, LOCK, Answer("first", "", 16.0), Answer("first", "", 14.0))
    harmless = Result(Case("checkpoint", 1), 4, 2, NO_HANG, Answer("first", "nothing"), None)
    assert table.counted([right, late]) == (3, 4)
    assert table.good_enough([right, harmless]) and not table.good_enough([right, late, harmless])
    lines = list(table.table([right, late, harmless]))
    assert all(len(line) <= 80 for line in lines)
    file = tmp_path / "results.json"
    save(file, [right, late, harmless])
    assert read(file, Result) == [right, late, harmless]
