"""Slow now and then: no mean over steps shows it, and chance must not be taken for it."""

from __future__ import annotations

import builders
import numpy as np
import pytest
from builders import Job, build, said

from rankscope.diagnose.infer.model.episodes import find_episodes
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window


def spiky(rank: int, every: int, seconds: float, **more: object) -> Window:
    """A job in which augment takes `seconds` more in every `every`-th step of one rank."""
    job = Job(extra={rank: [(builders.BUSY, 1e-9)]}, **more)  # type: ignore[arg-type]
    window = builders.stalled(build(job)[0], rank, range(every - 1, job.steps, every), seconds)
    patterns = window.patterns.to_pylist()
    for row in patterns:
        if row["rank"] == rank and row["name"] == "augment" and row["kind"] == "python":
            row["per_step_s"] += seconds * (job.steps // every) / job.steps
            break
    return builders.columns(window, "patterns", patterns)


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_that_is_slow_every_tenth_step_is_named(seed: int) -> None:
    verdict = diagnose([spiky(seed, 10, 0.4, seed=seed)])
    assert verdict.status == "fault" and len(verdict.suspects) == 1
    suspect = verdict.suspects[0]
    assert (suspect.ranks, suspect.component) == ((seed,), "python")
    assert suspect.function is not None and suspect.function.name == "augment"
    assert suspect.lost_seconds_per_step == pytest.approx(0.04, rel=0.15)


@pytest.mark.parametrize("seed", range(3))
def test_a_small_change_of_level_does_not_hide_what_came_before_it(seed: int) -> None:
    # GIVEN a rank that is slow in every 23rd of 211 steps, and the last 37 of them a little longer for everybody
    window = spiky(1, 23, 2.0, seed=seed, steps=211)
    rows = window.steps.to_pylist()
    for row in rows:
        if row["step"] >= 174:
            row["own_s"] += 0.04
            row["seconds"] += 0.04
    # WHEN it is diagnosed
    verdict = diagnose([builders.columns(window, "steps", rows)])
    # THEN the later part is judged, and that rank is named nevertheless
    assert "the later part is judged" in said(verdict, NoteCode.STEPS_CHANGED)
    (suspect,) = verdict.suspects
    assert suspect.ranks == (1,) and suspect.function is not None and suspect.function.name == "augment"


def test_one_or_two_episodes_are_an_accident() -> None:
    assert diagnose([spiky(3, 33, 0.5)]).status == "healthy"


@pytest.mark.parametrize("seed", range(10))
def test_episodes_that_fall_on_all_ranks_are_nobodys_fault(seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = 0.2 * np.exp(rng.normal(0, 0.05, (8, 97))) + 0.3 * (rng.random((8, 97)) < 0.03)
    assert not list(find_episodes(own, np.zeros(8, np.int64), 0.3, np.full(8, 0.01), np.empty(0, np.int64)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_episodes_that_keep_time_are_no_accident_even_of_few_ranks(ranks: int) -> None:
    # GIVEN a rank that is slow in every 17th of 70 steps, beside small stalls of all ranks
    window = spiky(1, 17, 2.0, ranks=ranks)
    rng = np.random.default_rng(3)
    rows = window.steps.to_pylist()
    for row in rows:
        if rng.random() < 0.03:
            row["own_s"] += 0.2
    verdict = diagnose([builders.columns(window, "steps", rows)])
    assert [(s.component, s.ranks) for s in verdict.suspects] == [("python", (1,))]
    assert any("every" in e.measure and e.value == "17th step" for e in verdict.suspects[0].evidence)


@pytest.mark.parametrize("seed", range(20))
def test_few_accidents_of_few_ranks_are_nobodys_fault(seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = 0.2 * np.exp(rng.normal(0, 0.05, (3, 97)))
    own[rng.integers(0, 3, 5), rng.integers(0, 97, 5)] += 0.5
    assert not list(find_episodes(own, np.zeros(3, np.int64), 0.3, np.full(3, 0.01), np.empty(0, np.int64)))


@pytest.mark.parametrize(("share", "named"), [(3 / 97, [1]), (1.0, [])])
def test_three_stalls_of_one_of_few_ranks_are_no_accident_where_all_are_at_one_place(
    share: float, named: list[int]
) -> None:
    # GIVEN three long steps of a rank of four: of three accidents all fall on one rank in every sixteenth window
    rng = np.random.default_rng(1)
    own = 0.2 * np.exp(rng.normal(0, 0.05, (4, 97)))
    own[1, [13, 41, 90]] += 1.3
    # WHEN it is in each of them at a place where it hardly ever is else, or where it always is
    found = find_episodes(own, np.zeros(4, np.int64), 0.3, np.full(4, 0.01), np.empty(0, np.int64), lambda *_: share)
    assert [each.row for each in found] == named


@pytest.mark.parametrize(("share", "named"), [(2 / 142, [1]), (0.2, []), (1.0, [])])
def test_two_stalls_of_one_of_four_ranks_are_no_accident_at_a_place_where_it_hardly_ever_is(
    share: float, named: list[int]
) -> None:
    rng = np.random.default_rng(1)
    own = 0.2 * np.exp(rng.normal(0, 0.05, (4, 142)))
    own[1, [60, 110]] += 2.4
    found = find_episodes(own, np.zeros(4, np.int64), 0.3, np.full(4, 0.01), np.empty(0, np.int64), lambda *_: share)
    assert [each.row for each in found] == named


def test_stalls_of_one_rank_that_may_be_chance_are_told_with_what_they_cost() -> None:
    # GIVEN three long steps, without a rhythm, of one of four ranks, which nothing tells apart
    window = build(Job(ranks=4, steps=97))[0]
    window = builders.stalled(window, 1, (13, 41, 90), 1.3)
    verdict = diagnose([window])
    # THEN nobody is accused, and what it costs is told
    assert not verdict.suspects
    assert "rank 1 alone was slow in 3 of 97 steps" in said(verdict, NoteCode.SELDOM)


def test_a_long_stall_of_one_rank_is_told_beside_a_small_one_of_another() -> None:
    # GIVEN a step of five seconds of one of four ranks, and one that is a little longer of another
    window = builders.stalled(build(Job(ranks=4, steps=90))[0], 2, (49,), 15.0)
    verdict = diagnose([builders.stalled(window, 3, (78,), 0.12)])
    # THEN the job, of whose time it took a third, is not healthy
    assert verdict.status == "unknown"
    assert "one step of 90 took 15 s longer on rank 2 alone" in said(verdict, NoteCode.UNPROVEN)


def test_a_rank_that_is_slow_in_every_other_step_is_found_though_its_own_steps_vary_most() -> None:
    # GIVEN eight ranks that vary by 1 %, of which one takes four to nine times as long in every other step
    rng = np.random.default_rng(4)
    own = 0.07 * (1 + 0.01 * rng.normal(size=(8, 30)))
    own[6, 1::2] += rng.uniform(0.25, 0.5, 15)
    # WHEN
    (found,) = find_episodes(own, np.zeros(8, dtype=np.int64), 0.3, np.full(8, 0.015), np.empty(0, dtype=np.int64))
    # THEN
    assert (found.row, found.count, found.of_all, found.rare) == (6, 15, 15, False)
    assert found.lost_s == pytest.approx(float((own[6] - np.delete(own, 6, 0).max(axis=0)).clip(0).mean()), rel=0.1)
