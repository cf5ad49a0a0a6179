"""Step times that drift, or are long every so often, are told from a change of level and from noise."""

from __future__ import annotations

from typing import Any

import builders
import numpy as np
import pytest
from builders import Job, build, columns, said
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.diagnose.stats.onset import find_onset
from rankscope.diagnose.stats.rhythm import find_drift, find_spikes
from rankscope.observer.window.folder import Window


def noise(count: int, seed: int, sd: float = 0.04) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, sd, count))


@pytest.mark.parametrize("seed", range(7))
def test_a_steady_growth_is_a_drift_and_a_level_shift_is_none(seed: int) -> None:
    drifting = noise(71, seed) * np.linspace(1.0, 1.5, 71)
    drift = find_drift(drifting, find_onset(drifting))
    assert (
        drift is not None
        and drift.begin_s == pytest.approx(1.0, abs=0.1)
        and drift.end_s == pytest.approx(1.5, abs=0.1)
    )
    shifted = noise(71, seed) + 0.5 * (np.arange(71) >= 37)
    assert find_drift(shifted, find_onset(shifted)) is None


@pytest.mark.parametrize("seed", range(11))
def test_noise_does_not_drift_and_has_no_rhythm(seed: int) -> None:
    assert find_drift(noise(71, seed, 0.15)) is None
    assert find_spikes(noise(71, seed, 0.15)) is None


def test_a_wandering_series_does_not_drift() -> None:
    found = 0
    for seed in range(31):
        walk, rng = np.zeros(71), np.random.default_rng(seed)
        for step in range(1, 71):
            walk[step] = 0.8 * walk[step - 1] + rng.normal(0, 0.06)
        found += find_drift(np.exp(walk)) is not None
    assert found <= 3


@pytest.mark.parametrize("period", [3, 10, 23])
def test_every_so_many_steps_one_is_long(period: int) -> None:
    series = noise(97, 3)
    series[period - 1 :: period] += 2.0
    spikes = find_spikes(series)
    assert spikes is not None and spikes.period == period
    assert spikes.cost_s == pytest.approx(2.0 / period, rel=0.15)


def test_long_steps_at_random_have_no_period() -> None:
    found = 0
    for seed in range(31):
        series = noise(97, seed)
        series[np.random.default_rng(seed).choice(97, 7, replace=False)] += 2.0
        found += find_spikes(series) is not None
    assert found <= 1


@given(series=st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60))
def test_any_series_is_judged(series: list[float]) -> None:
    find_spikes(np.array(series))
    find_drift(np.array(series))


def lengthened(more: np.ndarray, **job: Any) -> Window:
    """A job in which all ranks are busy so much longer in each step."""
    window = build(Job(steps=len(more), **job))[0]
    rows = window.steps.to_pylist()
    for row in rows:
        row["own_s"] += more[row["step"]]
        row["seconds"] += more[row["step"]]
        row["start_s"] += more[: row["step"]].sum()
    return columns(window, "steps", rows)


def test_a_checkpoint_of_all_ranks_is_a_note_and_nobodys_fault() -> None:
    verdict = diagnose([lengthened(0.5 * (np.arange(70) % 10 == 9))])
    assert verdict.status == "healthy"
    assert "every 10th step" in said(verdict, NoteCode.SPIKES) and "most ranks are busy" in said(
        verdict, NoteCode.SPIKES
    )


def test_a_drift_has_no_moment_at_which_it_began() -> None:
    window = lengthened(np.linspace(0, 0.3, 70))
    assert "longer" in said(diagnose([window]), NoteCode.STEPS_DRIFT)


def test_a_drift_says_that_only_the_longer_steps_are_judged() -> None:
    # GIVEN steps that grow, or shrink, and are so uneven that a moment at which they changed is clear as well
    uneven = np.abs(np.random.default_rng(2).normal(0, 0.08, 70))
    growing = diagnose([lengthened(np.linspace(0, 0.3, 70) + uneven)])
    assert said(growing, NoteCode.STEPS_DRIFT).endswith(
        ": only the later part is judged (functions, counters and where the time goes: the whole window)"
    )
    shrinking = diagnose([lengthened(np.linspace(0.3, 0, 70) + uneven)])
    assert "shorter" in said(shrinking, NoteCode.STEPS_DRIFT) and "judged" not in said(shrinking, NoteCode.STEPS_DRIFT)


def test_two_long_steps_of_one_rank_ask_for_a_longer_window() -> None:
    window = build(Job())[0]
    window = builders.stalled(window, 3, (10, 40), 0.6)
    verdict = diagnose([window])
    assert not verdict.suspects
    assert verdict.status == "healthy"
    assert "rank 3 alone was slow in 2 of 70 steps, 30 apart" in said(verdict, NoteCode.SELDOM)


def test_two_long_steps_of_one_rank_that_take_a_large_part_of_the_window_leave_nothing_healthy() -> None:
    # GIVEN a rank that keeps the others waiting for a third of the time, in two steps: it may be chance, and it may come again
    window = build(Job())[0]
    more_s = 17 * float(np.median([row["seconds"] for row in window.steps.to_pylist()]))
    window = builders.stalled(window, 3, (10, 40), more_s)
    # WHEN it is diagnosed
    verdict = diagnose([window])
    # THEN nobody is accused, and the reason says what it cost and what would tell
    assert verdict.status == "unknown" and not verdict.suspects
    assert "(33 % of the time)" in verdict.notes[0].text and "look at 105 steps" in verdict.notes[0].text


def test_what_two_long_steps_ask_for_is_longer_than_the_window_that_has_them() -> None:
    window = build(Job(steps=217))[0]
    window = builders.stalled(window, 3, (10, 14), 0.6)
    text = said(diagnose([window]), NoteCode.SELDOM_LITTLE)
    assert "2 of 217 steps, 4 apart" in text and "look at 326 steps" in text


def step_shapes(shape: str) -> np.ndarray:
    steps = np.arange(90)
    return {
        "lasting": 0.06 * (steps >= 40),
        "passing": 0.06 * ((steps >= 40) & (steps < 60)),
        "late": 0.06 * (steps >= 70),
    }[shape]


@pytest.mark.parametrize(("shape", "status"), [("lasting", "unknown"), ("passing", "healthy"), ("late", "healthy")])
def test_only_what_lasts_a_third_of_the_window_is_a_change(shape: str, status: str) -> None:
    # GIVEN steps of all ranks that are a quarter longer from some moment on: for good, for a while, for less than a third of the window
    # WHEN they are diagnosed, THEN only the first makes the verdict unknown
    assert diagnose([lengthened(step_shapes(shape))]).status == status


@pytest.mark.parametrize("queued", [True, False])
def test_steps_that_others_lengthen_by_taking_the_cpu_are_the_hosts_noise(queued: bool) -> None:
    # GIVEN steps that become longer for good, with or without ready time of a rank that grew as much
    more = step_shapes("lasting")
    taken = {"name": "cpu.taken_s", "rank": 2, "comm": "backup", "pid": 77, "value": 2.5}
    window = lengthened(more, counters=[taken])
    rows = window.steps.to_pylist()
    for row in rows:
        row["sched_s"] += more[row["step"]] * queued

    # WHEN they are diagnosed
    verdict = diagnose([columns(window, "steps", rows)])

    # THEN the job is healthy where the kernel counted who took its CPU, with a note that names the taker
    assert verdict.status == ("healthy" if queued else "unknown")
    assert ("backup (77)" in said(verdict, NoteCode.HOST_BUSY)) == queued
