"""Strangers that take a host's CPUs from all its ranks alike are named without a baseline; what every host has is not."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
from builders import BUSY, QUEUE, Job, build, columns
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnose.face.report.words import context
from rankscope.diagnose.infer.causes.rank.cpu import _within
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.busy_host import (
    _pools,
    busy_noise_s,
    even_queue_s,
    pools,
    strangers_shares,
    taken_s,
)
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.sentence import summary_of
from rankscope.probes.host.procfs import cpu_ranges

CPUS = 8


def job(queued_s: float, busy_share: float, one: float = 0.9, hosts: int = 1, seed: int = 0) -> Job:
    """Eight ranks; on the first host all stand in the queue for `queued_s` per step, behind strangers of which one program takes `one`."""
    made = Job(ranks=8, hosts=hosts, seed=seed, steps=60)
    here = range(8 // hosts)
    made.extra = {rank: [(QUEUE, queued_s)] for rank in here}
    taken = queued_s * made.steps
    for rank in here:
        made.counters += [
            {"rank": rank, "name": "cpu.taken_s", "comm": "backup-agent", "pid": 990, "value": one * taken},
            {"rank": rank, "name": "cpu.taken_s", "comm": "node-exporter", "pid": 991, "value": (1 - one) * taken},
            {
                "rank": rank,
                "name": "cpu.taken_s",
                "comm": "python",
                "pid": 4000 + (rank + 1) % 8,
                "value": 0.02 * taken,
            },
        ]
    made.counters += [{"rank": rank, "name": "cpu.process_run_s", "value": 5.0} for rank in range(8)]
    busy = busy_share * CPUS * made.window_s + 5.0 * len(here)
    made.counters.append({"scope": "host", "name": "cpu.busy_s", "value": busy, "limit": CPUS * made.window_s})
    return made


def test_of_ranks_in_containers_the_machine_is_named_whose_cpus_are_taken() -> None:
    made = job(0.05, 0.5)
    made.namespaces = 4
    verdict = diagnose(build(made))
    (suspect,) = verdict.suspects
    assert (suspect.code, suspect.host, len(suspect.ranks)) == ("cpu/contended", "node-0", 8)
    assert "node-exporter (991) on node-0: they take the CPUs of all ranks there alike" in suspect.action
    assert context(verdict).startswith(
        "job-a, 8 ranks on lab-host-0, lab-host-1, lab-host-2, lab-host-3 (containers of node-0); "
    )


def test_what_is_told_of_strangers_is_not_less_than_they_cost() -> None:
    (suspect,) = diagnose(build(job(0.05, 0.5))).suspects
    longest = next(one for one in suspect.evidence if one.measure.startswith("the rank that waits longest"))
    assert float(longest.value) >= 0.95 * suspect.lost_seconds_per_step


@pytest.mark.parametrize("seed", range(4))
def test_who_takes_the_cpus_of_all_ranks_is_named(seed: int) -> None:
    verdict = diagnose(build(job(0.05, 0.5, seed=seed)))
    first = verdict.suspects[0]
    assert (verdict.status, first.component, first.cause, first.ranks) == ("fault", "cpu", "contended", tuple(range(8)))
    assert first.scope == "host" and first.instances[0].name == "backup-agent" and "backup-agent" in first.action
    assert first.lost_seconds_per_step == pytest.approx(0.05, rel=0.25)


def test_a_process_that_became_another_program_is_told_once() -> None:
    made = job(0.05, 0.5)
    made.counters += [
        {"rank": rank, "name": "cpu.taken_s", "comm": "nice", "pid": 990, "value": 0.5} for rank in range(8)
    ]
    first = diagnose(build(made)).suspects[0]
    told = [one.measure for one in first.evidence if "has its CPU" in one.measure]
    assert told and "backup-agent (990)" in told[0] and not any("nice" in each for each in told)


@pytest.mark.parametrize(("ranks", "told"), [(8, True), (4, True), (3, False), (1, False)])
def test_who_takes_the_cpus_of_few_ranks_is_not_told_of_all(ranks: int, told: bool) -> None:
    made = job(0.08, 0.5)
    made.counters = [each for each in made.counters if each.get("pid", 0) < 4000 and each.get("rank", 0) < ranks]
    made.counters += [{"rank": rank, "name": "cpu.process_run_s", "value": 5.0} for rank in range(ranks, 8)]
    verdict = diagnose(build(made))
    assert any(each.scope == "host" for each in verdict.suspects) == told


def test_where_strangers_alone_ran_meanwhile_nothing_is_complained_of() -> None:
    # GIVEN ranks of which nobody knows on which CPUs they may run, and that stood in the queue behind no other rank
    made = job(0.05, 0.5)
    made.counters = [each for each in made.counters if each.get("comm") != "python"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fleet = gather(
            [columns(one, "ranks", [row | {"cpus": ""} for row in one.ranks.to_pylist()]) for one in build(made)]
        )
        assert np.nansum(taken_s(fleet), axis=1) == pytest.approx(np.full(8, 0.05 * made.steps), rel=0.25)


@pytest.mark.parametrize("seed", range(4))
def test_what_every_host_has_is_nobodys_fault(seed: int) -> None:
    assert diagnose(build(job(0.05, 0.2, seed=seed))).suspects == ()  # agents and users: a fifth of the host
    assert diagnose(build(job(0.005, 0.5, seed=seed))).suspects == ()  # nobody waits for long
    # The other has more than half.
    assert diagnose(build(replace(job(0.05, 0.5, one=0.45, seed=seed)))).status == "fault"


@pytest.mark.parametrize("seed", range(2))
def test_two_hosts_that_are_slowed_alike_are_both_named_though_neither_costs_anything_alone(seed: int) -> None:
    # GIVEN strangers that take as much of both hosts
    made, other = job(0.05, 0.5, hosts=2, seed=seed), job(0.05, 0.5, hosts=2, seed=seed)
    made.extra |= {rank + 4: extra for rank, extra in other.extra.items()}
    made.counters += [
        dict(each, rank=each["rank"] + 4)
        for each in other.counters
        if each["name"] == "cpu.taken_s" and each["rank"] < 4
    ]
    verdict = diagnose(build(made))
    assert sorted(suspect.ranks for suspect in verdict.suspects) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert {suspect.cause for suspect in verdict.suspects} == {"contended"}
    assert sum(suspect.lost_seconds_per_step for suspect in verdict.suspects) == pytest.approx(0.05, rel=0.25)


def test_a_crowd_of_small_programs_is_a_busy_host() -> None:
    made = job(0.05, 0.5, one=0.3)
    for counter in made.counters:
        if counter.get("comm") == "node-exporter":
            counter["value"] /= 3
    crowd = [dict(counter, comm=f"cron-{place}", pid=1100 + place) for counter in made.counters if counter.get("comm") == "node-exporter"
             for place in range(2)]  # fmt: skip
    made.counters += crowd
    assert diagnose(build(made)).suspects == ()


@pytest.mark.parametrize(
    ("ranks", "busy", "noisy"), [(2, 0.15, True), (3, 0.5, True), (2, 0.0, False), (2, 1.0, False), (4, 0.5, False)]
)
def test_two_or_three_ranks_beside_strangers_differ_by_what_these_make_uneven(
    ranks: int, busy: float, noisy: bool
) -> None:
    made = Job(ranks=ranks, seed=1)
    ran_s, seconds = 0.1, CPUS * 20.0
    made.counters = [{"rank": rank, "name": "cpu.process_run_s", "value": ran_s * made.steps} for rank in range(ranks)]
    busy_s = busy * seconds + ranks * ran_s * made.steps
    made.counters.append({"scope": "host", "name": "cpu.busy_s", "value": busy_s, "limit": seconds})
    fleet = gather(build(made))
    noise = busy_noise_s(fleet, np.zeros(ranks, dtype=np.int64))
    wanted_s = ran_s + np.nanmedian(fleet.steps.sched_s, axis=1)
    assert (wanted_s < np.nanmedian(fleet.steps.own_s, axis=1)).all(), "who sleeps in its own time is not slowed"
    assert noise == pytest.approx(0.4 * busy * (1 - busy) * wanted_s if noisy else np.zeros(ranks), abs=1e-6)


def test_interrupts_are_no_strangers() -> None:
    # GIVEN a host of whose busy time, 30 s of 40, a job has 10 s and interrupts half, whomever they interrupted
    made = Job(ranks=2)
    made.counters = [{"rank": rank, "name": "cpu.process_run_s", "value": 5.0} for rank in (0, 1)]
    made.counters.append({"scope": "host", "name": "cpu.busy_s", "value": 30.0, "limit": 40.0})
    made.counters.append({"scope": "host", "name": "cpu.softirq_s", "value": 12.0})
    made.counters.append({"scope": "host", "name": "cpu.irq_s", "value": 3.0})
    made.counters.append({"scope": "host", "name": "cpu.softirq_s", "instance": "cpu1", "value": 12.0})
    # THEN strangers have half of the other 20 s
    assert list(strangers_shares(gather(build(made))).values()) == pytest.approx([10.0 / 40.0])


def test_ranks_stand_behind_each_other_on_what_strangers_leave_and_a_part_of_that_is_theirs() -> None:
    # GIVEN ranks behind which, as often as behind the strangers, ranks of the job ran, on a host of which strangers keep a half busy
    made = job(0.05, 0.5)
    for counter in made.counters:
        if counter.get("comm") == "python":
            counter["value"] = 0.05 * made.steps
    first = diagnose(build(made)).suspects[0]
    assert first.scope == "host"
    assert first.lost_seconds_per_step == pytest.approx((0.5 + 0.5 * 0.5) * 0.05, rel=0.25)


def test_more_ranks_than_cpus_stand_behind_each_other_without_strangers_too() -> None:
    # GIVEN the same queue, eight ranks on two CPUs (served alike: 3.5 strangers beside them) and on as many as they are
    parts = []
    for cpus in ("0-1", "0-7"):
        made = job(0.09, 0.5)
        for counter in made.counters:
            if counter.get("comm") == "python":
                counter["value"] = 0.09 * made.steps  # behind ranks as often as behind strangers
        fleet = gather(build(made))
        fleet = replace(fleet, ranks=replace(fleet.ranks, cpus=(cpus,) * 8))
        parts.append(taken_s(fleet).sum() / fleet.steps.sched_s.sum())
    # THEN all that two CPUs would keep them waiting is theirs: 6 / (7 - 1/2) of the half
    assert parts == pytest.approx([0.5 + 0.5 * (1 - 6 / 6.5), 0.5 + 0.5 * 0.5])


@pytest.mark.parametrize("seed", range(2))
def test_programs_that_fill_the_host_with_what_the_job_leaves_and_give_way_to_it_cost_nothing(seed: int) -> None:
    # GIVEN ranks that stand in the queue behind ranks of the job, hardly ever behind the programs that keep the host busy
    made = job(0.05, 0.9, seed=seed)
    for counter in made.counters:
        if counter.get("name") == "cpu.taken_s":
            counter["value"] *= 45 if counter["comm"] == "python" else 0.05
    # WHEN / THEN
    assert diagnose(build(made)).suspects == ()


def test_what_grew_on_all_ranks_beside_strangers_that_were_there_before_is_told_as_well() -> None:
    slower, before = job(0.05, 0.5), job(0.05, 0.5, seed=9)
    slower.extra = {rank: [*extra, (BUSY, 0.06)] for rank, extra in slower.extra.items()}
    verdict = diagnose(build(slower), build(replace(before, start=1_759_990_000.0)))
    assert {(suspect.scope, suspect.cause) for suspect in verdict.suspects} == {
        ("host", "contended"),
        ("all", "slow-everywhere"),
    }
    lost = {suspect.scope: suspect.lost_seconds_per_step for suspect in verdict.suspects}
    assert lost["all"] == pytest.approx(0.06, rel=0.3) and lost["host"] == pytest.approx(0.05, rel=0.3)


def test_strangers_that_came_since_the_baseline_are_the_whole_answer() -> None:
    verdict = diagnose(build(job(0.05, 0.5)), build(Job(ranks=8, seed=9, steps=60, start=1_759_990_000.0)))
    assert [(suspect.scope, suspect.cause) for suspect in verdict.suspects] == [("host", "contended")]


def test_a_slow_rank_and_strangers_of_its_host_are_both_named_the_rank_first() -> None:
    made = job(0.05, 0.5)
    made.extra[3] = [*made.extra[3], (BUSY, 0.06)]
    verdict = diagnose(build(made))
    assert [(suspect.scope, suspect.component) for suspect in verdict.suspects] == [("rank", "python"), ("host", "cpu")]
    assert verdict.suspects[0].ranks == (3,)
    lost = sum(suspect.lost_seconds_per_step for suspect in verdict.suspects)
    assert lost == pytest.approx(0.11, rel=0.2)
    assert summary_of(verdict).endswith("; and 1 more")


def test_a_first_suspect_that_costs_less_than_the_second_is_told_so() -> None:
    made = job(0.12, 0.5)
    made.extra[3] = [*made.extra[3], (BUSY, 0.06)]
    verdict = diagnose(build(made))
    assert [suspect.component for suspect in verdict.suspects] == ["python", "cpu"]
    assert summary_of(verdict).endswith("; and 1 more, which costs more")


def crowded(seed: int = 0) -> Job:
    """Three ranks on two CPUs. A stranger holds one of them: rank 2 shares it, the others stand behind each other on what is left."""
    made = Job(ranks=3, seed=seed, steps=60, spread=0.0)
    stranger, each_other = (
        {"comm": "backup-agent", "pid": 990},
        [{"comm": "python", "pid": 4001 - rank} for rank in (0, 1)],
    )
    for rank, (queued_s, taker) in enumerate([(0.06, each_other[0]), (0.06, each_other[1]), (0.14, stranger)]):
        made.extra[rank] = [(QUEUE, queued_s)]
        made.counters.append({"rank": rank, "name": "cpu.taken_s", "value": queued_s * made.steps, **taker})
        made.counters.append({"rank": rank, "name": "cpu.process_run_s", "value": 5.0})
    made.counters.append({"scope": "host", "name": "cpu.busy_s", "value": 30.0, "limit": 40.0})
    return made


@pytest.mark.parametrize("seed", range(3))
def test_what_ranks_stand_longer_behind_each_other_because_of_strangers_is_a_part_of_their_price(seed: int) -> None:
    # GIVEN a rank that a stranger keeps from its CPU, and whose peers were driven together on the other
    first = diagnose(build(crowded(seed))).suspects[0]
    assert (first.component, first.cause, first.ranks) == ("cpu", "contended", (2,))
    # THEN without the stranger all three stand behind each other alike: a third of twice (0.06 + what all have of a queue) s
    assert first.lost_seconds_per_step == pytest.approx(0.14 - 2 / 3 * 0.06, rel=0.15)


def test_strangers_are_named_for_what_they_make_ranks_stand_behind_each_other_too() -> None:
    # GIVEN three ranks on two CPUs: strangers share one with rank 2, who waits, and drive the others together on what is left
    made = Job(ranks=3, steps=60, spread=0.0)
    for rank, (theirs_s, behind_s) in enumerate([(0.004, 0.15), (0.004, 0.15), (0.06, 0.0)]):
        made.extra[rank] = [(QUEUE, theirs_s + behind_s)]
        made.counters += [
            {"rank": rank, "name": "cpu.taken_s", "comm": "backup-agent", "pid": 990, "value": theirs_s * made.steps},
            {"rank": rank, "name": "cpu.taken_s", "comm": "python", "pid": 4001 - rank, "value": behind_s * made.steps},
            {"rank": rank, "name": "cpu.process_run_s", "value": 5.0},
        ]
    made.counters.append({"scope": "host", "name": "cpu.busy_s", "value": 30.0, "limit": 40.0})
    # WHEN it is judged THEN the strangers are named: without them all three would stand behind each other alike
    suspect = diagnose(build(made)).suspects[0]
    assert (suspect.component, suspect.cause, suspect.scope, suspect.instance) == (
        "cpu",
        "contended",
        "host",
        "backup-agent",
    )
    assert suspect.lost_seconds_per_step == pytest.approx(0.05, abs=0.01)


def test_ranks_that_may_run_on_the_same_cpus_share_one_queue() -> None:
    # GIVEN ranks 0 and 2 on CPU 0, rank 1 on CPU 1, and rank 3 on both: all in one queue, and without rank 3 in two
    made = crowded()
    made.ranks_columns = {0: {"cpus": "0"}, 1: {"cpus": "1"}, 2: {"cpus": "0"}}
    fleet = gather(build(made))
    assert pools(fleet)[0] == pools(fleet)[2] != pools(fleet)[1]
    behind, even = even_queue_s(fleet)
    assert even[1] == pytest.approx(behind[1])
    assert even[0] == pytest.approx((behind[0] + behind[2]) / 2) and even[2] == pytest.approx(even[0])
    made.ranks_columns[1] = {"cpus": "0-1"}
    assert len(set(pools(gather(build(made))).tolist())) == 1
    made.ranks_columns[1] = {"cpus": "forged"}
    assert len(set(pools(gather(build(made))).tolist())) == 2


def by_sets(lists: list[set[int]]) -> list[frozenset[int]]:
    """Of each list those that are in one queue with it."""
    found: list[set[int]] = []
    for at, cpus in enumerate(lists):
        here = [pool for pool in found if any(lists[other] & cpus for other in pool)]
        found = [pool for pool in found if pool not in here] + [{at}.union(*here)]
    return [next(frozenset(pool) for pool in found if at in pool) for at in range(len(lists))]


@given(st.lists(st.sets(st.integers(0, 15), max_size=4), min_size=1, max_size=8))
def test_pools_are_those_that_sets_of_cpus_give(lists: list[set[int]]) -> None:
    # GIVEN lists that are different texts
    texts = [",".join(map(str, sorted(cpus))) + "," * at for at, cpus in enumerate(lists)]
    pool = _pools(("host",) * len(texts), tuple(texts)).tolist()
    mine = [frozenset(at for at in range(len(texts)) if pool[at] == each) for each in pool]
    assert mine == by_sets(lists)


def test_ranks_on_cpus_of_their_own_are_sorted_into_queues_soon() -> None:
    # GIVEN a host of which each of very many ranks may use one CPU that no other may, or nearly all of them
    count = 4000
    began = time.process_time()
    apart = _pools(("host",) * count, tuple(map(str, range(count))))
    beside = _pools(("host",) * count, tuple(f"{rank}-65535" for rank in range(count)))
    # THEN it takes no longer for that
    assert len(set(apart.tolist())) == count and len(set(beside.tolist())) == 1
    assert time.process_time() - began < 1


@pytest.mark.parametrize("seed", range(3))
def test_who_stands_longer_behind_ranks_of_the_job_on_cpus_that_all_share_is_not_accused(seed: int) -> None:
    # GIVEN three stages of a pipeline on two CPUs, of which the middle one is woken when both its neighbours are
    made = Job(ranks=3, seed=seed, steps=60, spread=0.0)
    for rank, queued_s in enumerate((0.03, 0.06, 0.03)):
        made.extra[rank] = [(QUEUE, queued_s)]
        for other in {0, 1, 2} - {rank}:
            taken = {"name": "cpu.taken_s", "comm": "python", "pid": 4000 + other, "value": queued_s / 2 * made.steps}
            made.counters.append({"rank": rank, **taken})
    verdict = diagnose(build(made))
    assert (verdict.status, verdict.suspects) == ("healthy", ()), verdict.notes


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_cpus_are_within_others_as_their_sets_are(some: set[int], others: set[int]) -> None:
    found = [cpu_ranges(",".join(map(str, sorted(cpus)))) for cpus in (some, others)]
    assert _within(*found) == (some <= others)
