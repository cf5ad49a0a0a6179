"""A rank that is slow for a while, and before and after as fast as the others: the stretch is found, and judged alone."""

from __future__ import annotations

import builders
import numpy as np
import pyarrow as pa
import pytest
from builders import BUSY, Job, build, own_of, retimed

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.timings.steps_file import check
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.solve.judge_steps_file import judge_timings
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.diagnose.stats.scan import strongest_stretch
from rankscope.observer.window.folder import Window

RANKS, STEPS, CULPRIT = 16, 300, 5


def judged(seed: int, late: float, begin: int, length: int, noise: float = 0.03, wander: float = 0.0) -> Verdict:
    """15 of 16 ranks work 150 ms a step; the culprit is slower by the share `late` in some steps."""
    rng = np.random.default_rng(seed)
    drift = np.zeros((RANKS, STEPS))
    for step in range(1, STEPS):
        drift[:, step] = 0.8 * drift[:, step - 1] + rng.normal(0, 0.6 * wander, RANKS)
    work = 0.15 * np.exp(rng.normal(0, 0.01, (RANKS, 1)) + rng.normal(0, noise, (RANKS, STEPS)) + drift)
    work[CULPRIT, begin : begin + length] *= 1 + late
    stay = work.max(axis=0) + 0.02 - work
    rank, step = (each.ravel() for each in np.indices(work.shape))
    tables = [
        pa.table({"rank": rank, "step": step, "function": [name] * rank.size, "kind": [kind] * rank.size, "seconds": seconds.ravel()})
        for name, kind, seconds in (("backward", "gpu", work), ("all_reduce", "collective", stay))
    ]  # fmt: skip
    return judge_timings(check(pa.concat_tables(tables), "file"), "job")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("late", "begin", "length"), [(0.3, 135, 30), (0.15, 100, 100), (0.3, 0, 60), (0.5, 280, 20)])
def test_a_rank_that_is_slow_for_a_while_is_named(late: float, begin: int, length: int, seed: int) -> None:
    verdict = judged(seed, late, begin, length)
    assert [suspect.ranks for suspect in verdict.suspects] == [(CULPRIT,)], verdict.notes
    # Less than what it is late by is lost: of fifteen others one is always late by accident.
    assert 0.4 * 0.15 * late <= verdict.suspects[0].lost_seconds_per_step <= 1.3 * 0.15 * late


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("noise", "wander"), [(0.03, 0.0), (0.1, 0.0), (0.03, 0.05), (0.05, 0.1)])
def test_noise_makes_no_stretch(noise: float, wander: float, seed: int) -> None:
    assert judged(seed, 0.0, 0, 0, noise, wander).status != "fault"


def test_the_reader_is_told_which_steps_are_judged() -> None:
    verdict = judged(1, 0.3, 135, 30)
    said = [note.text for note in verdict.notes if note.code is NoteCode.STRETCH]
    assert len(said) == 1 and "of the 300 steps" in said[0]


def test_a_stretch_is_found_where_it_was_put_and_one_stall_is_none() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 1, (9, 211))
    values[4, 60:101] += 3
    found = strongest_stretch(values, 0.0, 0.5)
    assert found is not None and found.row == 4 and found.strength > 20
    assert abs(found.begin - 60) <= 8 and abs(found.end - 101) <= 8
    values = rng.normal(0, 1, (9, 211))
    values[4, 60] += 100
    stall = strongest_stretch(values, 0.0, 0.5)
    assert stall is None or stall.strength < 5


@pytest.mark.parametrize("seed", range(12))
def test_what_wanders_slowly_makes_no_stretch(seed: int) -> None:
    # Two ranks of which each in turn shares its CPU with a loader worker, for seconds: far less than the noise of single steps
    # in its correlation, far more in the mean of sixty of them.
    rng = np.random.default_rng(seed)
    slow = np.zeros(400)
    for step in range(1, 400):
        slow[step] = 0.98 * slow[step - 1] + rng.normal(0, 0.2 * 1.5)
    gap = slow + rng.normal(0, 2.0, 400)
    found = strongest_stretch(np.stack([gap, -gap]), 0.4, 1.3)
    assert found is None or found.strength < limits.SCORE_LEAST


def for_a_while(job: Job, late_s: float, begin: int, length: int) -> Window:
    """The job's only window, in which rank 2 is slower by `late_s` in some steps; the job gives it the mean of that in all."""
    window = build(job)[0]
    own = own_of(window)
    own[2] -= late_s * length / job.steps
    own[2, begin : begin + length] += late_s
    return retimed(window, own, own.max(axis=0) + job.transfer_s)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("begin", [10, 90])
def test_in_a_window_the_function_is_named_that_was_slow_for_a_while(begin: int, seed: int) -> None:
    job = Job(ranks=4, steps=150, seed=seed, extra={2: [(BUSY, 0.07 * 30 / 150)]})
    verdict = diagnose([for_a_while(job, 0.07, begin, 30)])
    assert [(suspect.ranks, suspect.function and suspect.function.name) for suspect in verdict.suspects] == [
        ((2,), "augment")
    ], verdict.notes
    assert verdict.suspects[0].lost_seconds_per_step == pytest.approx(0.07, rel=0.5)


@pytest.mark.parametrize("seed", range(4))
def test_a_cpu_that_others_took_for_a_while_is_a_busy_host(seed: int) -> None:
    mean = 0.07 * 30 / 150
    job = builders.hogged(2, mean, ranks=4, steps=150, seed=seed)
    assert diagnose([for_a_while(job, 0.07, 60, 30)]).suspects == ()


def test_what_comes_and_goes_beside_strangers_is_theirs() -> None:
    job = Job(ranks=4, steps=150, extra={2: [(BUSY, 0.07 * 30 / 150)]})
    job.counters.append({"scope": "host", "name": "cpu.busy_s", "value": 0.1 * 8 * 20.0, "limit": 8 * 20.0})
    assert diagnose([for_a_while(job, 0.07, 60, 30)]).suspects == ()
