"""Waiting for pages: short memory where a counter says so, a slow mapped file where none does, and nothing in health."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import Job, Work, build

from rankscope.diagnose.face.report.sections.considered import unseen_by
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.diagnose.infer.verdict.note import NoteCode

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


def test_the_function_whose_pages_are_taken_is_not_accused_as_well() -> None:
    job = faulting(kernel=0.6)
    job.extra[VICTIM].append((Work("io", "read", 0, 151), 0.01))
    job.counters = [hits(VICTIM, 15_832)]
    assert [(each.component, each.cause) for each in diagnose(build(job)).suspects] == [("memory", "reclaim")]


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


TOUCH = Work("python", "stage_buffers", 0, 149, native="kernel")


def minor(events: dict[int, float], ranks: int = 8) -> list[dict[str, Any]]:
    return [{"scope": "rank", "rank": rank, "name": "memory.minor_faults", "unit": "events", "value": events.get(rank, 4_001.0)}
            for rank in range(ranks)]  # fmt: skip


@pytest.mark.parametrize("faults", [30_011.0, 5_000_011.0])  # 28 ms a step: huge pages, or many small ones
def test_new_memory_in_each_step_is_named_with_the_function_that_takes_it(faults: float) -> None:
    job = Job(extra={VICTIM: [(TOUCH, 0.028)]}, counters=minor({VICTIM: 4_001.0 + faults}))
    suspect = first(job)
    assert (suspect.component, suspect.cause, suspect.ranks) == ("memory", "page-faults", (VICTIM,))
    assert suspect.function is not None and suspect.function.name == "stage_buffers"
    assert len(diagnose(build(job)).suspects) == 1


@pytest.mark.parametrize(
    ("work", "faults"),
    [
        (TOUCH, {}),  # in the kernel, but without faults: reads from the page cache
        (TOUCH, dict.fromkeys(range(8), 900_001.0)),  # everybody has them
        (Work("python", "stage_buffers", 0, 149), {VICTIM: 900_001.0}),  # computing beside them
    ],
)
def test_without_faults_of_its_own_in_the_kernel_the_function_is_slow(work: Work, faults: dict[int, float]) -> None:
    suspect = first(Job(extra={VICTIM: [(work, 0.028)]}, counters=minor(faults)))
    assert (suspect.component, suspect.cause) == ("python", "slow-function")


def test_a_rank_at_its_limit_has_many_faults_and_is_short_of_memory() -> None:
    job = faulting(kernel=2.0)
    job.counters = [hits(VICTIM, 15_832), *minor({VICTIM: 900_001.0})]
    assert (first(job).component, first(job).cause) == ("memory", "reclaim")


@pytest.mark.parametrize("more", [4_000_000.0, 200_000.0])
def test_pages_that_an_allocator_takes_anew_by_luck_are_nobodys_fault(more: float) -> None:
    # All functions of one rank of three take a third longer: as long as so many small pages take to be given, or far longer.
    verdict = diagnose(build(Job(ranks=3, scale={1: 1.35}, counters=minor({1: 4_001.0 + more}, 3), seed=5)))
    assert verdict.suspects == ()
    told = [note.code for note in verdict.notes]
    if more > 1e6:
        assert verdict.status == "healthy" and told[0] is NoteCode.PAGES_GIVEN
    else:
        assert verdict.status == "unknown" and NoteCode.PAGES_GIVEN not in told


@pytest.mark.parametrize(("given", "accused"), [(880_001.0, False), (600_001.0, True)])
def test_a_function_of_all_that_takes_as_long_for_each_page_is_not_slow(given: float, accused: bool) -> None:
    # All ranks spend 60 ms of each step in the kernel, which gives them pages; one spends 88 ms there.
    extra = {rank: [(TOUCH, 0.088 if rank == VICTIM else 0.06)] for rank in range(8)}
    faults = {rank: given if rank == VICTIM else 600_001.0 for rank in range(8)}
    verdict = diagnose(build(Job(extra=extra, counters=minor(faults))))
    assert [(suspect.cause, suspect.ranks) for suspect in verdict.suspects] == (
        [("slow-function", (VICTIM,))] if accused else []
    )
    assert accused or verdict.status == "healthy"


def test_the_page_tells_pages_by_luck_where_it_tells_why_nobody_is_accused() -> None:
    verdict = diagnose(build(Job(ranks=3, scale={1: 1.35}, counters=minor({1: 4_004_001.0}, 3), seed=5)))
    assert not any("pages in each step" in text for text in unseen_by(verdict))
