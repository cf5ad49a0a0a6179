"""A rank that is slow for a while, and before and after as fast as the others: the stretch is found, and judged alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from rankscope.diagnose.fleet.timings.steps_file import check
from rankscope.diagnose.solve.judge_steps_file import judge_timings
from rankscope.diagnose.stats.scan import strongest_stretch
from rankscope.diagnose.verdict.contract import Verdict
from rankscope.diagnose.verdict.note import NoteCode

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
