"""A rank that is slow by bursts, so that its steps nearly prove it: a counter convicts it, and without one nobody is accused."""

from __future__ import annotations

import builders
import numpy as np
import pytest
from builders import Job, build, own_of, retimed, said

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window

VICTIM = 2


def by_bursts(job: Job, seconds: float, length: int = 3, mean: float = 0.0) -> Window:
    """The job's only window, in which the victim is slower by `mean`, and by `seconds` more or less every `length` steps."""
    window = build(job)[0]
    more = np.zeros((job.ranks, job.steps))
    more[VICTIM] = mean + np.where(np.arange(job.steps) // length % 2, seconds, -seconds)
    own = own_of(window) + more
    return retimed(window, own, own.max(axis=0) + job.transfer_s, sched_s=more)


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_who_stands_in_the_run_queue_by_bursts_is_named(seed: int) -> None:
    job = builders.hogged(VICTIM, 0.03, steps=41, seed=seed)
    verdict = diagnose([by_bursts(job, 0.03)])
    assert [(suspect.component, suspect.ranks) for suspect in verdict.suspects] == [("cpu", (VICTIM,))], verdict.notes
    assert verdict.suspects[0].confidence < diagnose(build(job)).suspects[0].confidence, "as in every step"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("length", [3, 20])
def test_who_is_throttled_is_named_however_it_comes_and_goes(length: int, seed: int) -> None:
    verdict = diagnose([by_bursts(builders.throttled(VICTIM, 0.04, steps=41, seed=seed), 0.05, length)])
    assert [(suspect.cause, suspect.ranks) for suspect in verdict.suspects] == [("quota", (VICTIM,))], verdict.notes


def test_a_throttled_rank_does_not_hide_a_slow_function_of_another() -> None:
    job = builders.throttled(VICTIM, 0.04, steps=41)
    job.extra[0] = [(builders.BUSY, 0.03)]
    verdict = diagnose([by_bursts(job, 0.05)])
    assert {(suspect.component, suspect.ranks) for suspect in verdict.suspects} == {
        ("cpu", (VICTIM,)),
        ("python", (0,)),
    }


@pytest.mark.parametrize("seed", range(3))
def test_a_quota_that_throttles_all_ranks_alike_accuses_nobody(seed: int) -> None:
    job = builders.throttled(VICTIM, 1e-6, steps=41, seed=seed)
    for counter in job.counters:
        counter["value"] = 1.0
    assert diagnose([by_bursts(job, 0.05)]).suspects == ()


def test_what_the_step_would_not_be_shorter_without_is_told_with_its_rank() -> None:
    job = Job(steps=41, extra={0: [(builders.BUSY, 0.02)]})
    verdict = diagnose([by_bursts(job, 0.06, length=1)])
    assert verdict.suspects == ()
    assert "rank 0" in said(verdict, NoteCode.NO_GAIN), verdict.notes


@pytest.mark.parametrize("seed", range(6))
def test_the_same_bursts_of_which_no_counter_tells_accuse_nobody(seed: int) -> None:
    verdict = diagnose([by_bursts(Job(steps=41, seed=seed), 0.03, mean=0.03)])
    assert verdict.suspects == ()


def test_of_more_slow_ranks_than_are_examined_the_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "EXAMINED", 4)
    slow = {3: 0.06, 11: 0.06, 12: 0.12, 19: 0.12, 20: 0.12, 21: 0.12}
    verdict = diagnose(
        build(Job(ranks=48, hosts=6, extra={rank: [(builders.BUSY, by_s)] for rank, by_s in slow.items()}))
    )
    assert {rank for suspect in verdict.suspects for rank in suspect.ranks} == {12, 19, 20, 21}
    assert "2 more are slower than their peers: ranks 3, 11" in said(verdict, NoteCode.WORST_ONLY)
