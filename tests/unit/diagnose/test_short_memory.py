"""Waiting for pages: short memory where a counter says so, a slow mapped file where none does, and nothing in health."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import Job, Work, build

from diagnose.judge import diagnose
from diagnose.verdict import Suspect

PAGES = Work("io", "page fault", 0, 139, caller="look_up")
KERNEL = Work("python", "look_up", 0, 139)
VICTIM = 3


def faulting(seconds: float = 0.04, kernel: float = 0.5, **more: Any) -> Job:
    """A rank that waits for pages, and in whose kernel work goes with it."""
    return Job(extra={VICTIM: [(PAGES, seconds), (KERNEL, kernel * seconds)]}, **more)


def hits(rank: int, events: float, group: str = "") -> dict[str, Any]:
    return {"scope": "cgroup", "rank": rank, "instance": group or f"/job/rank{rank}", "name": "memory.limit_hits",
            "unit": "events", "value": events, "limit": 2e8}  # fmt: skip


def host(name: str, value: float) -> dict[str, Any]:
    return {"scope": "host", "name": name, "value": value}


def first(job: Job) -> Suspect:
    verdict = diagnose(build(job))
    assert verdict.suspects, (verdict.status, verdict.notes)
    return verdict.suspects[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel", [0.0, 0.5, 2.0])
def test_a_rank_whose_group_is_at_its_limit_is_short_of_memory(kernel: float, seed: int) -> None:
    job = faulting(kernel=kernel, seed=seed)
    job.counters = [hits(VICTIM, 15_832)]
    suspect = first(job)
    assert (suspect.component, suspect.cause, suspect.ranks) == ("memory", "reclaim", (VICTIM,))
    assert suspect.instance == f"/job/rank{VICTIM}"
    assert suspect.lost_seconds_per_step == pytest.approx(0.04 * (1 + kernel), rel=0.4)


def test_a_group_that_all_ranks_share_is_not_its_own_witness_against() -> None:
    job = faulting()
    job.counters = [hits(rank, 15_832, "/pod") for rank in range(job.ranks)]
    assert first(job).component == "memory"


@pytest.mark.parametrize("counters", [[], [hits(VICTIM, 3)], [hits(rank, 9_973) for rank in range(8)]])
def test_without_a_limit_of_its_own_a_mapped_file_is_slow(counters: list[dict[str, Any]]) -> None:
    job = faulting()
    job.counters = counters
    suspect = first(job)
    assert (suspect.component, suspect.cause, suspect.ranks) == ("storage", "slow-read", (VICTIM,))


def test_pages_that_come_from_swap_are_named() -> None:
    job = faulting()
    job.counters = [host("memory.swapped_in_pages", 7_919), host("memory.major_faults", 8_009)]
    assert (first(job).component, first(job).cause) == ("memory", "swap")


@pytest.mark.parametrize(("share", "component"), [(0.97, "memory"), (0.1, "storage")])
def test_stalls_of_the_host_convict_only_if_they_are_as_long_as_the_faults(share: float, component: str) -> None:
    job = faulting()
    job.counters = [host("psi.memory.some_s", share * 0.04 * job.steps)]
    assert first(job).component == component


def test_a_page_cache_that_fills_the_limit_is_health() -> None:
    job = Job(counters=[hits(VICTIM, 99_991), host("psi.memory.some_s", 0.5), host("memory.swapped_in_pages", 997)])
    assert diagnose(build(job)).status == "healthy"


def test_a_slow_function_beside_such_a_limit_is_still_the_function() -> None:
    job = builders.slow_python(VICTIM, 0.1)
    job.counters = [hits(VICTIM, 99_991)]
    assert (first(job).component, first(job).cause) == ("python", "slow-function")


def test_a_function_that_is_slow_by_itself_is_not_excused_by_a_few_faults() -> None:
    job = faulting(seconds=0.004, kernel=25.0)
    job.counters = [hits(VICTIM, 15_832)]
    suspect = first(job)
    assert suspect.component == "python" and suspect.function is not None and suspect.function.name == "look_up"


def test_pages_that_come_without_waiting_are_work_of_the_kernel() -> None:
    # A fast disk: 800 pages a step were taken away and read again, few of which took long enough to be waited for.
    job = faulting(seconds=0.004, kernel=8.0)
    job.counters = [hits(VICTIM, 800.0 * job.steps)]
    assert (first(job).component, first(job).cause) == ("memory", "reclaim")
