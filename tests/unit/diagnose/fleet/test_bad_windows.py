"""Bad input ends in a verdict, in `unknown` with a reason, or in one clear line: never in a stack trace."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import builders
import pytest
from builders import Job, build, codes, said
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spoilt import spoilt

from rankscope.diagnose import budgets
from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.fleet.sources import load
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import write_window
from rankscope.probes.base.errors import BadData, NoRanks


@pytest.mark.parametrize("empty", ["steps", "patterns", "flows", "counters", "collectives"])
def test_an_empty_table_is_no_stumbling_block(empty: str) -> None:
    window = builders.columns(build(builders.slow_python(3, 0.08))[0], empty, [])
    verdict = diagnose([window])
    assert verdict.status == ("unknown" if empty == "steps" else "fault")
    to_json(verdict)


def test_without_stacks_the_rank_is_still_named() -> None:
    window = builders.columns(build(builders.slow_python(3, 0.08))[0], "patterns", [])
    suspect = diagnose([window]).suspects[0]
    assert suspect.ranks == (3,) and suspect.function is None and suspect.confidence < 0.6


def test_a_window_without_ranks_says_so() -> None:
    window = builders.columns(build(Job())[0], "ranks", [])
    with pytest.raises(NoRanks):
        diagnose([window])


@pytest.mark.parametrize(
    ("job", "reason"),
    [(Job(steps=1), "complete step"), (Job(ranks=1, ranks_columns={0: {"world_size": 2}}), "one rank")],
)
def test_too_little_is_unknown_with_the_reason(job: Job, reason: str) -> None:
    verdict = diagnose(build(job))
    assert (verdict.status, verdict.exit_code) == ("unknown", 3)
    assert (reason in verdict.notes[0].text and "record" in verdict.notes[0].text) or verdict.notes[
        0
    ].code is NoteCode.ONE_RANK


def test_missing_ranks_are_noted_and_the_rest_is_judged() -> None:
    job = builders.slow_python(3, 0.08, ranks=8, hosts=2)
    verdict = diagnose(build(job)[:1])
    assert verdict.suspects[0].ranks == (3,)
    assert said(verdict, NoteCode.RANKS_MISSING).startswith("4 of 8 ranks")


def test_a_rank_reported_twice_counts_once() -> None:
    windows = build(builders.slow_python(3, 0.08))
    twin = replace(windows[0], manifest=replace(windows[0].manifest, host="twin"))
    verdict = diagnose([*windows, twin])
    assert len(verdict.ranks) == 8 and NoteCode.RANKS_TWICE in codes(verdict)


@pytest.mark.parametrize("absurd", [math.nan, math.inf, -1.0, 1e9, 0.0])
def test_impossible_durations_are_left_out(absurd: float) -> None:
    window = build(builders.slow_python(3, 0.08))[0]
    rows = window.steps.to_pylist()
    for row in rows[::17]:
        row["seconds"] = absurd
    verdict = diagnose([builders.columns(window, "steps", rows)])
    assert verdict.suspects[0].ranks == (3,)
    assert NoteCode.STEPS_IMPOSSIBLE in codes(verdict)


def test_windows_of_different_moments_the_newest_common_one_is_judged() -> None:
    old = build(builders.slow_python(1, 0.08, hosts=2, start=1_750_000_000.0))
    new = build(builders.slow_python(6, 0.08, hosts=2))
    later_alone = build(builders.slow_python(2, 0.08, hosts=2, start=1_770_000_000.0))[:1]
    verdict = diagnose([*old, *new, *later_alone])
    assert verdict.suspects[0].ranks == (6,)
    assert NoteCode.OTHER_MOMENTS in codes(verdict)


def test_of_several_jobs_the_largest_is_judged_unless_one_is_asked_for() -> None:
    large, small = build(Job(name="large")), build(Job(name="small", ranks=2))
    small = [replace(small[0], manifest=replace(small[0].manifest, host="other"))]
    assert diagnose([*small, *large]).job == "large"
    assert diagnose([*small, *large], job="small").job == "small"
    with pytest.raises(BadData, match="not in these windows"):
        diagnose(large, job="nobody")


def test_a_baseline_of_another_job_is_refused_in_one_line() -> None:
    with pytest.raises(BadData, match="another job") as error:
        diagnose(build(Job()), build(Job(name="other")))
    assert "\n" not in str(error.value)


def test_windows_survive_the_way_over_the_disk(tmp_path: Path) -> None:
    for window in build(builders.slow_python(3, 0.08, hosts=2)):
        write_window(window, tmp_path)
    assert diagnose(load([tmp_path]).windows).suspects[0].ranks == (3,)


def test_text_from_targets_is_escaped_and_cut() -> None:
    evil = builders.Work("python", "x\x1b[31m" + "y" * 5000, 0, 7)
    verdict = diagnose(build(Job(extra={3: [(evil, 0.08)]}, name="job\n\x1b]0;evil\x07")))
    lines = list(report(verdict, verbose=True))
    assert not any("\x1b" in line or "\n" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)
    assert len(to_json(verdict)) < 20_000


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_numbers_in_the_tables_end_in_a_valid_verdict(data: st.DataObject) -> None:
    # GIVEN a small window in which arbitrary cells hold arbitrary numbers
    window = build(Job(ranks=3, steps=9, seed=data.draw(st.integers(0, 3))))[0]
    number = st.floats(width=32, allow_nan=True, allow_infinity=True)
    for table, names in (
        ("steps", ["start_s", "seconds", "own_s", "wait_s", "io_s"]),
        ("patterns", ["per_step_s", "beta"]),
        ("flows", ["busy_s", "rwnd_limited_s", "rtt_s", "min_rtt_s"]),
        ("ranks", ["stopped_s", "last_progress_s", "in_collective_s"]),
    ):
        rows = getattr(window, table).to_pylist()
        for _ in range(data.draw(st.integers(0, 8))):
            row = data.draw(st.integers(0, len(rows) - 1))
            rows[row][data.draw(st.sampled_from(names))] = data.draw(number)
        window = builders.columns(window, table, rows)
    # WHEN
    verdict = diagnose([window])
    # THEN
    assert json.loads(to_json(verdict))["schema"] == "rankscope.verdict/1"
    assert all(len(line) <= 80 for line in report(verdict))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_numbers_now_and_in_the_baseline_end_in_a_valid_verdict(data: st.DataObject) -> None:
    ranks = data.draw(st.sampled_from([1, 2, 5]))
    roles = data.draw(st.sampled_from(["none", "own", "pairs"]))
    columns = {
        rank: {"role": "" if roles == "none" else f"r{rank // 2 if roles == 'pairs' else rank}"}
        for rank in range(ranks)
    }
    now = spoilt(data, Job(ranks=ranks, steps=13, ranks_columns=columns, extra={0: [(builders.BUSY, 0.1)]}))
    before = [
        spoilt(
            data, Job(ranks=ranks, steps=13, ranks_columns=columns, start=1_759_990_000.0 + 1000 * index, seed=index)
        )
        for index in range(data.draw(st.integers(1, 2)))
    ]
    try:
        verdict = diagnose([now], before)
    except BadData as error:  # nothing usable in the baseline: one line
        assert "\n" not in str(error)
        return
    assert json.loads(to_json(verdict))["schema"] == "rankscope.verdict/1"
    assert all(len(line) <= 80 for line in report(verdict, verbose=True))
    assert sum(suspect.lost_percent for suspect in verdict.suspects) <= 100.5


def test_ranks_that_are_claimed_and_show_no_step_get_no_row_as_long_as_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN an honest job, beside it a host that claims many more of its ranks, and little room
    monkeypatch.setattr(budgets, "CELLS_MOST", 10_000)
    window = build(Job())[0]
    liar = builders.claimed(window, 400)
    # THEN it is one line
    with pytest.raises(BadData, match="400 ranks are claimed"):
        diagnose([window, liar])
    # AND a job whose ranks do show their steps is judged, however little room there is
    monkeypatch.setattr(budgets, "CELLS_MOST", 100)
    assert diagnose([window]).status == "healthy"
