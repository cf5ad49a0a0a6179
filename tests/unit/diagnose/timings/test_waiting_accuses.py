"""Where the own time of a rank was not timed, those that wait for it point at it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rankscope.diagnose.infer.fleet.timings.steps_file import check
from rankscope.diagnose.infer.solve.judge_steps_file import judge_timings
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode

RANKS, STEPS = 16, 41


def verdict(rows: list[dict[str, Any]]) -> Verdict:
    return judge_timings(check(pa.Table.from_pylist(rows), "file"), "job")


def timed(seed: int, late_s: float, culprit: int, own: bool = True, noise: float = 0.02) -> list[dict[str, Any]]:
    """71 ms of work on every rank, timed or not; the culprit is late by what nobody timed, and the others wait in two collectives."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(STEPS):
        work = 0.071 * np.exp(rng.normal(0, noise, RANKS))
        late = np.where(np.arange(RANKS) == culprit, late_s * np.exp(rng.normal(0, 0.1)), 0.0)
        stay = (work + late).max() - (work + late) + 0.004
        for rank in range(RANKS):
            kinds = [("backward", "gpu", work[rank], False)] if own else []
            kinds += [
                ("all_gather", "collective", 0.3 * stay[rank], True),
                ("reduce_scatter", "collective", 0.7 * stay[rank], True),
            ]
            rows += [
                {"rank": rank, "step": step, "function": name, "kind": kind, "seconds": seconds, "waits": waits}
                for name, kind, seconds, waits in kinds
            ]
    return rows


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("late_s", [0.22, 0.02])
def test_the_one_that_does_not_wait_is_who_the_others_wait_for(late_s: float, own: bool, seed: int) -> None:
    culprit = (5 * seed + 3) % RANKS
    found = verdict(timed(seed, late_s, culprit, own))
    assert found.status == "fault" and [suspect.ranks for suspect in found.suspects] == [(culprit,)], found.notes
    assert found.suspects[0].lost_seconds_per_step == pytest.approx(late_s, rel=0.2)
    assert found.suspects[0].function is not None and found.suspects[0].function.name == "not timed"
    assert any(note.code is NoteCode.PARTLY_TIMED for note in found.notes)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("noise", [0.02, 0.15])
def test_where_nobody_is_late_nobody_is_accused(own: bool, noise: float, seed: int) -> None:
    found = verdict(timed(seed, 0.0, 0, own, noise))
    assert found.status != "fault" and not any(suspect.function for suspect in found.suspects), found.suspects


def test_ranks_that_all_do_the_same_untimed_are_no_difference() -> None:
    rows = [row for row in timed(1, 0.0, 0) if row["function"] != "all_gather"]
    assert not any(note.code is NoteCode.PARTLY_TIMED for note in verdict(rows).notes)
