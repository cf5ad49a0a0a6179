"""Passes over which gradients are accumulated make one step, told by when the ranks exchange something and when the optimiser runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from rankscope.observer.steps import loops, passes
from rankscope.observer.steps.find import common_guide, find_steps
from rankscope.observer.steps.markers import Call, CallPath, Markers
from rankscope.observer.tables.rank import steps_alone
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.thread.functions import StackName
from rankscope.probes.bpf import ring
from rankscope.probes.calls.table import CALL_TABLE

BACKWARD, REDUCE = 14, 3
EPOCHS, STEPS, MICRO, BUCKETS = 5, 10, 25, 60  # where loops of the job's code begin
START, MAIN = Call(("<module>", "job.py", 1), 90), ("main", "job.py", 1)


def place(at: int, *around: int, deeper: CallPath = ()) -> CallPath:
    return (START, Call(MAIN, at, around), *deeper)


IN_STEP, IN_MICRO = place(50, EPOCHS, STEPS), place(30, EPOCHS, STEPS, MICRO)
IN_BUCKETS = place(40, EPOCHS, STEPS, deeper=(Call(("average", "job.py", 50), 70, (BUCKETS,)),))


@dataclass
class Rank:
    """One rank's calls, and when it was seen in its optimiser."""

    seed: int = 0
    now: float = 0.0
    calls: list[tuple[int, CallPath, float, float]] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    unmarked: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def work(self, seconds: float) -> None:
        self.now += seconds * self.rng.lognormal(0, 0.05)

    def call(self, symbol: int, path: CallPath, seconds: float = 0.001) -> None:
        begin = self.now
        self.work(seconds)
        self.calls.append((symbol, path, begin, self.now))

    def backward(self, path: CallPath, exchanging: bool = False) -> None:
        self.work(0.01)
        if exchanging:
            self.unmarked.append(self.now + 0.001)
        self.call(BACKWARD, path, 0.005)

    def exchange(self, path: CallPath = IN_STEP) -> None:
        for _ in range(2):
            self.call(REDUCE, IN_BUCKETS)
        self.call(REDUCE, path)

    def optimise(self, sighted: bool = False) -> None:
        if sighted:
            self.seen.append(self.now + 0.0001)
        self.work(0.0002)

    def markers(self) -> Markers:
        paths = tuple(dict.fromkeys(path for _, path, _, _ in self.calls))
        symbol, _, start, end = zip(*self.calls, strict=True)
        at = np.array([paths.index(path) for _, path, _, _ in self.calls])
        return Markers(
            np.array(symbol), np.array(start), np.array(end), backward=frozenset({BACKWARD}), site=at + 1, path=at,
            paths=paths, optimiser_s=np.array(self.seen), unmarked_s=np.array(self.unmarked),
        )  # fmt: skip


def agree(*ranks: Rank) -> bool:
    guide = common_guide([find_steps(rank.markers()) for rank in ranks])
    told = [float(np.mean(np.diff(find_steps(rank.markers(), guide).edge_s))) for rank in ranks]
    return told == pytest.approx([float(np.mean(np.diff(rank.begun))) for rank in ranks], rel=0.03)


def accumulated(seed: int, micro: CallPath, sighted: frozenset[int] = frozenset(), passes: int = 2) -> Rank:
    """Gradients of micro-batches add up, then they are reduced in buckets and a norm is taken; a loss is averaged now and then."""
    rank = Rank(seed)
    for step in range(120):
        rank.begun.append(rank.now)
        rank.work(0.01)
        for _ in range(passes):
            rank.backward(micro)
        rank.exchange()
        rank.optimise(step in sighted)
        if step % 20 == 19:
            rank.call(REDUCE, place(55, EPOCHS, STEPS))
    return rank


def local_sgd(seed: int, train: CallPath, sighted: frozenset[int] = frozenset(), period: int = 4) -> Rank:
    """Every rank trains by itself; the weights are averaged after some iterations."""
    rank = Rank(seed)
    for iteration in range(240):
        rank.begun.append(rank.now)
        rank.backward(train)
        rank.optimise(iteration in sighted)
        if iteration % period == period - 1:
            rank.exchange()
    return rank


@pytest.mark.parametrize("passes", [2, 3, 8])
def test_a_loop_that_exchanges_gradients_makes_a_step_of_the_passes_that_it_holds(passes: int) -> None:
    """The optimiser is so short that nobody was seen in it."""
    assert agree(accumulated(1, IN_MICRO, passes=passes), accumulated(2, IN_MICRO, passes=passes))


def test_few_sightings_will_do_where_all_exchange_after_every_other_pass() -> None:
    """One loop: `if number % 2: exchange, optimise`. A rank that was not seen has the steps of the others."""
    ranks = [accumulated(1, IN_STEP, frozenset({3, 40, 41, 90})), accumulated(2, IN_STEP, frozenset({7, 8, 100}))]
    assert find_steps(ranks[0].markers()).passes == 1  # four alone may be by chance
    assert agree(*ranks, accumulated(3, IN_STEP))


def test_exchanges_alone_make_no_longer_step_where_one_loop_does_all() -> None:
    rank = local_sgd(1, IN_STEP)
    assert find_steps(rank.markers()).passes == 1
    assert agree(rank)


@pytest.mark.parametrize("train", [IN_STEP, IN_MICRO])
def test_weights_that_are_averaged_now_and_then_make_no_longer_step(train: CallPath) -> None:
    """With the rounds in a loop of their own, and without. Two of five sightings are by chance where weights are averaged."""
    sighted = [frozenset({3, 50, 119}), frozenset({8, 77})]
    assert agree(*(local_sgd(seed, train, each) for seed, each in enumerate(sighted)))


def test_a_round_that_is_cut_short_is_a_step_as_well() -> None:
    """An epoch of 41 batches in rounds of four: what is left over is exchanged too."""
    rank = Rank()
    for _ in range(8):
        for batch in range(41):
            if batch % 4 == 0:
                rank.begun.append(rank.now)
            rank.backward(IN_STEP)
            if batch % 4 == 3 or batch == 40:
                rank.exchange()
                rank.optimise(sighted=batch == 19)
    steps = find_steps(rank.markers())
    assert steps.passes == 4
    begun = np.array([*rank.begun, rank.now])
    assert all(np.abs(begun - edge).min() < 0.001 for edge in steps.edge_s)


def test_gradients_that_are_exchanged_inside_each_pass_make_a_step_of_each() -> None:
    """By hooks, or on another thread. Only the loss that is averaged after each epoch of ten batches is a call of the loop."""
    rank = Rank()
    for _ in range(12):
        for _ in range(10):
            rank.begun.append(rank.now)
            rank.backward(IN_STEP, exchanging=True)
            rank.optimise()
        rank.call(REDUCE, place(70, EPOCHS))
    assert agree(rank)


def test_passes_of_which_every_fourth_exchanges_inside_itself_make_a_step_together() -> None:
    rank = Rank()
    for step in range(60):
        rank.begun.append(rank.now)
        for micro in range(4):
            rank.backward(IN_STEP, exchanging=micro == 3)
        rank.optimise(sighted=step % 12 == 5)
    assert agree(rank)


@pytest.mark.parametrize("thread", [10, 11])
def test_collectives_inside_a_backward_pass_count_though_they_are_no_markers(thread: int) -> None:
    """On the training thread (10), and on one that autograd works on; a loss is averaged after each epoch of ten batches."""
    row_of = {row.name: number for number, row in reversed(list(enumerate(CALL_TABLE)))}
    events, begun = [], []

    def call(name: str, begin: float, end: float, tid: int = 10, stack: int = 0) -> None:
        one = np.zeros(1, dtype=ring.EVENT)
        one["type"], one["tid"], one["tgid"], one["what"], one["ready_ns"] = ring.CALL, tid, 10, row_of[name], stack
        one["ts_ns"], one["dur_ns"] = round(begin * 1e9), round((end - begin) * 1e9)
        events.append(one)

    for batch in range(120):
        at = 0.02 * batch
        begun.append(at)
        call("backward", at + 0.008, at + 0.015, stack=1)
        call("allreduce", at + 0.010, at + 0.014, thread)
        if batch % 10 == 9:
            call("wait", at + 0.016, at + 0.017, stack=2)
    stacks = {
        number: StackName("train", "job.py", 1, site=100 + number, path=path)
        for number, path in ((1, IN_STEP), (2, place(70, EPOCHS)))
    }
    whole = np.concatenate(events)
    whole = whole[np.argsort(whole["ts_ns"], kind="stable")]
    steps = steps_alone(RawProcess(10, 0, 2.4, whole, {}, [], frozenset({10}), stacks, {}, 0.0, 99.0), CALL_TABLE)
    assert steps.passes == 1
    assert float(np.mean(np.diff(steps.edge_s))) == pytest.approx(0.02, rel=0.03)


def test_the_loops_are_told_once_however_many_places_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank()
    for _ in range(12):
        for _ in range(2):
            rank.backward(IN_MICRO)
        for at in range(40):
            rank.call(REDUCE, place(100 + at, EPOCHS, STEPS, MICRO))  # beside the pass, in its own loop: none holds it
    markers = rank.markers()
    chains, asked = loops.chains, []

    def counted(paths: Sequence[CallPath]) -> list[loops.Chain]:
        asked.append(paths)
        return chains(paths)

    monkeypatch.setattr(loops, "chains", counted)
    assert not passes.seen(markers, markers.of(markers.backward)).held
    assert len(asked) == 1
