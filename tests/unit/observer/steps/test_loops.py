"""A step is a turn of the job's own loop, told by the places in its code from which the calls come."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.observer.steps import loops, repeats
from rankscope.observer.steps.find import common_guide, find_steps
from rankscope.observer.steps.markers import Call, CallPath, Markers

UPDATE, BACKWARD, REDUCE = 13, 14, 3
MAIN, HELPER = ("main", "job.py", 1), ("helper", "job.py", 40)
START = Call(("<module>", "job.py", 1), 90)


def place(at: int, *around: int, deeper: CallPath = ()) -> CallPath:
    """A call from `main`, from inside the loops that begin there."""
    return (START, Call(MAIN, at, around), *deeper)


@dataclass
class Job:
    """A job's calls, each by the place that it is made from, with the time that the job works between them."""

    seed: int = 0
    now: float = 0.0
    calls: list[tuple[int, CallPath, float, float]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def work(self, seconds: float) -> None:
        self.now += seconds * self.rng.lognormal(0, 0.05)

    def call(self, path: CallPath, symbol: int = REDUCE, seconds: float = 0.001) -> None:
        begin = self.now
        self.work(seconds)
        self.calls.append((symbol, path, begin, self.now))

    def markers(self) -> Markers:
        paths = tuple(dict.fromkeys(path for _, path, _, _ in self.calls))
        symbol, _, start, end = zip(*self.calls, strict=True)
        at = np.array([paths.index(path) for _, path, _, _ in self.calls])
        return Markers(
            np.array(symbol), np.array(start), np.array(end), update=frozenset({UPDATE}), backward=frozenset({BACKWARD}),
            site=at + 1, path=at, paths=paths,
        )  # fmt: skip

    def agrees(self, within: float = 0.03) -> bool:
        steps = find_steps(self.markers())
        told, true = float(np.mean(np.diff(steps.edge_s))), float(np.mean(np.diff(self.begun)))
        return told == pytest.approx(true, rel=within)


@pytest.mark.parametrize("around", [(), (5,)])
def test_what_is_called_in_every_other_iteration_makes_none_longer(around: tuple[int, ...]) -> None:
    """A halo is exchanged in each, a norm taken in every second one; with and without epochs around."""
    job = Job()
    for iteration in range(201):
        job.begun.append(job.now)
        job.work(0.03)
        job.call(place(30, *around, 10))
        if iteration % 2:
            job.call(place(50, *around, 10))
    assert job.agrees()


def halo(neighbours: int, *around: int) -> Job:
    job = Job()
    for iteration in range(97):
        job.begun.append(job.now)
        job.work(0.02)
        for _ in range(neighbours):
            job.work(0.0001)
            job.call(place(30, *around, 10, 25))
        if iteration % 3 == 0:
            for _ in range(4):  # the library makes several of one
                job.work(0.00001)
                job.call(place(50, *around, 10))
    return job


@pytest.mark.parametrize("neighbours", [2, 7])
def test_a_loop_over_neighbours_lies_inside_an_iteration(neighbours: int) -> None:
    assert halo(neighbours).agrees()
    assert halo(neighbours, 5).agrees()  # with epochs around


def test_a_rank_with_one_neighbour_makes_the_steps_of_those_with_two() -> None:
    jobs = [halo(1), halo(2), halo(1)]
    guide = common_guide([find_steps(job.markers()) for job in jobs])
    assert [find_steps(job.markers(), guide).count for job in jobs] == [
        96,
        95,
        96,
    ]  # the first edge may be one turn earlier


@pytest.mark.parametrize("seed", range(3))
def test_work_in_the_middle_of_a_turn_makes_no_turns_of_the_loop_inside_it(seed: int) -> None:
    """An actor takes six weights in a loop of their own, acts, and gives its episode; the host is slow now and then."""
    job = Job(seed)
    for _ in range(150):
        job.begun.append(job.now)
        for _ in range(6):
            job.now += 0.0003 * job.rng.lognormal(0, 1.5)
            job.call(place(30, 10, 25))
        job.work(0.02)
        job.call(place(50, 10))
        job.work(0.0002)
    assert job.agrees()


def test_a_solver_inside_a_step_is_no_step_of_its_own() -> None:
    job = Job()
    for _ in range(60):
        job.begun.append(job.now)
        job.work(0.02)
        for _ in range(6):
            job.work(0.003)
            job.call(place(30, 10, 25))
            job.call(place(33, 10, 25))
        job.call(place(50, 10))
    assert job.agrees()


def test_epochs_with_a_collective_of_their_own_are_no_steps() -> None:
    job = Job()
    for _ in range(20):
        job.call(place(12, 10), seconds=0.004)
        for _ in range(25):
            job.begun.append(job.now)
            job.work(0.02)
            job.call(place(30, 10, 25))
    assert job.agrees(0.05)


def test_where_the_outer_loop_calls_nothing_the_gaps_tell() -> None:
    """Four equal calls from a loop of their own, in a loop that is not seen to turn: it may be epochs, or the iterations."""
    job = Job()
    for _ in range(120):
        job.begun.append(job.now)
        job.work(0.03)
        for _ in range(4):
            job.work(0.002)
            job.call(place(30, 10, 25))
    steps = find_steps(job.markers())
    assert steps.turns == 4
    assert job.agrees()
    assert common_guide([steps, steps]).turns == 4


def test_a_critics_updates_are_part_of_the_iteration_that_holds_their_loop() -> None:
    job = Job()
    for iteration in range(60):
        job.begun.append(job.now)
        for _ in range(5):
            job.work(0.01)
            job.call(place(30, 5, 10, 25, deeper=(Call(HELPER, 7),)), BACKWARD, 0.004)
        job.work(0.004)
        job.call(place(50, 5, 10), BACKWARD, 0.004)
        if iteration % 20 == 0:
            job.call(place(60, 5, 10))
    assert job.agrees()


def test_a_validation_with_gradients_in_a_loop_of_its_own_lies_inside_a_step() -> None:
    job = Job()
    for iteration in range(150):
        job.begun.append(job.now)
        job.work(0.01)
        job.call(place(30, 10), BACKWARD, 0.004)
        if iteration % 10 == 0:
            for _ in range(40):
                job.work(0.001)
                job.call(place(60, 10, 55), BACKWARD, 0.001)
    assert job.agrees()


def test_calls_of_which_the_way_is_not_known_tell_no_loop() -> None:
    job = Job()
    for _ in range(50):
        job.work(0.01)
        job.call(())
    markers = job.markers()
    assert markers.path is not None
    assert loops.turns(Markers(markers.symbol, markers.start_s, markers.end_s)) is None
    unknown = Markers(markers.symbol, markers.start_s, markers.end_s, path=np.full(50, -1), paths=())
    assert loops.turns(unknown) is None


def test_code_that_a_library_calls_back_tells_no_loop() -> None:
    """From one place in `main` another function comes each time: no loop of `main` need turn between them."""
    job = Job()
    for _ in range(30):
        job.work(0.01)
        for hook in ("gather", "reduce", "scatter"):
            job.call(place(30, 10, deeper=(Call((hook, "hooks.py", 3), 5),)))
    assert loops.turns(job.markers()) is None


def chosen_by_listing(between: loops._Between) -> loops.Chain | None:
    """The deepest of all loops that hold nearly all of the time and turn often enough, or lie in one that does."""
    whole = {chain[:length] for chain in between.owner for length in range(1, len(chain) + 1)}

    def held_s(loop: loops.Chain) -> float:
        return sum(gap for chain, gap in zip(between.owner, between.gap_s, strict=True) if chain[: len(loop)] == loop)

    def turned(loop: loops.Chain) -> int:
        return sum(
            one and loop[: len(chain)] == chain for chain, one in zip(between.owner, between.turned, strict=True)
        )

    all_s = float(between.gap_s.sum())
    return max((loop for loop in whole if held_s(loop) >= 0.9 * all_s and turned(loop) >= 3), key=len, default=None)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 2), max_size=4), st.booleans(), st.sampled_from((1.0, 4.0, 64.0))), min_size=1
    )
)
def test_the_loop_is_the_deepest_that_holds_nearly_all_of_the_time(pairs: list[tuple[list[int], bool, float]]) -> None:
    between = loops._Between(
        [(0, *chain) for chain, _, _ in pairs],
        [turned for _, turned, _ in pairs],
        [False] * len(pairs),
        np.array([gap for _, _, gap in pairs]),
    )
    assert loops._chosen(between) == chosen_by_listing(between)


def recursive(at: int, frames: int, around: int) -> CallPath:
    return (*(Call(HELPER, 30, tuple(range(around))),) * (frames - 1), Call(HELPER, at, tuple(range(around))))


def test_a_function_that_calls_itself_in_loops_costs_no_more_than_its_frames() -> None:
    job = Job()
    paths = [recursive(at, 126, 8) for at in (40, 50)]
    for iteration in range(12):
        job.work(0.01)
        job.call(paths[iteration % 2])
    markers = job.markers()
    tracemalloc.start()
    try:
        turned = loops.turns(markers)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
    assert turned is not None
    assert len(turned.start_s) == 5


def test_loops_far_deeper_than_a_job_has_count_to_the_last_that_is_told() -> None:
    deep = loops.chains([recursive(40, 126, 20), recursive(50, 126, 20), recursive(40, 3, 2)])
    assert [len(chain) for chain in deep] == [256, 256, 7]
    assert deep[0] == deep[1]


def test_many_loops_inside_one_are_held_against_its_turns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    for _ in range(12):
        for inner in range(40):
            for _ in range(2):
                job.work(0.01)
                job.call(place(100 + 10 * inner, 10, 100 + 10 * inner - 5))
        job.call(place(600, 10))
    own_s, asked = loops._own_s, []

    def counted(*args: object) -> float:
        asked.append(args)
        return float(own_s(*args))

    monkeypatch.setattr(loops, "_own_s", counted)
    assert loops.turns(job.markers()) is not None
    assert len(asked) == 1


@pytest.mark.parametrize("turns", [7, 41])
def test_turns_that_are_too_few_for_the_steps_of_other_ranks_are_no_steps(turns: int) -> None:
    job = Job()
    for _ in range(turns):
        job.work(0.02)
        job.call(place(10, 5))
    markers = job.markers()
    found = repeats._of_turns(markers, loops.Turns(markers.start_s, markers.end_s, enclosed=True), known=4)
    # THEN a step is as many turns as on the other ranks, or there is none, and that is said
    if turns < 12:
        assert not found.count and found.reason == "only 1 complete steps in the window"
    else:
        assert np.diff(found.edge_s) == pytest.approx(4 * 0.021, rel=0.1)
