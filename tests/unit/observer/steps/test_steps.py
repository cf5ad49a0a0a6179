"""FoundSteps are found from the repeating sequence of markers, whatever a step is made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.observer.steps.find import StepGuide, common_guide, find_steps
from rankscope.observer.steps.markers import Markers

BACKWARD, WAIT, ALLREDUCE = 14, 13, 0


def markers_of(pattern: list[tuple[int, float, float]], steps: int, seed: int = 0, jitter: float = 0.05) -> Markers:
    """`pattern`: (symbol, gap before, duration) per marker of a step; every time varies by `jitter`."""
    rng = np.random.default_rng(seed)
    now, symbols, starts, ends = 0.0, [], [], []
    for _ in range(steps):
        for symbol, gap, duration in pattern:
            now += gap * rng.normal(1, jitter)
            starts.append(now)
            now += duration * rng.normal(1, jitter)
            symbols.append(symbol)
            ends.append(now)
    return Markers(np.array(symbols, dtype=np.int64), np.array(starts), np.array(ends))


CASES = {
    "ddp: one backward pass with its wait": ([(BACKWARD, 0.1, 0.01), (WAIT, 0.001, 0.02)], 2),
    "gradient accumulation over four passes": (
        [(BACKWARD, 0.05, 0.01)] * 3 + [(BACKWARD, 0.05, 0.01), (WAIT, 0.001, 0.03)],
        5,
    ),
    "a bare all-reduce per step": ([(ALLREDUCE, 0.2, 0.01)], 1),
    "eight equal all-reduces, then the forward pass": ([(WAIT, 0.2, 0.004)] + [(WAIT, 0.0005, 0.004)] * 7, 8),
    "one gather, twenty all-reduces in a burst": (
        [(BACKWARD, 0.08, 0.002)] + [(ALLREDUCE, 0.0001, 0.0003)] * 20,
        21,
    ),
    "seven all-reduces of different sizes in a burst": (
        [(WAIT, 0.05, 0.001)] + [(WAIT, 10.0**-n, 0.003) for n in (3, 5, 4, 3, 6, 5)],
        7,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_whole_repeating_sequence(name: str) -> None:
    pattern, period = CASES[name]
    markers = markers_of(pattern, 37)
    steps = find_steps(markers)
    expected = float(np.median(np.diff(markers.start_s[::period])))
    assert steps.period == period
    assert steps.count in (35, 36)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(expected, rel=0.05)


def test_a_lost_marker_costs_at_most_its_step() -> None:
    pattern, _ = CASES["gradient accumulation over four passes"]
    markers = markers_of(pattern, 41)
    keep = np.ones(len(markers.symbol), dtype=bool)
    keep[103] = False
    steps = find_steps(Markers(markers.symbol[keep], markers.start_s[keep], markers.end_s[keep]))
    durations = np.diff(steps.edge_s)
    assert steps.count >= 38
    assert np.sum(durations > 1.5 * np.median(durations)) <= 1


def test_a_slow_stretch_does_not_change_the_period() -> None:
    first = markers_of(CASES["ddp: one backward pass with its wait"][0], 19)
    later = markers_of([(BACKWARD, 0.3, 0.01), (WAIT, 0.001, 0.02)], 23, seed=1)
    joined = Markers(
        np.concatenate([first.symbol, later.symbol]),
        np.concatenate([first.start_s, later.start_s + first.end_s[-1]]),
        np.concatenate([first.end_s, later.end_s + first.end_s[-1]]),
    )
    steps = find_steps(joined)
    assert steps.period == 2
    assert steps.count in (40, 41)


def test_a_rank_whose_gaps_alternate_takes_the_step_of_its_peers() -> None:
    """Throttled reads come in pairs, a quick one and a slow one: by itself such a rank seems to make half as many steps."""
    alternating = markers_of(
        [(BACKWARD, 0.2, 0.01), (WAIT, 0.001, 0.02), (BACKWARD, 0.5, 0.01), (WAIT, 0.001, 0.02)], 14
    )
    peers = [find_steps(markers_of([(BACKWARD, 0.1, 0.01), (WAIT, 0.001, 0.25)], 28, seed=seed)) for seed in range(3)]
    alone = find_steps(alternating)
    assert alone.period == 4
    assert common_guide([alone, *peers]).period == 2
    assert find_steps(alternating, StepGuide(period=2)).count in (26, 27)


def test_noise_that_a_long_period_explains_a_little_better_does_not_make_a_long_step() -> None:
    """Three reductions per step on a busy host: the gaps inside the burst vary nearly as much as the work between steps."""
    rng = np.random.default_rng(3)
    work = np.stack(
        [rng.lognormal(-3.5, 0.5, 240), rng.lognormal(-5.6, 0.9, 240), rng.lognormal(-5.6, 0.9, 240)], axis=1
    ).ravel()
    start = np.cumsum(work + 0.001)
    steps = find_steps(Markers(np.zeros(len(start), dtype=np.int64), start, start + 0.001))
    assert steps.period == 3


GRADIENT, LOG, VALIDATE, RECEIVE = 71, 72, 73, 5


def logged(iterations: int) -> tuple[Markers, float]:
    """A loop that gathers a loss in every 10th iteration by eight messages, and validates in every 50th; its step."""
    rng = np.random.default_rng(3)
    now, calls, begun = 0.0, list[tuple[int, int, float, float]](), list[float]()

    def call(symbol: int, site: int, gap: float, stay: float) -> None:
        nonlocal now
        begin = now + gap * rng.lognormal(0, 0.05)
        now = begin + stay * rng.lognormal(0, 0.05)
        calls.append((symbol, site, begin, now))

    for iteration in range(1, iterations + 1):
        begun.append(now)
        call(ALLREDUCE, GRADIENT, 0.004, 0.002)
        for _ in range(0 if iteration % 10 else 8):
            call(RECEIVE, LOG, 0.00001, 0.00002)
        for _ in range(0 if iteration % 50 else 60):
            call(ALLREDUCE, VALIDATE, 0.0005, 0.0005)
    symbol, site, start, end = (np.array(column) for column in zip(*calls, strict=True))
    return Markers(symbol, start, end, site=site), float(np.median(np.diff(begun)))


def test_a_burst_of_calls_now_and_then_lies_inside_steps_however_many_they_are() -> None:
    markers, step_s = logged(409)
    steps = find_steps(markers)
    assert steps.count in (407, 408)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(step_s, rel=0.05)


def test_calls_whose_place_was_not_seen_count_as_calls_from_the_usual_one() -> None:
    markers, step_s = logged(409)
    gradients = np.flatnonzero(markers.site == GRADIENT)
    markers.site[gradients[::7]] = 0
    steps = find_steps(markers)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(step_s, rel=0.05)
    assert steps.count >= 400


def test_too_few_markers_give_no_steps_and_a_reason() -> None:
    steps = find_steps(markers_of([(ALLREDUCE, 0.1, 0.01)], 3))
    assert steps.count == 0
    assert "backward passes): 3 in the window" in steps.reason


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1), st.floats(0, 1)), max_size=80))
def test_any_sequence_gives_ordered_edges(raw: list[tuple[int, float, float]]) -> None:
    starts = np.cumsum([gap for _, gap, _ in raw]) if raw else np.empty(0)
    durations = np.array([d for _, _, d in raw])
    steps = find_steps(Markers(np.array([s for s, _, _ in raw], dtype=np.int64), starts, starts + durations))
    assert (np.diff(steps.edge_s) > 0).all()
    assert steps.count >= 3 or steps.reason


GPU_WAIT = 17


def on_gpus(pattern: list[tuple[int, float, float]], steps: int) -> Markers:
    markers = markers_of(pattern, steps)
    return Markers(markers.symbol, markers.start_s, markers.end_s, frozenset({GPU_WAIT}))


ENQUEUED = [(ALLREDUCE, 0.03, 1e-5)] + [(ALLREDUCE, 0.002, 1e-5)] * 4


def test_a_step_on_a_gpu_ends_when_its_host_has_waited_for_it() -> None:
    """The longest gap follows an enqueued collective, but the host is level with its GPU after the wait only."""
    pattern = [*ENQUEUED[:4], (GPU_WAIT, 0.001, 0.3), (ALLREDUCE, 0.02, 1e-5)]
    markers = on_gpus(pattern, 29)
    steps = find_steps(markers)
    assert steps.period == 6
    ends = markers.end_s[markers.symbol == GPU_WAIT]
    assert steps.edge_s[1:-1] == pytest.approx(ends[1 : len(steps.edge_s) - 1])


def test_a_host_that_waits_in_every_fourth_step_makes_steps_of_four() -> None:
    """20 equal symbols and one other agree with themselves shifted by one in 90 % of the places."""
    markers = on_gpus([*ENQUEUED * 4, (GPU_WAIT, 0.001, 1.5)], 11)
    steps = find_steps(markers)
    assert steps.period == 21
    assert steps.count == 10


def test_a_host_that_hardly_ever_waits_is_known_by_its_collectives() -> None:
    markers = on_gpus([*ENQUEUED * 31, (GPU_WAIT, 0.001, 1.5)], 2)
    steps = find_steps(markers)
    assert steps.period == 5
    assert steps.count >= 57


def test_waits_that_find_the_gpu_ready_do_not_end_a_step() -> None:
    pattern = [(GPU_WAIT, 0.3, 2e-5), *ENQUEUED[1:], (GPU_WAIT, 0.001, 0.2), (ALLREDUCE, 0.0005, 1e-5)]
    markers = on_gpus(pattern, 23)
    steps = find_steps(markers)
    waits = markers.end_s[(markers.symbol == GPU_WAIT) & (markers.end_s - markers.start_s > 0.01)]
    assert steps.edge_s[1:-1] == pytest.approx(waits[1 : len(steps.edge_s) - 1])
