"""Interrupts slow whatever computes on their CPU: all functions by their size, and ready time in which nobody else runs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import builders
import numpy as np
import pytest
from builders import Job, build

from rankscope.diagnose.infer.causes.rank.interrupts import interrupted
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Suspect

VICTIM = 3
RANKS = 8
COLLECTION = builders.Work("python", "gc", 0.0, 92, detail="gc", caller="Metrics.log_metrics")
PINNED = {rank: {"cpus": str(rank)} for rank in range(RANKS)}


def spent(cpu: int, share: float, name: str = "cpu.softirq_s") -> dict[str, Any]:
    return {"scope": "host", "name": name, "instance": f"cpu{cpu}", "value": share * 20.0}


def whole(share: float) -> dict[str, Any]:
    return {"scope": "host", "name": "cpu.softirq_s", "value": share * 20.0}


def daemon(rank: int, seconds: float, cpu: int | None = None) -> dict[str, Any]:
    number = rank if cpu is None else cpu
    return {
        "rank": rank,
        "name": "cpu.taken_s",
        "comm": f"ksoftirqd/{number}",
        "pid": 14 + 6 * number,
        "value": seconds,
    }


def flooded(*counters: dict[str, Any], scale: float = 1.4, queue: float = 0.02, **more: Any) -> Job:
    """All Python functions of a rank take longer, and it is ready without running."""
    return Job(
        ranks=RANKS, scale={VICTIM: scale}, extra={VICTIM: [(builders.QUEUE, queue)]}, ranks_columns=PINNED,
        counters=list(counters), **more,
    )  # fmt: skip


def first(job: Job) -> Suspect:
    verdict = diagnose(build(job))
    assert verdict.suspects, (verdict.status, verdict.notes)
    return verdict.suspects[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["cpu.softirq_s", "cpu.irq_s"])
def test_a_cpu_full_of_interrupts_convicts(name: str, seed: int) -> None:
    suspect = first(flooded(whole(0.31), spent(VICTIM, 0.3, name), spent(5, 0.03), seed=seed))
    assert (suspect.component, suspect.cause, suspect.ranks) == ("cpu", "irq", (VICTIM,))
    assert suspect.instance == f"cpu{VICTIM}"


@pytest.mark.parametrize("seed", range(3))
def test_without_counts_per_cpu_the_kernels_thread_tells_which(seed: int) -> None:
    suspect = first(flooded(whole(0.3), daemon(VICTIM, 0.5), daemon(5, 0.013), seed=seed))
    assert (suspect.component, suspect.cause, suspect.instance) == ("cpu", "irq", f"cpu{VICTIM}")


def test_one_of_two_ranks_is_accused_where_interrupts_say_why() -> None:
    job = Job(ranks=2, scale={1: 1.4}, ranks_columns=PINNED, counters=[spent(1, 0.3)])
    suspect = first(job)
    assert (suspect.component, suspect.cause, suspect.ranks) == ("cpu", "irq", (1,))


@pytest.mark.parametrize(
    "counters",
    [
        [],
        [whole(0.3)],
        [spent(cpu, 0.3) for cpu in range(RANKS)],  # a busy network: everybody has it
        [spent(5, 0.3)],  # another rank's CPU
        [spent(VICTIM, 0.03)],  # what any network costs
        [whole(0.3), *(daemon(rank, 0.5) for rank in range(RANKS))],
    ],
)
def test_interrupts_that_are_not_this_ranks_own_accuse_nobody_of_them(counters: list[dict[str, Any]]) -> None:
    verdict = diagnose(build(flooded(*counters)))
    assert all(suspect.cause != "irq" for suspect in verdict.suspects)


def test_one_slow_function_is_not_interrupted() -> None:
    job = builders.slow_python(VICTIM, 0.15, builders.Work("python", "stage_buffers", 0, 41), ranks_columns=PINNED)
    job.counters = [spent(VICTIM, 0.3)]
    assert (first(job).component, first(job).cause) == ("python", "slow-function")


def test_a_process_that_takes_the_cpu_is_not_an_interrupt() -> None:
    job = builders.hogged(VICTIM, 0.1, ranks_columns=PINNED)
    job.counters += [spent(VICTIM, 0.1)]
    assert (first(job).component, first(job).cause) == ("cpu", "contended")


def test_a_rank_that_stands_in_the_queue_behind_the_kernels_thread_is_interrupted() -> None:
    # GIVEN no function that grew, and nothing counted per CPU
    job = Job(ranks=RANKS, extra={VICTIM: [(builders.QUEUE, 0.1)]}, counters=[daemon(VICTIM, 0.1 * 70)])
    suspect = first(job)
    assert (suspect.component, suspect.cause, suspect.instance) == ("cpu", "irq", f"cpu{VICTIM}")


def test_a_busy_network_slows_nobody_by_itself() -> None:
    job = Job(ranks=RANKS, ranks_columns=PINNED, counters=[spent(VICTIM, 0.3), whole(0.3), daemon(VICTIM, 0.5)])
    assert diagnose(build(job)).status == "healthy"


@pytest.mark.parametrize("ranks", [2, RANKS])
@pytest.mark.parametrize("seed", range(3))
def test_interrupts_that_cost_more_than_they_count_are_the_one_suspect(ranks: int, seed: int) -> None:
    job = Job(ranks=ranks, seed=seed, scale={1: 2.1}, extra={1: [(builders.QUEUE, 0.03)]}, ranks_columns=PINNED,
              counters=[whole(0.27), spent(1, 0.24), spent(0, 0.03)])  # fmt: skip
    verdict = diagnose(build(job))
    assert [(s.component, s.cause, s.ranks) for s in verdict.suspects] == [("cpu", "irq", (1,))]


@pytest.mark.parametrize("seed", range(3))
def test_collections_of_garbage_that_all_ranks_make_are_interrupted_as_the_rest_is(seed: int) -> None:
    usual = {rank: [(COLLECTION, 0.15)] for rank in range(2)}
    slow = {**usual, 1: [(COLLECTION, 0.3), (builders.QUEUE, 0.03)]}
    job = Job(ranks=2, seed=seed, scale={1: 1.9}, extra=slow, ranks_columns=PINNED, counters=[spent(1, 0.35)])
    suspect = first(job)
    assert (suspect.component, suspect.cause, suspect.ranks) == ("cpu", "irq", (1,))


@pytest.mark.parametrize("seed", range(3))
def test_collections_of_garbage_that_one_rank_makes_are_no_interrupts(seed: int) -> None:
    job = Job(ranks=RANKS, seed=seed, extra={VICTIM: [(COLLECTION, 0.15)]}, ranks_columns=PINNED,
              counters=[whole(0.1), spent(VICTIM, 0.09), spent(0, 0.01)])  # fmt: skip
    assert first(job).component == "python"


@pytest.mark.parametrize("seed", range(3))
def test_a_function_that_grew_alone_beside_interrupts_is_slow_itself(seed: int) -> None:
    job = Job(ranks=RANKS, seed=seed, extra={VICTIM: [(builders.BUSY, 0.15)]}, ranks_columns=PINNED,
              counters=[whole(0.1), spent(VICTIM, 0.09), spent(0, 0.01)])  # fmt: skip
    assert first(job).component == "python"


@pytest.mark.parametrize(("steps", "noise"), [(10, 0.1), (14, 0.15)])
def test_few_noisy_steps_do_where_the_kernel_counts_that_it_ran_in_the_ranks_place(steps: int, noise: float) -> None:
    noisy = Job(ranks=4, steps=steps, noise=noise, seed=3, scale={1: 1.4}, ranks_columns=PINNED)
    suspect = first(replace(noisy, counters=[spent(1, 0.3)]))
    assert (suspect.component, suspect.cause, suspect.ranks) == ("cpu", "irq", (1,))
    # AND where it does not count them nobody is accused
    assert not diagnose(build(noisy)).suspects


def test_ranks_that_may_run_on_very_many_cpus_are_held_against_those_that_the_window_names() -> None:
    # GIVEN ranks that may use nearly all CPUs that there could be, each another list of them, and odd names of CPUs
    count = 300
    job = Job(ranks=4)
    job.counters += [spent(1, 0.5), spent(200, 0.5)]
    job.counters += [
        {**spent(1, 9.0), "instance": name} for name in ("cpu01", "cpu²", "cpu", "CPU1", "cpu" + "1" * 4400)
    ]
    fleet = gather(build(job))
    ranks = fleet.ranks.taken(np.zeros(count, dtype=np.int64))
    fleet = replace(fleet, ranks=replace(ranks, cpus=("1", "1,200", *(f"{rank}-65535" for rank in range(2, count)))))
    began = time.process_time()
    found = interrupted(fleet)
    # THEN those are interrupted whose CPUs are, soon
    assert np.flatnonzero(found).tolist() == [0, 1]
    assert time.process_time() - began < 2
