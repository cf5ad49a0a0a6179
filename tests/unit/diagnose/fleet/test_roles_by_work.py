"""Ranks that do work which excludes each other have roles of their own; a rank that does more than its peers has not, nor one of the
same program that takes a slow path instead of theirs and is waited for."""

from __future__ import annotations

import time

import numpy as np
import pytest
from builders import TRAIN, Job, Work, build

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.roles import alike, roles
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window.stacks import StackFrame

LEARN = Work("python", "_engine_run_backward", 0, 820, "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py",
             frames=(StackFrame("learn", TRAIN, 58),))  # fmt: skip
SLOW = Work("python", "spin", 0, 7)


@pytest.mark.parametrize("seed", [3, 5])
def test_a_learner_is_no_slow_actor(seed: int) -> None:
    # GIVEN a rank that learns, and does nothing of what the three actors do
    job = Job(ranks=4, scale={0: 0.0}, extra={0: [(LEARN, 0.3)]}, seed=seed)

    # WHEN the job is diagnosed
    verdict = diagnose(build(job))

    # THEN the actors alone are peers, and no rank is slow; but as all of them wait for it, the learner is heavy
    assert roles(gather(build(job))).tolist().count(roles(gather(build(job)))[1]) == 3
    (heavy,) = verdict.suspects
    assert (verdict.status, heavy.cause, heavy.ranks) == ("imbalance", "stage-imbalance", (0,))


@pytest.mark.parametrize("seconds", [0.05, 0.12])
def test_a_learner_for_which_no_actor_waits_is_healthy(seconds: float) -> None:
    verdict = diagnose(build(Job(ranks=4, scale={0: 0.0}, extra={0: [(LEARN, seconds)]})))
    assert (verdict.status, verdict.suspects) == ("healthy", ())


FAST, FALLBACK, CHECK = (Work("python", name, 0, 30) for name in ("decode_fast", "decode_portable", "check_all"))


@pytest.mark.parametrize("seed", [3, 5])
@pytest.mark.parametrize("seconds", [0.05, 0.25, 2.0])
def test_a_rank_that_takes_a_slow_path_where_its_peers_take_a_fast_one_is_their_peer(seed: int, seconds: float) -> None:
    # GIVEN ranks of one program, one of which falls back to what none of its peers does, and does not do what they do
    extra = {rank: [(FALLBACK, seconds) if rank == 2 else (FAST, 0.012)] for rank in range(4)}
    job = Job(ranks=4, extra=extra, seed=seed)

    # THEN it is compared with the others, and named with its function
    assert len(set(roles(gather(build(job))).tolist())) == 1
    verdict = diagnose(build(job))
    assert (verdict.status, verdict.suspects[0].ranks) == ("fault", (2,))
    assert verdict.suspects[0].function is not None and verdict.suspects[0].function.name == "decode_portable"


def test_two_ranks_on_slow_paths_of_their_own_and_two_on_one_are_all_named() -> None:
    slow = {1: (FALLBACK, 0.2), 4: (FALLBACK, 0.22), 6: (CHECK, 0.25)}
    extra = {rank: [slow.get(rank, (FAST, 0.015))] for rank in range(9)}
    verdict = diagnose(build(Job(ranks=9, extra=extra)))
    assert {rank for suspect in verdict.suspects for rank in suspect.ranks} == set(slow)


def test_a_slow_actor_is_named_beside_a_learner() -> None:
    extra = {0: [(LEARN, 0.3)], 2: [(SLOW, 0.25)]}
    verdict = diagnose(build(Job(ranks=5, scale={0: 0.0}, extra=extra)))
    assert verdict.status == "fault" and verdict.suspects[0].ranks == (2,)


@pytest.mark.parametrize("seconds", [0.05, 0.5, 2.0])
def test_a_slow_function_makes_no_role(seconds: float) -> None:
    assert set(roles(gather(build(Job(ranks=4, extra={1: [(SLOW, seconds)]})))).tolist()) == {0}


def test_two_slow_ranks_are_no_role_though_their_peers_are_seen_in_nothing_but_waiting() -> None:
    # GIVEN six ranks whose work takes less than 2 % of a step each; two are slow in a function of their own, and late for messages
    said = [Work("python", name, 0, 9) for name in ("send", "recv", "finalize", "copy", "cast")]
    extra = {rank: [(work, 0.06 if rank in (3, 4) else 0.004) for work in said] for rank in range(6)}
    extra[3].append((SLOW, 0.5))
    extra[4].append((Work("python", "augment_badly", 0, 9), 0.7))
    job = Job(ranks=6, scale=dict.fromkeys(range(6), 0.1), extra=extra)

    # THEN all are peers, and both are named
    assert set(roles(gather(build(job))).tolist()) == {0}
    assert {suspect.ranks for suspect in diagnose(build(job)).suspects} == {(3,), (4,)}


MESSAGE = Work(
    "collective", "recv", 0, 30, "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", "gloo"
)
LOSS = Work("python", "loss_of", 0, 60)


def test_a_server_of_parameters_is_no_peer_of_its_workers() -> None:
    # GIVEN a rank that receives gradients and adds them up, and does nothing of what the workers do
    serve = Work("python", "add", 0, 12, frames=(StackFrame("serve", TRAIN, 9),))
    train = Work("python", "forward", 0, 22, frames=(StackFrame("train", TRAIN, 18),))
    extra = {rank: [(MESSAGE, 0.004), (serve, 0.2) if rank == 0 else (train, 0.2)] for rank in range(4)}
    job = Job(ranks=4, scale=dict.fromkeys(range(4), 0.0), extra=extra)

    # THEN the workers are peers of each other alone, and nobody is slow
    found = roles(gather(build(job))).tolist()
    assert found.count(found[1]) == 3 and found[0] != found[1]
    assert diagnose(build(job)).status == "healthy"


def test_stages_that_pass_messages_stay_together() -> None:
    """The first and the last stage have a function of their own, and run the same code besides."""
    extra = {rank: [(MESSAGE, 0.004)] for rank in range(4)}
    extra[0].append((LEARN, 0.02))
    extra[3].append((LOSS, 0.02))
    assert set(roles(gather(build(Job(ranks=4, extra=extra)))).tolist()) == {0}


def one_after_the_other(sets: np.ndarray, counts: np.ndarray, has: np.ndarray) -> list[int]:
    leaders: list[int] = []
    code = [0] * len(sets)
    for index in np.argsort(-counts).tolist():
        for place, leader in enumerate(leaders):
            either = sets[index] | sets[leader]
            if not either.any() or (either & has[index] & has[leader]).sum() / either.sum() >= 0.3:
                code[index] = place
                break
        else:
            code[index] = len(leaders)
            leaders.append(index)
    return code


@pytest.mark.parametrize("seed", range(20))
def test_sets_join_the_first_leader_that_they_are_like(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sets = rng.random((int(rng.integers(1, 60)), int(rng.integers(1, 12)))) < rng.random()
    counts, has = rng.integers(1, 9, len(sets)), sets | (rng.random(sets.shape) < 0.2)
    assert alike(sets, counts).tolist() == one_after_the_other(sets, counts, sets)
    assert alike(sets, counts, has).tolist() == one_after_the_other(sets, counts, has)


def test_sets_of_which_none_is_like_another_are_held_against_few() -> None:
    # GIVEN ranks each of which says to do something else
    count = 1500
    began = time.process_time()
    found = alike(np.eye(count, dtype=bool), np.ones(count, dtype=np.int64))
    # THEN each is a role of its own, soon
    assert len(set(found.tolist())) == count > budgets.EXAMINED and found.max() == count - 1
    assert time.process_time() - began < 4


def test_ranks_whose_work_excludes_that_of_all_others_are_roles_of_their_own() -> None:
    works = [
        Work("python", f"f{rank}", 0, 10 + rank, frames=(StackFrame(f"g{rank}", TRAIN, 58),)) for rank in range(70)
    ]
    job = Job(ranks=70, scale=dict.fromkeys(range(70), 0.0), extra={rank: [(works[rank], 0.3)] for rank in range(70)})
    assert len(set(roles(gather(build(job))).tolist())) == 70
