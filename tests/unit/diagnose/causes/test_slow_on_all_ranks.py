"""A function that became slow on every rank is named by the baseline, also where its time is spent in what it calls."""

from __future__ import annotations

import builders
import pytest
from builders import TRAIN, Job, StackFrame, Work, build

from rankscope.diagnose.infer.solve.judge import diagnose

LIBRARY = "/usr/lib/python3.11/re/__init__.py"
CALLS = tuple(
    Work("python", name, 0.0, 180 + place, LIBRARY, frames=(StackFrame("clean_text", TRAIN, 62),))
    for place, name in enumerate(("sub", "compile", "escape", "finditer"))
)


def job(seed: int, slow: float) -> Job:
    """Every rank spends 8 ms in what `clean_text` calls, and `slow` seconds more in four parts."""
    each = {rank: [(work, 0.002 + slow / len(CALLS)) for work in CALLS] for rank in range(4)}
    return Job(ranks=4, seed=seed, extra=each)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_function_calls_is_its_own_time_beside_its_past(seed: int) -> None:
    verdict = diagnose(build(job(seed, 0.05)), build(job(seed + 100, 0.0)))
    first = verdict.suspects[0]
    assert (verdict.status, first.ranks) == ("fault", (0, 1, 2, 3))
    assert first.function is not None and (first.function.name, first.function.file) == ("clean_text", TRAIN)
    assert first.lost_seconds_per_step == pytest.approx(0.05, rel=0.3)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_work_as_before_accuses_nobody(seed: int) -> None:
    assert diagnose(build(job(seed, 0.0)), build(job(seed + 100, 0.0))).suspects == ()


@pytest.mark.parametrize("seed", range(2))
def test_slow_reads_of_all_ranks_are_storage(seed: int) -> None:
    slow = Job(ranks=4, seed=seed, extra={rank: [(builders.READ, 0.05)] for rank in range(4)})
    first = diagnose(build(slow), build(Job(ranks=4, seed=seed + 100))).suspects[0]
    assert (first.component, first.cause, first.ranks) == ("storage", "slow-read", (0, 1, 2, 3))


@pytest.mark.parametrize("seed", range(3))
def test_a_longer_exchange_of_as_much_is_the_network(seed: int) -> None:
    before, now = (
        Job(ranks=4, hosts=2, seed=seed + more, transfer_s=long_s) for more, long_s in ((100, 0.04), (0, 0.14))
    )
    first = diagnose(build(now), build(before)).suspects[0]
    assert (first.component, first.cause, first.ranks) == ("network", "slow-link", (0, 1, 2, 3))


@pytest.mark.parametrize("seed", range(3))
def test_a_longer_exchange_of_more_is_no_link_also_where_only_the_connections_count_it(seed: int) -> None:
    before = Job(ranks=4, hosts=2, seed=seed + 100, transfer_s=0.04, sent_bytes=4e6)
    now = Job(ranks=4, hosts=2, seed=seed, transfer_s=0.14, sent_bytes=12e6)
    first = diagnose(build(now), build(before)).suspects[0]
    assert (first.component, first.cause) == ("workload", "slow-everywhere")
    assert any(one.source == "tcp" and one.value > 2 * one.expected for one in first.evidence)
