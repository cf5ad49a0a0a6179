"""Timings of data-parallel fleets of 4 to 64 ranks in which one rank is slow always, from step to step more, or every so often."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from builders import codes

from rankscope.diagnose.infer.fleet.timings.steps_file import check
from rankscope.diagnose.infer.solve.judge_steps_file import judge_timings
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode

FUNCTIONS = (("load", "io"), ("augment", "python"), ("forward", "kernel"), ("backward", "kernel"), ("update", "python"))
STEPS = 61
CULPRIT = 2
Extra = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float64]]


def judged(
    ranks: int,
    noise: float,
    seed: int,
    extra: Extra | None = None,
    tail: float = 0.0,
    steps: int = STEPS,
    culprits: tuple[int, ...] = (CULPRIT,),
    transfer: Extra | None = None,
    wait_timed: bool | None = True,
    stages: bool = False,
) -> Verdict:
    """Steps of one second in which every function's time has this noise, and a share `tail` of them takes thrice as long; `extra`:
    seconds more in the culprits' augment, by step; `transfer`: seconds of the collectives themselves.
    `wait_timed`: collectives hold the waiting; False: only their transfer; None: nobody timed them. `stages`: every rank has
    a role of its own."""
    rng = np.random.default_rng(seed)
    shape = (ranks, steps, len(FUNCTIONS))
    work = rng.dirichlet(np.full(len(FUNCTIONS), 13.0)) * np.exp(
        rng.normal(0, noise, shape) + rng.normal(0, 0.01, (ranks, 1, 1))
    )
    work[rng.random(shape) < tail] *= 3
    if extra is not None:
        work[list(culprits), :, 1] += extra(np.arange(steps))
    own = work.sum(axis=2)
    wait = own.max(axis=0) - own + (0.1 if transfer is None else transfer(np.arange(steps)))
    if not wait_timed:
        wait = np.full_like(wait, 0.1)
    rank, step = (each.ravel() for each in np.indices((ranks, steps)))
    columns = [(name, kind, work[..., place].ravel()) for place, (name, kind) in enumerate(FUNCTIONS)]
    tables = [
        pa.table({
            "rank": rank, "step": step, "function": [name] * rank.size, "kind": [kind] * rank.size, "seconds": seconds,
        })
        for name, kind, seconds in (*columns, ("all_reduce", "collective", wait.ravel()))
    ]  # fmt: skip
    if wait_timed is None:
        tables.pop()
    table = pa.concat_tables(tables)
    if stages:
        table = table.append_column("role", pa.array([f"stage {number}" for number in table["rank"].to_pylist()]))
    return judge_timings(check(table, "file"), "job")


def named(verdict: Verdict) -> list[tuple[str, tuple[int, ...], str]]:
    return [
        (suspect.component, suspect.ranks, suspect.function.name if suspect.function else "")
        for suspect in verdict.suspects
    ]


CULPRITS = [("python", (CULPRIT,), "augment")]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ranks", "noise"), [(4, 0.05), (16, 0.05), (16, 0.15), (61, 0.05)])
def test_a_rank_that_grows_slower_from_step_to_step_is_named(ranks: int, noise: float, seed: int) -> None:
    assert named(judged(ranks, noise, seed, lambda step: 0.35 * step / STEPS)) == CULPRITS


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("ranks", "noise"), [(4, 0.05), (4, 0.1), (16, 0.15), (61, 0.05)])
def test_a_rank_that_is_slow_every_fifth_step_is_named(ranks: int, noise: float, seed: int) -> None:
    assert named(judged(ranks, noise, seed, lambda step: 0.55 * (step % 5 == 3))) == CULPRITS


@pytest.mark.parametrize("ranks", [17, 61, 97])
def test_in_a_noisy_fleet_who_is_always_slower_is_named_though_the_step_is_hardly_shorter_without_it(
    ranks: int,
) -> None:
    verdict = judged(ranks, 0.15, ranks, lambda step: np.full(len(step), 0.15), tail=0.01)
    assert named(verdict) == CULPRITS and verdict.suspects[0].lost_percent < 5
    assert NoteCode.STALLS_OF_OTHERS in codes(verdict)


@pytest.mark.parametrize("seed", range(7))
@pytest.mark.parametrize("ranks", [2, 16, 61])
def test_nobody_is_accused_where_all_stall_now_and_then(ranks: int, seed: int) -> None:
    for steps in (13, STEPS):
        verdict = judged(ranks, 0.1, seed, tail=0.02, steps=steps)
        assert verdict.status == "healthy", named(verdict)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [2, 16])
@pytest.mark.parametrize("drifts", [True, False])
def test_what_makes_all_ranks_slower_in_the_middle_is_named_by_what_was_before(
    ranks: int, seed: int, drifts: bool
) -> None:
    def extra(step: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return 0.5 * step / STEPS if drifts else np.where(step > 29, 0.3, 0.0)

    verdict = judged(ranks, 0.05, seed, extra, culprits=tuple(range(ranks)))
    assert named(verdict) == [("workload", tuple(range(ranks)), "augment")]
    assert verdict.suspects[0].cause == "slow-everywhere" and verdict.suspects[0].lost_percent > 10
    assert verdict.baseline is not None and verdict.baseline.source == "earlier steps of the file"
    assert {NoteCode.STEPS_CHANGED, NoteCode.STEPS_DRIFT} & set(codes(verdict))
    assert json.loads(to_json(verdict))["baseline"]["start"] is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [17, 61])
def test_a_rank_that_becomes_slower_in_a_fleet_whose_steps_show_nothing_of_it_is_named(ranks: int, seed: int) -> None:
    verdict = judged(ranks, 0.1, seed, lambda step: np.where(step > 27, 0.2, 0.0), tail=0.01)
    assert named(verdict) == CULPRITS


@pytest.mark.parametrize("seed", range(11))
def test_of_few_steps_of_a_large_fleet_accidents_accuse_nobody(seed: int) -> None:
    verdict = judged(307, 0.03, seed, tail=0.05, steps=8)
    assert verdict.status != "fault", named(verdict)


@pytest.mark.parametrize("ranks", [2, 17])
def test_collectives_that_take_longer_for_all_from_some_step_on_are_the_network(ranks: int) -> None:
    verdict = judged(ranks, 0.05, ranks, transfer=lambda step: np.where(step > 29, 0.4, 0.1))
    assert [(suspect.component, suspect.ranks) for suspect in verdict.suspects] == [("network", tuple(range(ranks)))]


@pytest.mark.parametrize("ranks", [2, 17])
def test_collectives_that_take_longer_for_all_for_a_while_are_the_network(ranks: int) -> None:
    verdict = judged(ranks, 0.05, ranks, transfer=lambda step: np.where((step > 20) & (step < 36), 0.4, 0.1))
    assert [(suspect.component, suspect.ranks) for suspect in verdict.suspects] == [("network", tuple(range(ranks)))]
    assert NoteCode.STRETCH in codes(verdict)
    assert verdict.baseline is not None and verdict.baseline.source == "other steps of the file"


def test_work_that_is_more_on_all_ranks_for_a_while_may_be_its_input() -> None:
    more = lambda step: np.where((step > 20) & (step < 36), 0.3, 0.0)  # noqa: E731
    assert judged(16, 0.05, 3, more, culprits=tuple(range(16))).status != "fault"


@pytest.mark.parametrize("ranks", [3, 16, 61])
def test_of_a_file_without_collectives_the_slow_rank_is_named(ranks: int) -> None:
    slow = lambda step: np.full(len(step), 0.3)  # noqa: E731
    assert named(judged(ranks, 0.05, ranks, slow, wait_timed=None)) == CULPRITS
    assert judged(ranks, 0.05, ranks, wait_timed=None).status == "healthy"


def test_where_only_the_transfer_was_timed_it_is_unknown_whether_the_others_wait() -> None:
    verdict = judged(8, 0.05, 1, lambda step: np.full(len(step), 0.3), wait_timed=False)
    assert verdict.status == "unknown" and verdict.notes[0].code is NoteCode.UNTIMED and not verdict.suspects


@pytest.mark.parametrize("seed", range(3))
def test_a_stage_of_one_rank_that_became_slower_in_the_file_is_no_design(seed: int) -> None:
    verdict = judged(4, 0.05, seed, lambda step: np.where(step > 29, 0.3, 0.0), stages=True)
    assert (verdict.status, named(verdict)) == ("fault", CULPRITS)
    assert judged(4, 0.05, seed, lambda step: np.full(len(step), 0.3), stages=True).status in {"imbalance", "unknown"}
