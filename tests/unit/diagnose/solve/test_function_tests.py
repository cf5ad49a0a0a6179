"""A culprit that the noise of whole steps hides is found by its function, and nobody else is."""

from __future__ import annotations

from dataclasses import replace

import builders
import numpy as np
import pytest
from builders import Job, build, own_of, retimed
from wandering import wandering

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.roles import roles
from rankscope.diagnose.infer.model.attribute import Profiles
from rankscope.diagnose.infer.model.evidence.pattern_distance import most_unlike
from rankscope.diagnose.infer.model.excess import Differences, differences
from rankscope.diagnose.infer.model.function_tests import FunctionLevels
from rankscope.diagnose.infer.solve.judge import diagnose, judge
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.base.arrays import Ints

RANKS, STEPS = 101, 31


def by_function(fleet: Fleet, found: Differences, step_s: float) -> list[int]:
    """Rows that single functions would have accused."""
    levels, everybody = FunctionLevels(fleet, roles(fleet), step_s), np.ones(len(fleet.ranks), dtype=bool)
    strong = [levels.strength(row, found, everybody) for row in range(len(fleet.ranks))]
    return np.flatnonzero(np.array(strong) >= limits.SCORE_LEAST + np.log(len(strong))).tolist()


def noisy(seed: int, extra: float, culprit: int = 7) -> Window:
    """Own times with 20 % noise on every step as a whole; the functions show their means."""
    rng = np.random.default_rng(seed)
    window = build(Job(ranks=RANKS, steps=STEPS, noise=0.02, seed=seed, extra={culprit: [(builders.BUSY, extra)]}))[0]
    own = own_of(window) * np.exp(rng.normal(0, 0.2, (RANKS, STEPS)))
    return retimed(window, own, own.max(axis=0) + 0.02)


def test_what_a_rank_shows_beside_its_peers_does_not_depend_on_who_was_asked_before() -> None:
    fleet = gather([noisy(1, 0.045)])
    few, many = np.arange(10, 20), np.arange(20, 90)
    everyone = np.arange(90)
    asked = [(7, many), (8, many), (7, few), (8, few), (7, many), (3, few[:0]), (7, everyone), (8, everyone)]
    shared = Profiles(fleet)

    def shown(profiles: Profiles, row: int, peers: Ints) -> tuple[object, ...]:
        places = [profiles.locate(row, peers, (kind,), 0.3) for kind in ("python", "io")]
        return profiles.functions(row, peers), *places, profiles.usual_steps("own_s", peers).tolist()

    np.testing.assert_equal([shown(shared, *each) for each in asked], [shown(Profiles(fleet), *each) for each in asked])


def test_a_rank_among_many_that_it_is_compared_with_shows_what_it_shows_without_itself() -> None:
    fleet = gather([noisy(1, 0.045)])
    profiles, everyone = Profiles(fleet), np.arange(RANKS)
    alone, among = (profiles.locate(7, peers, ("python",), 0.3) for peers in (everyone[everyone != 7], everyone))
    assert alone is not None and among is not None
    assert (among.function, among.own_s, among.callers) == (alone.function, alone.own_s, alone.callers)
    assert among.excess_s == pytest.approx(alone.excess_s, rel=0.01)
    assert alone.excess_s == pytest.approx(0.045, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_a_function_that_is_odd_convicts_where_noisy_steps_only_hint(seed: int) -> None:
    fleet = gather([noisy(seed, 0.045)])
    step_s = float(np.nanmedian(fleet.steps.seconds))
    found = differences(fleet.steps.own_s, roles(fleet), step_s)
    odd = by_function(fleet, found, step_s)
    assert odd == [7]
    suspects = judge(fleet).suspects
    assert [s.ranks for s in suspects] == ([(7,)] if found.z[7] >= 2 else [])  # the steps must hint at least


@pytest.mark.parametrize("leaves", [1, 2, 4])
def test_a_users_function_is_as_odd_however_many_library_functions_it_calls(leaves: int) -> None:
    # GIVEN one of two ranks that spends 60 ms more in a function of the user's, in these library functions below it
    frames = (StackFrame("tokenize", builders.TRAIN, 50),)
    extra = [(builders.Work("python", f"sub{each}", 0, 10, "/usr/lib/python3.11/re.py", frames=frames), 0.06 / leaves)
             for each in range(leaves)]  # fmt: skip
    fleet = gather(build(Job(ranks=2, extra={1: extra})))
    step_s = float(np.nanmedian(fleet.steps.seconds))
    found = differences(fleet.steps.own_s, roles(fleet), step_s)
    located = Profiles(fleet).locate(1, np.array([0]), ("python",), 0.0)

    # THEN the function is as odd as by a single one
    assert located is not None and located.function.name == "tokenize"
    levels = FunctionLevels(fleet, roles(fleet), step_s)
    assert levels.strength_of(located, 1, found) >= limits.SCORE_LEAST + np.log(2)
    assert levels.strength_of(replace(located, excess_s=0.4 * located.excess_s), 1, found) == 0


def test_most_culprits_are_found() -> None:
    found = [judge(gather([noisy(seed, 0.06)])).suspects for seed in range(5)]
    assert sum([s.ranks for s in suspects] == [(7,)] for suspects in found) >= 4


def test_a_healthy_noisy_fleet_accuses_nobody() -> None:
    for seed in range(5):
        assert judge(gather([noisy(seed, 1e-9)])).suspects == ()


@pytest.mark.parametrize("seed", range(5))
def test_few_ranks_need_a_function_out_of_all_proportion(seed: int) -> None:
    # GIVEN four ranks on a busy host: the noise wanders so much that the steps alone prove nothing
    job = Job(ranks=4, steps=25, seed=seed, extra={2: [(builders.READ, 0.15)]})
    fleet = gather([wandering(job, 0.25, 0.8)])
    step_s = float(np.nanmedian(fleet.steps.seconds))
    found = differences(fleet.steps.own_s, roles(fleet), step_s)
    assert by_function(fleet, found, step_s) in ([2], [])
    # AND where nothing is out of proportion, nobody is odd
    healthy = gather([wandering(Job(ranks=4, steps=25, seed=seed), 0.25, 0.8)])
    found = differences(healthy.steps.own_s, roles(healthy), step_s)
    assert by_function(healthy, found, step_s) == []


def test_eroicas_distance_stands_beside_our_own_tests() -> None:
    fleet = gather(build(Job(extra={3: [(builders.BUSY, 0.08)]})))
    everybody = np.arange(8)
    found = most_unlike(fleet, 3, everybody[everybody != 3])
    assert found is not None and found.name == "augment" and found.distance >= 0.4 > found.usual
    assert any(e.source == "patterns" for e in judge(fleet).suspects[0].evidence)
    healthy = most_unlike(fleet, 5, everybody[(everybody != 3) & (everybody != 5)])
    assert healthy is not None and healthy.distance < 0.4
    assert most_unlike(fleet, 0, np.empty(0, np.int64)) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("longer_s", [0.048, 0.06])
def test_a_rank_that_is_clearly_slow_by_its_steps_is_asked_for_its_functions_too(longer_s: float, seed: int) -> None:
    # GIVEN a rank that spends much longer in one function, and its peers a part of that in another: its steps are clearly longer, by less
    extra = {rank: [(builders.ASLEEP, 0.02)] for rank in range(8) if rank != 3}
    verdict = diagnose(build(Job(noise=0.02, seed=seed, extra={**extra, 3: [(builders.BUSY, longer_s)]})))
    # THEN the function says more than what it explains too much speaks against it
    (only,) = verdict.suspects
    assert (only.ranks, only.function and only.function.name) == ((3,), "augment")
