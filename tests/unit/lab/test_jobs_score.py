"""Ranks, step and verdict of a job are compared with what the job printed."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
from labcases import suspect

from labkit import verdicts
from labkit.faults import Truth
from labkit.jobs import lines, score, table
from labkit.jobs.beside import Used, used
from labkit.jobs.cases import Case, Ranks, Result
from labkit.jobs.lines import Line
from labkit.jobs.rows import BY_NAME
from labkit.result_file import examined, read, save

PROGRAM = Path(score.__file__).parent / "programs" / "ddp.py"
START = 1_700_000_000.0


def printed(step_s: float = 0.05, ranks: int = 2, steps: int = 300) -> list[list[Line]]:
    return [
        [Line(rank, step, 100 + step * step_s, START + step * step_s, step_s, 40 + rank, 7) for step in range(steps)]
        for rank in range(ranks)
    ]


def listed(*pairs: tuple[int, int], job: str = "torch-a") -> str:
    return json.dumps({"ranks": [{"job": job, "rank": rank, "pid": pid} for rank, pid in pairs]})


def verdict(status: str, *suspects: dict[str, object], p50: float | None = 0.05) -> str:
    window = {"start": "2023-11-14T22:13:22Z", "end": "2023-11-14T22:13:32Z"}
    return json.dumps({
        "schema": "rankscope.verdict/1", "status": status, "suspects": suspects, "window": window,
        "step_seconds": {"p50": p50},
    })  # fmt: skip


def crop(line: int, rank: int = 1) -> dict[str, object]:
    found = suspect("python", "slow-function", (rank,), "random_crop")
    return {**found, "function": {"kind": "python", "name": "random_crop", "file": "/a/b/ddp.py", "line": line}}


SLOW = Truth("fault", {"python": frozenset({"slow-function"})}, (1,), function="random_crop")


def judge(text: str, truth: Truth) -> Result:
    result = Result(Case("ddp", "slow-python", 1), "", "", truth, Ranks(2, 2), verdict=text)
    return score.judged(result, printed(), PROGRAM)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (((0, 500), (1, 501)), Ranks(2, 2)),
        (((1, 500), (0, 501)), Ranks(2, 0, wrong=2)),
        (((0, 400), (1, 500), (2, 501)), Ranks(2, 0, wrong=2, extra=1)),
        (((0, 500), (0, 900)), Ranks(2, 1)),
        ((), Ranks(2, 0)),
    ],
)
def test_ranks_count_under_their_own_number(pairs: tuple[tuple[int, int], ...], expected: Ranks) -> None:
    assert score.ranks_of(listed(*pairs), {0: 500, 1: 501}, {400, 500, 501}, 2) == expected
    assert expected.all_right == (expected == Ranks(2, 2))


def test_other_jobs_on_the_host_are_told_apart() -> None:
    assert score.job_names(listed((0, 500), (1, 900)), {500}) == (["torch-a"], True)
    assert score.job_names(listed((0, 500)), {500}) == (["torch-a"], False)
    assert score.job_names("no json", {500}) == ([], False)


def test_the_step_is_compared_in_the_window_alone() -> None:
    result = judge(verdict("healthy", p50=0.5), Truth("healthy", {}))
    assert result.outcome == verdicts.FIRST
    assert result.step_error == pytest.approx(9.0)
    slower = [[*early[:100], *late[100:]] for early, late in zip(printed(0.02), printed(0.05), strict=True)]
    window = score.window_of(verdict("healthy"))
    assert window == (START + 2, START + 12)
    assert lines.median_step_s(lines.between(slower, START + 5.5, START + 12)) == pytest.approx(0.05)
    assert judge(verdict("unknown", p50=None), Truth("healthy", {})).step_error is None


def test_whether_a_rank_was_killed_inside_the_window_is_seen_by_its_last_line() -> None:
    (whole, _) = printed()  # 15 s; the window is from 2 s to 12 s
    assert score.ended_in_window(verdict("hang"), whole[:200])
    assert not score.ended_in_window(verdict("hang"), whole[:30])
    assert not score.ended_in_window(verdict("hang"), whole)
    assert score.ended_in_window("no verdict", whole)


def test_the_right_function_counts_on_one_of_its_lines_only() -> None:
    first, last = score.span_of(PROGRAM, "random_crop") or (0, 0)
    assert last > first
    assert judge(verdict("fault", crop(first + 1)), SLOW).outcome == verdicts.FIRST
    elsewhere = judge(verdict("fault", crop(last + 40)), SLOW)
    assert (elsewhere.outcome, elsewhere.line_right) == (verdicts.WRONG, False)
    assert judge(verdict("fault", crop(first, rank=0)), SLOW).outcome == verdicts.WRONG
    assert judge(verdict("fault"), SLOW).outcome == verdicts.SILENT
    assert judge("oops", SLOW).outcome == verdicts.FAILED


def test_before_training_only_an_accusation_or_all_clear_is_wrong() -> None:
    early = Truth("unknown", {})
    assert judge(verdict("unknown"), early).outcome == verdicts.FIRST
    assert judge(verdict("healthy"), early).outcome == verdicts.WRONG
    assert judge(verdict("hang", crop(1)), early).outcome == verdicts.WRONG


def test_lines_that_contradict_themselves_are_noticed() -> None:
    (whole, _) = printed()
    assert lines.numbering_is_sound(whole)
    assert not lines.numbering_is_sound([*whole[:5], *whole[6:]])
    other = Line(0, 300, 100 + 300 * 0.05, START, 0.05, pid=99, born=8)
    assert not lines.numbering_is_sound([*whole, other])


def test_results_come_out_of_the_file_as_they_went_in(tmp_path: Path) -> None:
    results = [judge(verdict("fault", crop(1)), SLOW), Result(Case("ray", "dead", 2), verdicts.FAILED, "no rank seen")]
    save(tmp_path / "results.json", results)
    assert read(tmp_path / "results.json", Result) == results
    disturbed = Result(Case("ddp", "quiet", 3), verdicts.IMPOSSIBLE, "others computed", beside=0.5)
    save(tmp_path / "results.json", [*results, disturbed])
    args = argparse.Namespace(resume=tmp_path / "results.json", json=None)
    asked = [one.case for one in (*results, disturbed)]
    again = examined(args, Result, asked, lambda left: (replace(disturbed, case=case, beside=0.0) for case in left),
                     lambda *_: None, counts=lambda result: not result.disturbed)  # fmt: skip
    assert again == read(args.resume, Result) == [*results, replace(disturbed, beside=0.0)]
    (tmp_path / "other.json").write_text('[{"case": 1}]')
    with pytest.raises(ValueError):
        read(tmp_path / "other.json", Result)


def test_what_others_use_of_the_cpus_is_what_neither_the_job_nor_the_lab_does() -> None:
    before, after = Used(passed=100.0, busy=60.0, ours=20.0), Used(passed=120.0, busy=75.0, ours=25.0)
    assert after.beside(before) == pytest.approx(0.5)
    assert before.beside(before) == 0.0
    until_now = used([])
    assert 0 < until_now.ours < until_now.busy < until_now.passed


def test_the_table_is_narrow_and_counts_what_is_wanted() -> None:
    first, _ = score.span_of(PROGRAM, "random_crop") or (0, 0)
    good = judge(verdict("fault", crop(first)), SLOW)
    assert table.good_enough([good])
    shown = list(table.table([good]))
    assert any(line.split() == ["ddp", "1/1", "1/1", "1/1"] for line in shown)
    bad = judge(verdict("fault", crop(first), p50=0.4), SLOW)
    assert not table.good_enough([bad])
    every = [Result(Case(row, fault, 1), verdicts.FAILED, "") for row in BY_NAME for fault in table.ALL]
    assert max(map(len, list(table.table(every))[: len(BY_NAME) + 1])) <= 110
