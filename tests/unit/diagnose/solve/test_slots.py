"""Stays per collective of a step, and pipelines: who is waited for first, not who waits most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import builders
import numpy as np
import pytest
from builders import Job, build, columns, retimed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.diagnose.infer.fleet.collectives.slots import transfer
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.model import Slots
from rankscope.diagnose.infer.fleet.pipelines import find_pipelines
from rankscope.diagnose.infer.fleet.roles import roles
from rankscope.diagnose.infer.model.slots import Regained, gain, latest
from rankscope.diagnose.infer.solve.judge import diagnose, judge
from rankscope.observer.window.folder import Window

RANKS, STEPS = 6, 41


def phased(slow: dict[tuple[int, int], float], ranks: int = RANKS, noise: float = 0.03, seed: int = 0) -> Window:
    """A job with two collectives per step; `slow`: seconds more for (rank, phase). Functions: augment, then collate."""
    job = Job(ranks=ranks, steps=STEPS, seed=seed, extra={
        rank: [(builders.BUSY if phase == 0 else builders.READ, seconds)] for (rank, phase), seconds in slow.items()})  # fmt: skip
    rng = np.random.default_rng(seed)
    window = build(job)[0]
    own = np.zeros((ranks, STEPS, 2))
    for phase in range(2):
        own[:, :, phase] = 0.1 * np.exp(rng.normal(0, noise, (ranks, STEPS)))
        for (rank, where), seconds in slow.items():
            own[rank, :, phase] += seconds * (where == phase)
    stay = own.max(axis=0) - own + 0.02
    total = (own + stay)[0].sum(axis=1)
    start = np.concatenate(([0.0], np.cumsum(total)[:-1]))
    rows = window.steps.to_pylist()
    for row in rows:
        rank, step = row["rank"], row["step"]
        row |= {"own_s": own[rank, step].sum(), "wait_s": stay[rank, step].sum(), "seconds": total[step], "start_s": start[step],
                "io_s": slow.get((rank, 1), 0.0)}  # fmt: skip
    window = columns(window, "steps", rows)
    return columns(window, "collectives", [
        {"rank": rank, "sequence": 2 * step + slot, "step": step, "slot": slot, "op": ("allreduce", "allgather")[slot],
         "stay_s": stay[rank, step, slot], "bytes": 1000}
        for rank in range(ranks) for step in range(STEPS) for slot in range(2)
    ])  # fmt: skip


def test_a_rank_alone_makes_collectives_and_nobody_waits() -> None:
    verdict = diagnose([phased({}, ranks=1)])
    assert (verdict.status, verdict.suspects) == ("healthy", ())


ZERO = np.zeros(RANKS, np.int64)


def test_two_ranks_that_are_late_in_turn_hide_the_waiting_from_the_sums() -> None:
    # GIVEN rank 1 is late at the first collective of each step, rank 4 at the second
    fleet = gather([phased({(1, 0): 0.06, (4, 1): 0.05}, noise=0.0)])
    assert fleet.slots is not None and fleet.slots.ops == ("allreduce", "allgather")
    # THEN the transfer is what no rank waits in, and both together cost the sum, not the greater
    assert transfer(fleet.slots) == pytest.approx(0.04, abs=1e-6)
    assert gain(fleet.slots, ZERO, np.array([1, 4])) == pytest.approx(0.11, abs=1e-6)
    assert gain(fleet.slots, ZERO, np.array([1])) == pytest.approx(0.06, abs=1e-6)
    late = latest(fleet.slots, ZERO, 4)
    assert (
        late is not None and (late.slot, late.op) == (1, "allgather") and late.late_s == pytest.approx(0.05, abs=1e-6)
    )


def test_what_some_of_many_cost_does_not_depend_on_who_else_may_be_asked() -> None:
    # GIVEN three late ranks of six in two roles, a stay that is not known, and whoever might be asked about
    fleet = gather([phased({(1, 0): 0.06, (4, 1): 0.05, (5, 0): 0.04})])
    assert fleet.slots is not None
    fleet.slots.stay_s[2, 3] = np.nan
    part = np.array([0, 0, 0, 1, 1, 1])
    many = Regained(fleet.slots, part, np.array([0, 1, 3, 4, 5]))
    for some in ([1], [4, 5], [1, 4], [0, 1, 5], [3, 4, 5], []):
        asked = np.array(some, dtype=np.int64)
        assert many.by(asked) == gain(fleet.slots, part, asked)
    assert many.by(np.array([1, 5])) > many.by(np.array([1])) > 0


def test_two_culprits_in_different_phases_are_named_with_what_they_cost() -> None:
    verdict = diagnose([phased({(1, 0): 0.06, (4, 1): 0.05})])
    assert [(s.component, s.ranks) for s in verdict.suspects] == [("python", (1,)), ("storage", (4,))]
    assert sum(s.lost_seconds_per_step for s in verdict.suspects) == pytest.approx(0.11, rel=0.2)
    assert any("collective 1 of 2 (allreduce)" in e.measure for e in verdict.suspects[0].evidence)
    assert any("collective 2 of 2 (allgather)" in e.measure for e in verdict.suspects[1].evidence)


def overlapping(window: Window) -> Window:
    """The same with collectives that overlap: their stays are twice what the step waits."""
    return columns(
        window, "collectives", [row | {"stay_s": 2 * row["stay_s"]} for row in window.collectives.to_pylist()]
    )


def test_stays_of_collectives_that_overlap_are_not_the_waiting_of_the_steps() -> None:
    # GIVEN a late rank, and collectives that overlap
    window = phased({(1, 0): 0.06})
    fleet = gather([overlapping(window)])
    assert fleet.slots is not None and not fleet.slots.whole and fleet.slots.part < 0.9
    # THEN it costs what it does by the sums
    told = [diagnose([each]).suspects[0] for each in (overlapping(window), columns(window, "collectives", []))]
    assert [one.ranks for one in told] == [(1,), (1,)]
    assert told[0].lost_seconds_per_step == pytest.approx(told[1].lost_seconds_per_step, rel=0.03)
    assert not Regained(fleet.slots, ZERO, np.array([1])).apart


def test_sums_hide_no_more_of_a_late_rank_than_it_is_spared_the_queue() -> None:
    # GIVEN rank 1, late at the first collective and early at the second, as it stands in no queue for a CPU where the others stand in one
    stay = np.full((RANKS, STEPS, 2), 0.02)
    stay[np.arange(RANKS) != 1, :, 0] += 0.1
    stay[1, :, 1] += 0.06
    waits, spared = Slots(stay, ("allreduce", "allgather")), np.where(np.arange(RANKS) == 1, 0.0, 0.06)
    late = np.array([1])
    # THEN that it is early is no work which it does elsewhere; of a rank that is spared nothing it is
    assert Regained(waits, ZERO, late, spared).by(late) == pytest.approx(0.1)
    assert Regained(waits, ZERO, late).by(late) == pytest.approx(0.04)
    # and where collectives overlap no more can be hidden than it is spared, and than the sums take for the transfer
    overlap = replace(waits, whole=False, part=0.5)
    assert Regained(overlap, ZERO, late, spared).hidden_s(late, 0.2) == pytest.approx(0.06)
    assert Regained(overlap, ZERO, late, spared).hidden_s(late, 0.01) == pytest.approx(0.01)
    assert Regained(overlap, ZERO, late).hidden_s(late, 0.2) == 0
    # of two ranks that wait for each other in turn all of that
    assert Regained(overlap, ZERO, np.array([1, 2])).hidden_s(np.array([1, 2]), 0.2) == pytest.approx(0.2)


@pytest.mark.parametrize("spoil", ["ops", "missing", "doubled"])
def test_stays_that_do_not_match_between_ranks_are_not_compared(spoil: str) -> None:
    window = phased({(1, 0): 0.06})
    rows = window.collectives.to_pylist()
    if spoil == "ops":
        rows = [row | {"op": "broadcast" if row["rank"] % 2 else row["op"]} for row in rows]
    elif spoil == "missing":
        rows = [row for row in rows if row["step"] % 2 or row["rank"]]
    else:
        rows += [row | {"slot": row["slot"] + 2} for row in rows if row["rank"] == 3]
    fleet = gather([columns(window, "collectives", rows)])
    if fleet.slots is not None and spoil == "missing":
        assert np.isfinite(transfer(fleet.slots)).sum() >= STEPS // 2
    verdict = judge(fleet)
    assert verdict.suspects and verdict.suspects[0].ranks == (1,)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_collectives_end_in_a_verdict(data: st.DataObject) -> None:
    window = phased({(1, 0): 0.06}, ranks=3)
    rows = window.collectives.to_pylist()
    for _ in range(data.draw(st.integers(0, 12))):
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        row[data.draw(st.sampled_from(["step", "slot", "rank", "sequence"]))] = data.draw(st.integers(-5, 2**31 - 1))
        row["stay_s"] = data.draw(st.floats(width=32))
    diagnose([columns(window, "collectives", rows)])


# ---- pipelines -----------------------------------------------------------------------------------------------------------

STAGES, REPLICAS, BATCHES = 4, 2, 8


def pipeline(slow: dict[int, float], heavy: dict[int, float] | None = None, seed: int = 0) -> Window:
    """Two pipelines of four stages, 1F1B, m = 8; ranks stage · 2 + replica. `slow`: seconds by rank; `heavy`: by stage."""
    ranks = STAGES * REPLICAS
    job = Job(ranks=ranks, steps=STEPS, seed=seed, extra={rank: [(builders.BUSY, s)] for rank, s in slow.items()})
    rng = np.random.default_rng(seed)
    window = build(job)[0]
    stage, replica = np.arange(ranks) // REPLICAS, np.arange(ranks) % REPLICAS
    own = 0.2 * np.exp(rng.normal(0, 0.03, (ranks, STEPS)))
    for rank, seconds in slow.items():
        own[rank] += seconds
    for which, seconds in (heavy or {}).items():
        own[stage == which] += seconds
    paced = np.stack([
        (BATCHES - 1) / BATCHES * own[replica == which].max(axis=0) + own[replica == which].sum(axis=0) / BATCHES
        for which in range(REPLICAS)
    ])  # fmt: skip
    total = paced.max(axis=0) + 0.02
    window = retimed(window, own, total)
    patterns: list[dict[str, Any]] = [row for row in window.patterns.to_pylist() if row["kind"] != "collective"]
    for row in patterns:
        if row["name"] == "Linear.forward":
            row["per_step_s"] += (heavy or {}).get(int(stage[row["rank"]]), 0.0)
    template = next(row for row in window.patterns.to_pylist() if row["kind"] == "collective")
    for rank in range(ranks):
        for name, count, size in (
            ("send", BATCHES, 0),
            ("recv", BATCHES, 0),
            ("allreduce", 1, 1_000_000 * 2 ** int(stage[rank])),
        ):
            patterns.append(template | {"rank": rank, "name": name, "count": count * STEPS, "bytes": size * STEPS})
    return columns(window, "patterns", patterns)


def test_stages_are_told_by_the_volumes_they_reduce() -> None:
    fleet = gather([pipeline({})])
    assert [np.flatnonzero(roles(fleet) == code).tolist() for code in np.unique(roles(fleet))] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    found = find_pipelines(fleet, roles(fleet))
    assert found is not None and found.micro_batches == BATCHES and found.member.tolist() == [0, 1] * STAGES


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rank", [0, 3, 6])
def test_the_first_cause_in_a_pipeline_is_named_not_who_suffers_most(rank: int, seed: int) -> None:
    verdict = diagnose([pipeline({rank: 0.1}, seed=seed)])
    assert [(s.component, s.ranks) for s in verdict.suspects] == [("python", (rank,))]
    assert verdict.suspects[0].lost_seconds_per_step == pytest.approx(0.1, rel=0.3)


@pytest.mark.parametrize("seed", range(3))
def test_a_heavier_last_stage_is_a_designed_imbalance(seed: int) -> None:
    verdict = diagnose([pipeline({}, {STAGES - 1: 0.15}, seed=seed)])
    assert verdict.status == "imbalance"
    assert [(s.cause, s.ranks) for s in verdict.suspects] == [("stage-imbalance", (6, 7))]


def test_a_healthy_pipeline_is_healthy() -> None:
    assert all(diagnose([pipeline({}, seed=seed)]).status == "healthy" for seed in range(3))


def test_ranks_that_do_the_same_are_one_role_whatever_the_rounding() -> None:
    window = build(Job(ranks=6))[0]
    rows = window.patterns.to_pylist()
    for row in rows:
        if row["kind"] == "collective":
            row["bytes"] = 100_000_000 + 3_000_000 * row["rank"]
    assert len(np.unique(roles(gather([columns(window, "patterns", rows)])))) == 1
