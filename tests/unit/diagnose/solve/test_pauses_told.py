"""Pauses that all ranks make, or that keep time, are told by function; stalls of one rank without any rhythm are not."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import TRAIN, Job, Work, build, codes, columns, said
from paused import paused

from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.labels import Labels
from rankscope.diagnose.infer.fleet.model import Pauses
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.solve.notes import pauses
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame

RANKS, STEPS = 4, 90
SAVE = ("save_checkpoint", 74, "")
EVALUATE = ("evaluate", 61, "")
EVERY_30TH = (29, 59, 89)


def a_window(**job: Any) -> Window:
    return build(Job(ranks=RANKS, steps=STEPS, **job))[0]


def told(window: Window) -> str:
    return said(diagnose([window]), NoteCode.PAUSE)


def test_an_evaluation_of_all_ranks_is_told_with_its_rhythm_and_share() -> None:
    verdict = diagnose([paused(a_window(), EVALUATE, 0.5, EVERY_30TH)])
    assert verdict.status == "healthy"
    assert (
        said(verdict, NoteCode.PAUSE)
        == "evaluate (train.py:61) takes 0.500 s in every 30th step on all ranks: 7.5 % of the window"
    )
    assert NoteCode.SPIKES not in codes(verdict)


def test_a_game_that_takes_most_of_the_time_between_updates_may_make_them_one_iteration() -> None:
    """Reinforcement learning: an iteration plays, then makes eight updates; it is told by its updates."""
    window = paused(a_window(), ("play", 33, ""), 1.0, range(7, STEPS, 8))
    (mean_s,) = {float(np.mean([row["seconds"] for row in window.steps.to_pylist()]))}
    text = told(window)
    assert "play (train.py:33) takes 1.0 s in every 8th step on all ranks: 55 % of the window; " in text
    assert text.endswith(f"the job may count 8 of these steps as one, of {8 * mean_s:.1f} s")


def test_one_checkpoint_for_which_the_others_wait_at_a_barrier_is_told() -> None:
    window = paused(a_window(), SAVE, 0.8, [40], workers=[0], waiters=[1, 2, 3])
    assert (
        told(window)
        == "save_checkpoint (train.py:74) takes 0.800 s once on rank 0, while all others wait for it: 4 % of the window"
    )


def test_a_checkpoint_for_which_the_others_wait_in_their_next_collective_is_told_if_it_keeps_time() -> None:
    window = paused(a_window(), SAVE, 0.3, EVERY_30TH, workers=[0])
    assert "0.300 s in every 30th step on rank 0, while all others wait for it" in told(window)


def test_what_a_library_does_is_told_with_who_calls_it() -> None:
    window = paused(a_window(), ("main", 76, "Trainer._save_checkpoint"), 0.3, EVERY_30TH)
    assert "main (train.py:76), in its call of Trainer._save_checkpoint, takes 0.300 s" in told(window)


def test_garbage_collections_are_told_as_such() -> None:
    assert told(paused(a_window(), ("gc", 0, ""), 0.3, EVERY_30TH, file="")).startswith(
        "garbage collection takes 0.300 s"
    )


def test_a_barrier_that_everybody_waits_in_is_told_as_waiting() -> None:
    window = paused(a_window(), ("main", 76, "barrier"), 0.3, EVERY_30TH, workers=(), waiters=range(RANKS))
    assert "in its call of barrier, takes 0.300 s in every 30th step, waiting for others, on all ranks" in told(window)


def test_waiting_of_all_without_a_rhythm_may_be_for_an_accident_and_is_not_told() -> None:
    assert told(paused(a_window(), ("main", 76, "all_reduce"), 0.3, [17, 40], workers=(), waiters=range(RANKS))) == ""


def test_waiting_of_the_others_is_not_told_beside_what_they_wait_for() -> None:
    # GIVEN rank 0 that saves, and others whose waiting lies in another function of theirs
    window = paused(a_window(), SAVE, 0.3, EVERY_30TH, workers=[0])
    window = paused(window, ("main", 76, "_engine_run_backward"), 0.0001, EVERY_30TH, workers=(), waiters=[1, 2, 3])
    assert len(told(window).splitlines()) == 1


@pytest.mark.parametrize("steps", [[17], [11, 47], [5, 14, 60]])
def test_stalls_of_one_rank_without_a_rhythm_are_not_told_as_pauses(steps: list[int]) -> None:
    assert told(paused(a_window(), SAVE, 0.3, steps, workers=[2])) == ""


def test_the_same_function_in_other_steps_on_each_rank_is_nothing_that_all_do() -> None:
    window = a_window()
    for rank, steps in enumerate(([5, 31], [12, 50], [20, 77], [33, 80])):
        window = paused(window, SAVE, 0.3, steps, workers=[rank])
    assert told(window) == ""


def test_a_pause_that_comes_by_the_clock_is_told_in_seconds() -> None:
    # GIVEN a log that is flushed every 4 s, while steps become longer: the distances in steps differ
    window = a_window()
    rows = window.steps.to_pylist()
    length = np.linspace(0.15, 0.35, STEPS)
    begin = np.concatenate(([0.0], np.cumsum(length)))
    for row in rows:
        row["seconds"], row["start_s"] = length[row["step"]], begin[row["step"]]
    flushed = [int(np.searchsorted(begin, at)) for at in (4.0, 8.0, 12.0, 16.0, 20.0)]
    window = paused(columns(window, "steps", rows), ("flush", 12, ""), 0.1, flushed, workers=[0])
    (found,) = pauses.find(gather([window]))
    assert "flush (train.py:12) takes 0.100 s every 4." in found.note.text


def test_a_rare_fault_is_accused_and_not_excused_as_a_pause() -> None:
    # GIVEN a rank that is slow in every 10th step by a function that it runs in these steps only
    steps = range(9, STEPS, 10)
    fault = Work("python", "augment", 0, 56)
    window = a_window(extra={2: [(fault, 0.05)]}, noise=0.02)
    rows = window.steps.to_pylist()
    for row in rows:
        late = 0.5 if row["step"] in steps else 0.0
        row["seconds"] += late - 0.05
        row["own_s"] += (late - 0.05) if row["rank"] == 2 else 0.0
        row["wait_s"] += (late - 0.05) if row["rank"] != 2 else 0.0
    window = paused(columns(window, "steps", rows), ("augment", 56, ""), 0.0, list(steps), workers=[2])
    listed = [{**row, "total_s": 4.5, "p50_s": 0.5, "max_s": 0.5} for row in window.pauses.to_pylist()]

    # WHEN it is diagnosed
    verdict = diagnose([columns(window, "pauses", listed)])

    # THEN it is accused as before, and no note calls it a pause
    assert [suspect.ranks for suspect in verdict.suspects] == [(2,)]
    assert NoteCode.PAUSE not in codes(verdict)


def test_steps_of_a_table_that_lies_are_ignored() -> None:
    window = paused(a_window(), EVALUATE, 0.5, EVERY_30TH)
    rows = window.pauses.to_pylist()
    bad = [{**row, "steps": [-5, 2**31 - 1]} for row in rows] + [
        {**row, "total_s": float("nan"), "steps": None} for row in rows
    ]
    bad += [{**row, "count": -3} for row in rows] + [{**row, "rank": 99} for row in rows]
    assert told(columns(window, "pauses", bad)) == ""


def test_more_of_what_every_step_does_is_told_where_it_keeps_time() -> None:
    window = paused(a_window(), ("Net.forward", 55, ""), 0.3, EVERY_30TH, more=True)
    assert told(window).startswith("Net.forward (train.py:55) takes 0.300 s more in every 30th step on all ranks")


def test_more_of_what_every_step_does_is_not_told_of_long_steps_at_random() -> None:
    assert told(paused(a_window(), ("Net.forward", 55, ""), 0.3, [5, 14, 60], more=True)) == ""


def test_two_long_steps_of_one_rank_are_told_with_the_function_in_which_they_were() -> None:
    window = paused(build(Job())[0], ("main", 76, "save"), 0.6, [10, 40], workers=[3])
    text = said(diagnose([window]), NoteCode.SELDOM)
    assert "2 of 70 steps, 30 apart, each time in main (train.py:76), in its call of save (7 % of" in text


def test_rows_of_very_many_functions_are_put_in_their_places_soon() -> None:
    # GIVEN pauses in functions of which half lie in one that holds them
    count = 120_000
    fleet = gather([a_window()])
    row, one = np.arange(count), np.zeros(count, dtype=np.int64)
    name = Labels(row % 2, ("f", "g.<locals>.<genexpr>"))
    told = Pauses(
        one, name, Labels(one, (TRAIN,)), row, Labels(one, ("",)), one > 0, one, one, one, one, one, np.append(row, 0)
    )
    stack = replace(fleet.patterns.stack, frames=(StackFrame("g", TRAIN, 7),))
    fleet = replace(fleet, pauses=told, patterns=replace(fleet.patterns, stack=stack))
    began = time.process_time()
    places = pauses._places(fleet)
    took_s = time.process_time() - began
    # THEN each row is in one place, in order
    found = {(place.function.name, place.function.line): rows.tolist() for place, rows in places.items()}
    assert len(found) == count / 2 + 1 and found["g", 7] == row[1::2].tolist()
    assert all(found["f", line] == [line] for line in row[::2].tolist())
    assert took_s < 2
