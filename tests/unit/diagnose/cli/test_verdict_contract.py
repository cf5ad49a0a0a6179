"""The verdict's JSON contract (verdict/README.md), the exit codes and the report."""

from __future__ import annotations

import io
import json
from typing import Any

import builders
import pytest
from builders import Job, build

from rankscope.diagnose.face.cli.report import print_report, report
from rankscope.diagnose.infer.causes.causes import CAUSES
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import STATUSES

CASES = {
    "healthy": Job(),
    "python": builders.slow_python(3, 0.08, hosts=2),
    "hog": builders.hogged(3, 0.08),
    "quota": builders.throttled(3, 0.08),
    "read": builders.slow_read(3, 0.08),
    "link": builders.slow_link(1, 0.1),
    "stopped": builders.stopped(5),
    "imbalance": Job(scale={2: 1.6}),
    "unknown": Job(steps=3),
    "alone": Job(ranks=1),
}


def _check(value: Any, kinds: tuple[type, ...]) -> None:
    assert isinstance(value, kinds) and not isinstance(value, bool), value


@pytest.mark.parametrize("case", CASES)
def test_the_json_keeps_the_contract(case: str) -> None:
    found = json.loads(to_json(diagnose(build(CASES[case]))))
    assert set(found) == {"schema", "status", "job", "title", "steps", "note_codes", "summary", "action", "hosts", "ranks", "window",
                          "baseline", "step_seconds",
                          "slowdown_percent", "budget",
                          "suspects", "notes", *(["stacks"] if found["status"] == "hang" else [])}  # fmt: skip
    assert found["schema"] == "rankscope.verdict/1" and found["status"] in STATUSES
    assert set(found["window"]) == {"start", "end"} and set(found["step_seconds"]) == {"p50", "p99", "baseline_p50"}
    for suspect in found["suspects"]:
        assert set(suspect) == {"component", "cause", "scope", "host", "instance", "ranks", "function", "lost_seconds_per_step",
                                "lost_percent", "confidence", "since", "evidence", "action", "waste", "instances",
                                "sentence", "sure"}  # fmt: skip
        assert suspect["cause"] in CAUSES[suspect["component"]]
        assert 0 < suspect["confidence"] <= 1 and 0 <= suspect["lost_percent"] <= 100
        assert suspect["ranks"] and all(isinstance(rank, int) for rank in suspect["ranks"])
        assert suspect["function"] is None or set(suspect["function"]) == {"kind", "name", "file", "line"}
        for evidence in suspect["evidence"]:
            assert set(evidence) == {"source", "measure", "value", "expected", "unit", "peers", "role"}
        _check(suspect["lost_seconds_per_step"], (int, float))
    assert set(found["budget"]) == {"of", "seconds", "ranks", "parts", "by_rank"}
    for part in found["budget"]["parts"]:
        assert (
            {"kind", "words", "seconds", "share", "items"}
            <= set(part)
            <= {"kind", "words", "seconds", "share", "items", "workers"}
        )
        assert 0 <= part["share"] <= 1 and all(
            set(item) == {"what", "function", "seconds", "share"} for item in part["items"]
        )
    lost = sum(suspect["lost_percent"] for suspect in found["suspects"])
    assert lost <= 100.1


@pytest.mark.parametrize("case", CASES)
def test_the_report_fits_eighty_columns_and_answers_in_its_first_line(case: str) -> None:
    verdict = diagnose(build(CASES[case]))
    lines = list(report(verdict))
    assert lines[0].startswith(verdict.status.upper())
    assert all(len(line) <= 80 for line in [*lines, *report(verdict, verbose=True)])
    assert len(lines) <= 24


def test_the_report_of_a_slow_function_reads_like_this() -> None:
    lines = list(report(diagnose(build(builders.slow_python(3, 0.08, hosts=2, noise=0.0, spread=0.0, stalls=0.0)))))
    assert lines[:3] == [
        "FAULT  Rank 3 on node-0: augment (train.py:56) takes longer there than on its",
        "       peers, which costs 0.080 s of each 0.320 s step, 25 %",
        "       (python/slow-function)",
    ]
    assert lines[3].startswith("  because   time in augment: 0.1") and lines[3].endswith("7 peers 0.040 s")


def test_the_line_on_where_the_time_goes_stands_under_the_verdict() -> None:
    said = " ".join(" ".join(report(diagnose(build(builders.hogged(3, 0.08))))).split())
    assert " time step 0.3" in said and "% asleep (train.py:81 device_wait" in said
    assert "% CPU queue" in said and said.index(" time step") < said.index(" job job-a")


def test_a_job_of_one_rank_is_healthy_and_compared_with_nobody() -> None:
    verdict = diagnose(build(CASES["alone"]))
    assert (verdict.status, verdict.exit_code) == ("healthy", 0)
    lines = list(report(verdict))
    assert lines[0].startswith("HEALTHY  Nothing wrong was found: 1 rank on node-0, 70 steps of 0.2")
    assert any(line == "  note   one rank: compared with nobody" for line in lines)
    # one of several is not alone: nobody knows what the others do
    one_of_two = build(Job(ranks=1, ranks_columns={0: {"world_size": 2}}))
    assert diagnose(one_of_two).status == "unknown"


def test_colour_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    verdict = diagnose(build(Job()))
    plain, coloured, refused = io.StringIO(), Terminal(), Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_report(verdict, plain)
    print_report(verdict, coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    print_report(verdict, refused)
    assert "\033" not in plain.getvalue() and "\033[32m" in coloured.getvalue() and "\033" not in refused.getvalue()
