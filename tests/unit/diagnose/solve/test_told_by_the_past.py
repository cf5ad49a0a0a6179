"""Time as well as space: what earlier windows of the job tell of ranks that no peer tells of."""

from __future__ import annotations

import builders
import pytest
from builders import Job, build, codes, first

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode


def earlier(**more: object) -> list[builders.Window]:
    return build(Job(start=1_759_990_000.0, seed=97, **more))  # type: ignore[arg-type]


def test_all_ranks_slower_is_only_seen_against_the_baseline() -> None:
    windows = build(Job(extra={rank: [(builders.BUSY, 0.08)] for rank in range(8)}))
    assert diagnose(windows).status == "healthy"
    verdict = diagnose(windows, earlier())
    suspect = first(verdict)
    assert (suspect.component, suspect.cause) == ("workload", "slow-everywhere")
    assert suspect.function is not None and suspect.function.name == "augment"
    assert verdict.slowdown_percent == pytest.approx(33, abs=6)


def test_an_excess_that_was_there_before_is_an_imbalance() -> None:
    verdict = diagnose(build(Job(scale={2: 1.6})), earlier(scale={2: 1.6}))
    assert verdict.status == "imbalance"


@pytest.mark.parametrize("more", [0.002, 0.006])
def test_what_differs_little_from_what_was_there_before_is_the_same_imbalance(more: float) -> None:
    verdict = diagnose(
        build(Job(extra={2: [(builders.BUSY, 0.06 + more)]})), earlier(extra={2: [(builders.BUSY, 0.06)]})
    )
    assert [(each.cause, each.ranks) for each in verdict.suspects] == [("data-imbalance", (2,))]
    assert verdict.suspects[0].lost_seconds_per_step == pytest.approx(0.06 + more, rel=0.15)
    assert NoteCode.DESIGNED in codes(verdict)


@pytest.mark.parametrize("before_s", [0.06, 0.1])
def test_of_an_excess_only_what_was_not_there_before_is_a_fault(before_s: float) -> None:
    # GIVEN a rank with more work by design, and a read on it that became slow since
    now = Job(extra={2: [(builders.READ, before_s + 0.04)]})

    # WHEN it is diagnosed with a baseline
    verdict = diagnose(build(now), earlier(extra={2: [(builders.READ, before_s)]}))

    # THEN the fault costs what it takes more than then, and the rest is by design
    assert [(each.component, each.cause) for each in verdict.suspects] == [
        ("storage", "slow-read"),
        ("workload", "data-imbalance"),
    ]
    assert [each.lost_seconds_per_step for each in verdict.suspects] == pytest.approx([0.04, before_s], rel=0.15)
    assert (verdict.status, {each.ranks for each in verdict.suspects}) == ("fault", {(2,)})


def test_all_slower_is_seen_beside_a_rank_that_was_slower_before() -> None:
    everybody: dict[int, list[tuple[builders.Work, float]]] = {rank: [(builders.BUSY, 0.06)] for rank in range(8)}
    uneven = [(builders.READ, 0.06)]
    now = Job(extra={**everybody, 2: [*everybody[2], *uneven]})
    verdict = diagnose(build(now), earlier(extra={2: uneven}))
    assert {each.cause for each in verdict.suspects} == {"slow-everywhere", "data-imbalance"}
    assert first(verdict).lost_seconds_per_step == pytest.approx(0.06, rel=0.15)


def test_a_single_rank_is_judged_by_its_own_past() -> None:
    windows = build(Job(ranks=1, extra={0: [(builders.READ, 0.08)]}))
    assert diagnose(windows).status == "healthy", "compared with nobody, and said so"
    verdict = diagnose(windows, earlier(ranks=1))
    suspect = first(verdict)
    assert NoteCode.ONE_RANK not in codes(verdict)
    assert (suspect.component, suspect.cause) == ("storage", "slow-read")
    assert suspect.function is not None and suspect.function.name == "read"


@pytest.mark.parametrize(
    ("work", "named"),
    [
        (builders.READ, ("storage", "slow-read")),
        (builders.QUEUE, ("cpu", "contended")),
        (builders.BUSY, ("workload", "slow-everywhere")),
    ],
)
def test_what_all_ranks_share_is_named_by_what_grew_on_all(work: builders.Work, named: tuple[str, str]) -> None:
    suspect = first(diagnose(build(Job(extra={rank: [(work, 0.08)] for rank in range(8)})), earlier()))
    assert (suspect.component, suspect.cause) == named and len(suspect.ranks) == 8


def test_where_only_the_transfer_grew_since_the_baseline_it_is_the_network_of_all() -> None:
    windows = build(Job(transfer_s=0.13))
    verdict = diagnose(windows, earlier())
    suspect = first(verdict)
    assert (verdict.status, suspect.component, suspect.cause, suspect.ranks) == (
        "fault",
        "network",
        "slow-link",
        verdict.ranks,
    )
    assert suspect.lost_seconds_per_step == pytest.approx(0.09, rel=0.2) and suspect.function is None


@pytest.mark.parametrize("bad", [2, 3, 4, 5, 6, 7])
def test_however_many_ranks_are_bad_time_tells_which(bad: int) -> None:
    # GIVEN all but a few ranks became slow in one function since the baseline
    windows = build(Job(extra={rank: [(builders.BUSY, 0.08)] for rank in range(bad)}))
    verdict = diagnose(windows, earlier())
    assert verdict.status == "fault"
    assert sorted(rank for suspect in verdict.suspects for rank in suspect.ranks) == list(range(bad))
    assert all(s.function is not None and s.function.name == "augment" for s in verdict.suspects)
    assert sum(s.lost_seconds_per_step for s in verdict.suspects) == pytest.approx(0.08, rel=0.3)


def test_one_of_two_ranks_is_told_by_its_past() -> None:
    windows = build(Job(ranks=2, extra={1: [(builders.BUSY, 0.04)]}))
    verdict = diagnose(windows, earlier(ranks=2))
    assert [suspect.ranks for suspect in verdict.suspects] == [(1,)]


@pytest.mark.parametrize("seed", range(3))
def test_a_little_slower_everywhere_is_told_where_one_function_holds_it(seed: int) -> None:
    # GIVEN steps that are 8 % longer than they were, in one function, or in all that ranks compute
    longer = {
        "one": {"extra": {rank: [(builders.BUSY, 0.02)] for rank in range(8)}},
        "all": {"scale": dict.fromkeys(range(8), 1.17)},
    }
    found = {
        kind: diagnose(build(Job(seed=seed, noise=0.02, **more)), earlier(noise=0.02)) for kind, more in longer.items()
    }
    suspect = first(found["one"])
    assert (suspect.cause, suspect.function and suspect.function.name) == ("slow-everywhere", "augment")
    assert found["all"].status == "healthy"


def test_what_made_one_rank_slower_since_the_baseline_is_not_everywhere() -> None:
    # GIVEN a rank whose own time grew, in no function that is known
    (window,) = build(Job(ranks=2))
    verdict = diagnose([builders.stalled(window, 1, range(70), 0.1)], earlier(ranks=2))
    assert not any(suspect.cause == "slow-everywhere" for suspect in verdict.suspects)
    assert verdict.status in ("unknown", "fault")
