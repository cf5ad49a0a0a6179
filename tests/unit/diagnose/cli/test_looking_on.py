"""A live diagnosis goes on until it can tell, or for as long as may be."""

from __future__ import annotations

import math
from dataclasses import replace

import builders
import numpy as np
import pytest
from builders import Job, build, codes

from rankscope.diagnose.face.cli.live import Told
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.solve.enough import further_s
from rankscope.diagnose.infer.solve.judge import judge
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.observer.window.folder import Window


def observed(job: Job) -> tuple[list[Window], list[Verdict]]:
    windows = build(job)
    return windows, [judge(gather(windows))]


def named(verdict: Verdict, job: str, **more: object) -> Verdict:
    return replace(verdict, job=job, title=job, **more)  # type: ignore[arg-type]


def few_steps(window_s: float = 20.0) -> tuple[list[Window], list[Verdict]]:
    return observed(Job(ranks=4, steps=4, window_s=window_s))


def test_few_steps_ask_for_as_many_as_a_large_effect_is_proven_with() -> None:
    windows, (verdict,) = few_steps()
    verdict = replace(verdict, step_seconds=replace(verdict.step_seconds, p50=4.5))
    told = Told(20.0, 120.0)
    further = told.hear(windows, [verdict])
    assert further is not None and further[0] == 20 * 4.5
    assert "complete steps" in further[1]


def test_the_further_window_is_no_longer_than_what_is_left_and_no_shorter_than_the_last() -> None:
    windows, verdicts = few_steps()
    told = Told(20.0, 75.0)
    first, second = told.hear(windows, verdicts), told.hear(windows, verdicts)
    assert first is not None and first[0] == 40.0
    assert second is None  # 15 s are left: they would tell less than the 40 before
    assert Told(20.0, 30.0).hear(windows, verdicts) is None
    assert Told(20.0, 20.0).hear(windows, verdicts) is None


def test_what_is_told_at_last_says_what_was_not_before() -> None:
    told = Told(20.0, 120.0)
    told.hear(*few_steps())
    assert told.hear(*observed(builders.slow_python(3, 0.08))) is None
    (verdict,) = told.verdicts
    assert verdict.status == "fault" and verdict.suspects[0].ranks == (3,)
    (note,) = [note for note in verdict.notes if note.code is NoteCode.LOOKED_ON]
    assert "20 s" in note.text and "complete steps" in note.text


def test_a_job_that_is_judged_keeps_its_verdict_while_another_one_is_looked_at_further() -> None:
    windows, (short,) = few_steps()
    (fault,) = observed(builders.slow_python(3, 0.08))[1]
    (healthy,) = observed(Job())[1]
    told = Told(20.0, 120.0)
    assert told.hear(windows, [named(short, "a"), named(fault, "b")]) is not None
    assert told.hear(windows, [named(healthy, "a"), named(healthy, "b")]) is None
    assert [(one.job, one.status) for one in told.verdicts] == [("b", "fault"), ("a", "healthy")]


def test_a_job_that_ends_meanwhile_keeps_what_was_told_of_it() -> None:
    windows, (short,) = few_steps()
    told = Told(20.0, 120.0)
    told.hear(windows, [short])
    assert told.hear([], []) is None
    assert told.verdicts == [short] and told.windows == windows


def test_what_no_window_can_tell_is_not_waited_for() -> None:
    _, (verdict,) = observed(Job(ranks=1, ranks_columns={0: {"world_size": 2}}))
    assert verdict.status == "unknown" and codes(verdict)[0] is NoteCode.ONE_RANK
    assert further_s(verdict) is None


def test_ranks_that_are_at_work_without_a_step_are_looked_at_for_as_long_as_may_be() -> None:
    _, (verdict,) = few_steps()
    none = replace(verdict.step_seconds, p50=None)
    at_work = replace(verdict, step_seconds=none, notes=(Note(NoteCode.NO_STEP_YET, "no step was seen"),))
    assert further_s(at_work) == math.inf
    assert further_s(replace(at_work, notes=(Note(NoteCode.NO_STEPS, "all wait for a lock file"),))) is None


def test_a_stall_that_may_be_chance_is_looked_at_further_though_the_job_seems_healthy() -> None:
    window = build(Job(steps=70))[0]
    window = builders.stalled(window, 3, (10, 40), 0.6)
    verdict = judge(gather([window]))
    assert verdict.status == "healthy" and NoteCode.SELDOM in codes(verdict)
    assert further_s(verdict) == pytest.approx(2 * (verdict.end - verdict.start))


@pytest.mark.parametrize(("stall_steps", "told"), [(1, NoteCode.SELDOM_LITTLE), (8, NoteCode.SELDOM)])
def test_one_long_step_of_one_rank_is_told_where_it_costs_as_much_as_counts(stall_steps: float, told: NoteCode) -> None:
    window = build(Job(steps=70))[0]
    more_s = stall_steps * float(np.median([row["seconds"] for row in window.steps.to_pylist()]))
    window = builders.stalled(window, 3, (10,), more_s)
    verdict = judge(gather([window]))
    assert verdict.status == "healthy"
    assert (told in codes(verdict)) == (told is NoteCode.SELDOM)
    assert (further_s(verdict) is not None) == (told is NoteCode.SELDOM)
