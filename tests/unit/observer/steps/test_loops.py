"""A step is a turn of the job's own loop, told by the places in its code from which the calls come."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from rankscope.observer.steps import loops
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
