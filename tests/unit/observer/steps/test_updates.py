"""An iteration is a gradient update: whatever else happens in some iterations lies inside steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from rankscope.observer.steps.find import StepGuide, common_guide, find_steps
from rankscope.observer.steps.markers import Markers

WAIT, UPDATE, BACKWARD, GPU_WAIT, GATHER = 10, 13, 14, 20, 3
# Lines of the job's code.
TRAIN, LOG, EVALUATE, SAVE, UNSHARD, DISCRIMINATOR = 33, 37, 38, 39, 16, 50


@dataclass
class Script:
    """A training script that writes down the calls it makes, and when it really begins an iteration."""

    seed: int = 0
    now: float = 0.0
    calls: list[tuple[int, int, float, float]] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    optimised: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def work(self, seconds: float) -> None:
        self.now += seconds * self.rng.lognormal(0, 0.05)

    def call(self, symbol: int, line: int, seconds: float) -> None:
        begin = self.now
        self.work(seconds)
        self.calls.append((symbol, line, begin, self.now))

    def backward(self, line: int = TRAIN, synchronised: bool = True) -> None:
        begin = self.now
        self.work(0.004)
        inside = self.now
        self.work(0.003)
        self.calls.append((BACKWARD, line, begin, self.now))
        if synchronised:
            self.calls.append((UPDATE, line, inside, self.now))

    def optimise(self, seconds: float = 0.002) -> None:
        if self.rng.random() < 99 * seconds:  # sampled 99 times a second
            self.optimised.append(self.now + seconds / 2)
        self.work(seconds)

    def markers(self, sites: bool = True) -> Markers:
        calls = sorted(self.calls, key=lambda call: call[2])
        columns = list(zip(*calls, strict=True))
        return Markers(
            np.array(columns[0], dtype=np.int64),
            np.array(columns[2]),
            np.array(columns[3]),
            level=frozenset({GPU_WAIT}),
            update=frozenset({UPDATE}),
            backward=frozenset({BACKWARD}),
            site=np.array(columns[1], dtype=np.int64) if sites else None,
            optimiser_s=np.array(self.optimised),
        )

    @property
    def step_s(self) -> float:
        return float(np.median(np.diff(self.begun)))


def trained(script: Script, iterations: int) -> Script:
    """As tutorials have it: a loss logged every 10 iterations, an evaluation every 100, a checkpoint every 200."""
    for iteration in range(iterations):
        script.begun.append(script.now)
        script.work(0.02)
        script.backward()
        script.optimise()
        if iteration % 10 == 0:
            script.call(WAIT, LOG, 0.001)
        if iteration % 100 == 99:
            for _ in range(30):
                script.work(0.003)
                script.call(WAIT, EVALUATE, 0.002)
        if iteration % 200 == 199:
            script.work(0.1)
            script.call(WAIT, SAVE, 0.01)
    return script


@pytest.mark.parametrize("sites", [True, False])
def test_what_comes_in_every_nth_iteration_lies_inside_steps(sites: bool) -> None:
    script = trained(Script(), 409)
    steps = find_steps(script.markers(sites))
    assert steps.count in (407, 408)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(script.step_s, rel=0.03)
    assert steps.edge_s[-1] - steps.edge_s[0] == pytest.approx(script.begun[-1] - script.begun[0], rel=0.01)


@pytest.mark.parametrize("told", [True, False])
def test_gradients_that_are_accumulated_make_one_step(told: bool) -> None:
    """DDP is told by no_sync, or is not: then every pass reduces, and only the optimiser ends an iteration."""
    script = Script()
    for iteration in range(173):
        script.begun.append(script.now)
        for micro in range(4):
            script.work(0.012)
            script.backward(synchronised=micro == 3 or not told)
        script.optimise()
        if iteration % 10 == 0:
            script.call(WAIT, LOG, 0.001)
    steps = find_steps(script.markers())
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(script.step_s, rel=0.03)
    assert steps.passes == (1 if told else 4)


def test_a_rank_that_was_seldom_seen_in_its_optimiser_takes_the_passes_of_its_peers() -> None:
    def accumulated(seed: int, optimise_s: float) -> Script:
        script = Script(seed)
        for _ in range(97):
            script.begun.append(script.now)
            for _ in range(3):
                script.work(0.02)
                script.backward()
            script.optimise(optimise_s)
        return script

    seen, unseen = accumulated(1, 0.004), accumulated(2, 0.00001)
    guide = common_guide([find_steps(seen.markers()), find_steps(unseen.markers())])
    assert guide == StepGuide(period=0, passes=3)
    steps = find_steps(unseen.markers(), guide)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(unseen.step_s, rel=0.03)


def test_ranks_that_were_seldom_seen_in_their_optimisers_show_their_passes_together() -> None:
    """A window of few and long steps: of 19 optimiser steps each rank is seen in some four."""

    def accumulated(seed: int, last: int) -> Script:
        script = Script(seed)
        for iteration in range(19):
            script.begun.append(script.now)
            for _ in range(4):
                script.work(0.1)
                script.backward(synchronised=False)
            if iteration % 5 == 1 or iteration == last:
                script.optimised.append(script.now + 0.001)
            script.work(0.002)
        return script

    ranks = [accumulated(rank, rank) for rank in (7, 8, 9)]
    guide = common_guide([find_steps(script.markers()) for script in ranks])
    assert guide.passes == 4
    for script in ranks:
        steps = find_steps(script.markers(), guide)
        assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(script.step_s, rel=0.03)


def test_one_of_many_ranks_that_is_seen_after_every_other_update_by_chance_makes_no_accumulation() -> None:
    seen_in_turn = [trained(Script(seed), 60) for seed in range(64)]
    for number, script in enumerate(seen_in_turn):
        rng = np.random.default_rng(number)
        updates = [end for symbol, _, _, end in script.calls if symbol == UPDATE]
        kept = updates[:20:2] if number == 40 else [end for end in updates if rng.random() < 0.3]
        script.optimised = [end + 0.001 for end in kept]
    guide = common_guide([find_steps(script.markers()) for script in seen_in_turn])
    assert guide.passes == 1


def test_optimisers_in_every_iteration_are_no_accumulation() -> None:
    script = trained(Script(seed=5), 300)
    assert find_steps(script.markers()).passes == 1


def test_layers_that_gather_their_weights_are_parts_of_a_step() -> None:
    """Fully sharded: several waits per layer, none in DDP's reducer; the backward pass tells the iteration."""
    script = Script()
    for iteration in range(101):
        script.begun.append(script.now)
        script.work(0.01)
        for _ in range(5):
            script.call(WAIT, UNSHARD, 0.002)
            script.work(0.002)
        script.backward(synchronised=False)
        script.call(WAIT, GATHER, 0.003)
        script.optimise()
        if iteration % 10 == 0:
            script.call(WAIT, LOG, 0.001)
    steps = find_steps(script.markers())
    assert steps.count in (99, 100)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(script.step_s, rel=0.03)


def test_two_models_in_turn_make_one_step() -> None:
    script = Script()
    for _ in range(83):
        script.begun.append(script.now)
        script.work(0.02)
        script.backward(DISCRIMINATOR)
        script.optimise()
        script.work(0.03)
        script.backward(TRAIN)
        script.optimise()
    steps = find_steps(script.markers())
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(script.step_s, rel=0.03)


def test_an_evaluation_that_takes_many_gradients_now_and_then_lies_inside_steps() -> None:
    """Gradients summed by the script itself; in every 20th iteration an attack is tried, which takes 40 backward passes."""
    script = Script()
    for iteration in range(1, 164):
        script.begun.append(script.now)
        script.work(0.03)
        script.backward(synchronised=False)
        script.call(WAIT, GATHER, 0.002)
        for _ in range(0 if iteration % 20 else 40):
            script.work(0.005)
            script.backward(EVALUATE, synchronised=False)
    steps = find_steps(script.markers())
    assert steps.count in (161, 162)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(script.step_s, rel=0.03)


def test_a_pass_through_two_models_is_one_update_though_both_reduce() -> None:
    """A GAN: the generator's loss goes back through the discriminator, which is wrapped as well. Its optimisers are seldom seen."""
    script = Script()
    for _ in range(83):
        script.begun.append(script.now)
        for line in (DISCRIMINATOR, DISCRIMINATOR + 1, TRAIN):
            script.work(0.01)
            begin = script.now
            script.backward(line)
            if line == TRAIN:
                script.calls.append(
                    (UPDATE, line, begin + 0.5 * (script.now - begin), begin + 0.6 * (script.now - begin))
                )
    steps = find_steps(script.markers())
    assert steps.count in (81, 82)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(script.step_s, rel=0.03)


def test_a_loss_that_is_printed_now_and_then_shares_the_gpus_time_evenly() -> None:
    """Between two waits for the GPU the host runs ahead: nine iterations in a burst, then it waits for all ten."""
    script = Script()
    gpu_free = 0.0
    for iteration in range(200):
        script.work(0.006)
        script.backward(synchronised=False)
        gpu_free = max(gpu_free, script.now) + 0.1
        if iteration % 10 == 9:
            script.calls.append((GPU_WAIT, LOG, script.now, gpu_free))
            script.now = gpu_free
    steps = find_steps(script.markers())
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(0.1, rel=0.05)
    assert float(np.percentile(np.diff(steps.edge_s), 99)) < 0.12


def test_a_single_update_gives_no_step_and_a_reason() -> None:
    steps = find_steps(trained(Script(), 1).markers())
    assert steps.count == 0
    assert steps.reason


@pytest.mark.parametrize("iterations", [2, 3, 4])
def test_a_window_that_holds_only_a_few_updates_tells_how_long_they_are(iterations: int) -> None:
    """They are too few to judge by, but not too few to say how long a window must be."""
    script = trained(Script(), iterations)
    steps = find_steps(script.markers())
    assert steps.count == iterations - 1
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(script.step_s, rel=0.2)


@pytest.mark.parametrize("updates", [2, 8])
def test_updates_that_only_the_learner_makes_lie_inside_the_iterations_that_all_make(updates: int) -> None:
    """Actors play while the learner waits, then it learns from their episodes while they wait for its weights."""
    ranks = [Script(seed) for seed in range(3)]
    for _ in range(97):
        now = max(rank.now for rank in ranks)
        for rank in ranks:
            rank.now = now
            rank.begun.append(now)
            for _ in range(3):
                rank.call(WAIT, TRAIN, 0.0003)
        for actor in ranks[1:]:
            actor.work(0.02)
        last = max(rank.now for rank in ranks)
        for rank in ranks:
            rank.call(WAIT, LOG, last - rank.now + 0.0005)
        for _ in range(updates):
            ranks[0].work(0.001)
            ranks[0].backward(synchronised=False)
            ranks[0].optimise()
    found = [find_steps(rank.markers()) for rank in ranks]
    guide = common_guide(found)
    steps = [find_steps(rank.markers(), guide) for rank in ranks]
    assert {each.count for each in steps} <= {94, 95, 96}
    for rank, each in zip(ranks, steps, strict=True):
        assert float(np.median(np.diff(each.edge_s))) == pytest.approx(rank.step_s, rel=0.05)


def test_ranks_that_all_update_by_themselves_make_a_step_per_update() -> None:
    """Local SGD: weights are averaged in every eighth iteration."""
    ranks = [Script(seed) for seed in range(3)]
    for rank in ranks:
        for iteration in range(160):
            rank.begun.append(rank.now)
            rank.work(0.01)
            rank.backward(synchronised=False)
            rank.optimise()
            for _ in range(0 if iteration % 8 else 4):
                rank.call(WAIT, LOG, 0.001)
    guide = common_guide([find_steps(rank.markers()) for rank in ranks])
    assert not guide.by_collectives
    steps = find_steps(ranks[0].markers(), guide)
    assert float(np.median(np.diff(steps.edge_s))) == pytest.approx(ranks[0].step_s, rel=0.05)
