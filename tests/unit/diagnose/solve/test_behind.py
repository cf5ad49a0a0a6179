"""Who computes too much is in the way of its peers on the CPUs that they share, and who waits for something else leaves these to them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from builders import ASLEEP, BUSY, QUEUE, Job, Work, build

from rankscope.diagnose.infer.fleet.counters import Columns, Counters
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.labels import Labels
from rankscope.diagnose.infer.fleet.model import Fleet, Slots
from rankscope.diagnose.infer.model.behind import _usual_s, behind_each, without
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.probes.base.arrays import Floats

RANKS, STEPS, ODD = 4, 70, 2
USUAL_S = 7.0  # of CPU, of an innocent rank in the window
QUEUED_S = 0.1  # of each step, behind one of the others as long as behind another


def crowded(odd_runs_s: float, work: Work = BUSY, hosts: int = 1, seed: int = 0) -> Job:
    """Four ranks that stand in the queue behind each other, wherever they may run; one does 200 ms more and has so much CPU in all."""
    made = Job(ranks=RANKS, steps=STEPS, hosts=hosts, seed=seed)
    made.ranks_columns = {rank: {"cpus": "0-3"} for rank in range(RANKS)}
    made.extra = {rank: [(QUEUE, QUEUED_S)] for rank in range(RANKS)}
    made.extra[ODD].append((work, 0.2))
    for rank in range(RANKS):
        runs_s = odd_runs_s if rank == ODD else USUAL_S
        made.counters += [{"rank": rank, "name": name, "value": runs_s} for name in ("cpu.run_s", "cpu.process_run_s")]
        made.counters += [
            {"rank": rank, "name": "cpu.taken_s", "comm": "python", "pid": 4000 + other, "value": QUEUED_S * STEPS / 3}
            for other in range(RANKS)
            if other != rank
        ]
    return made


def behind(fleet: Fleet) -> Floats:
    """Mean seconds of each step for which each rank stands behind the odd one for its oddness; 0 of whom nothing is told."""
    own = fleet.steps.own_s
    lower = without(own, behind_each(fleet, own, np.zeros(RANKS, dtype=np.int64), np.array([ODD])))
    return np.asarray((own - lower).mean(axis=1), dtype=np.float64)


def of_queue(fleet: Fleet, more: float) -> Floats:
    """A third of each innocent rank's queue, and `more` of that."""
    third = fleet.steps.sched_s.mean(axis=1) / 3 * more
    third[ODD] = 0
    return np.asarray(third, dtype=np.float64)


def meanwhile(fleet: Fleet) -> float:
    """The part of what the odd rank does that it does while its peers work."""
    own = fleet.steps.own_s.mean(axis=1)
    return float(np.median(np.delete(own, ODD)) / own[ODD])


def test_what_it_runs_more_than_its_peers_while_they_work_they_stood_behind() -> None:
    fleet = gather(build(crowded(25.0)))
    assert np.allclose(behind(fleet), of_queue(fleet, 1 - USUAL_S / (25.0 * meanwhile(fleet))))
    assert behind(fleet)[0] > 0.4 * QUEUED_S / 3


def test_what_it_runs_when_they_have_ended_keeps_nobody_from_a_cpu() -> None:
    fleet = gather(build(crowded(USUAL_S)))
    runs_s = USUAL_S / meanwhile(fleet)  # more than they, by as much as its step is longer
    assert np.allclose(behind(gather(build(crowded(runs_s)))), 0, atol=1e-6)


def test_who_only_waited_will_want_the_cpu_that_it_left_to_them() -> None:
    fleet = gather(build(crowded(USUAL_S, ASLEEP)))
    assert np.allclose(behind(fleet), of_queue(fleet, 1 - 1 / meanwhile(fleet)))
    assert (np.delete(behind(fleet), ODD) < 0).all()


def test_who_polls_in_collectives_does_no_more_work_for_that() -> None:
    # GIVEN peers whose threads run all the time, most of it in collectives
    made = crowded(9.0)
    made.counters = [
        dict(each, value=20.0) if each["name"] in ("cpu.run_s", "cpu.process_run_s") and each["rank"] != ODD else each
        for each in made.counters
    ]
    fleet = gather(build(made))
    # THEN they run no longer than they work
    work = np.nansum(fleet.steps.own_s - fleet.steps.sched_s, axis=1)
    usual_s, odd_s = np.median(np.delete(work, ODD)), min(9.0, work[ODD])
    assert np.allclose(behind(fleet), of_queue(fleet, 1 - usual_s / (odd_s * meanwhile(fleet))))


def test_ranks_of_other_hosts_and_other_suspects_do_not_stand_behind_it() -> None:
    fleet = gather(build(crowded(25.0, hosts=2)))
    assert np.flatnonzero(behind(fleet)).tolist() == [3]
    own, roles = fleet.steps.own_s, np.zeros(RANKS, dtype=np.int64)
    assert behind_each(fleet, own, roles, np.array([ODD, 3])) == {}


def on_one_cpu(taken_s: Sequence[Sequence[float]], cpus: str = "0") -> Fleet:
    """The same on these CPUs; `taken_s`: per step, for which each stands behind each."""
    made = crowded(USUAL_S, ASLEEP)
    made.counters = [each for each in made.counters if each["name"] != "cpu.taken_s"] + [
        {"rank": rank, "name": "cpu.taken_s", "comm": "python", "pid": 4000 + other, "value": seconds * STEPS}
        for rank, by in enumerate(taken_s)
        for other, seconds in enumerate(by)
        if other != rank
    ]
    fleet = gather(build(made))
    return replace(fleet, ranks=replace(fleet.ranks, cpus=(cpus,) * RANKS))


def test_of_ranks_that_must_share_a_cpu_the_healed_one_takes_as_much_as_the_others_do() -> None:
    # GIVEN one CPU, and an odd rank behind which the others stand for 10 ms of their 100, 40 and 50 behind each other
    fleet = on_one_cpu(
        [[0, 0.04, 0.01, 0.05], [0.05, 0, 0.01, 0.04], [0.02, 0.02, 0, 0.02], [0.05, 0.04, 0.01, 0]], "0"
    )
    # THEN healed it will take 45
    more = (0.01 - 0.045) / 0.1
    assert np.allclose(behind(fleet), np.where(np.arange(RANKS) == ODD, 0, more * fleet.steps.sched_s.mean(axis=1)))
    # and what it takes more than they is given back
    fleet = on_one_cpu([[0, 0.02, 0.06, 0.02], [0.02, 0, 0.06, 0.02], [0.02, 0.02, 0, 0.02], [0.02, 0.02, 0.06, 0]])
    assert np.allclose(np.delete(behind(fleet), ODD), 0.4 * np.delete(fleet.steps.sched_s.mean(axis=1), ODD))


@pytest.mark.parametrize("cpus", ["0-3", ""])
def test_where_ranks_need_not_share_a_cpu_the_others_do_not_tell_what_a_healed_one_takes(cpus: str) -> None:
    even = [[QUEUED_S / 3] * RANKS] * RANKS
    uneven = [[0, 0.04, 0.01, 0.05], [0.05, 0, 0.01, 0.04], [0.02, 0.02, 0, 0.02], [0.05, 0.04, 0.01, 0]]
    alike, other = behind(on_one_cpu(even, cpus)), behind(on_one_cpu(uneven, cpus))
    assert np.allclose(other, alike * 0.01 / (QUEUED_S / 3))
    assert not np.allclose(other, behind(on_one_cpu(uneven)))


def test_where_nobody_counts_nobody_stands_behind_it() -> None:
    made = crowded(25.0)
    made.counters = [each for each in made.counters if each["name"] != "cpu.taken_s"]
    assert not behind(gather(build(made))).any()


@pytest.mark.parametrize("part", [0.0, 0.25, 1.0])
def test_the_queue_in_collectives_is_left_out(part: float) -> None:
    # GIVEN collectives in which a part of the queue is, by their stacks and by how long ranks stay there
    fleet = gather(build(crowded(25.0)))
    steps, table = fleet.steps, fleet.patterns
    ready, collective = (table.kind.codes == table.kind.code(kind) for kind in ("sched", "collective"))
    codes = np.where(ready, table.stack.codes[collective][0], table.stack.codes)
    stay = (steps.wait_s + part * steps.sched_s)[:, :, None]
    known = replace(
        fleet,
        slots=Slots(stay, ("allreduce",), whole=False),
        patterns=replace(table, stack=replace(table.stack, codes=codes)),
    )
    # THEN what is told is the rest
    assert np.allclose(behind(known), (1 - part) * behind(fleet), atol=2e-3)
    # and all of it, where the stacks say that nobody stood in the queue there
    assert np.allclose(behind(replace(known, patterns=table)), behind(fleet))


def lost_s(verdict: Verdict) -> float:
    first = verdict.suspects[0]
    assert (first.component, first.ranks) == ("python", (ODD,))
    return sum(one.lost_seconds_per_step for one in verdict.suspects)


@pytest.mark.parametrize("seed", range(3))
def test_what_it_costs_is_with_the_queue_of_the_others(seed: int) -> None:
    plain, more, less = (
        lost_s(diagnose(build(crowded(runs_s, work, seed=seed))))
        for runs_s, work in ((11.0, BUSY), (40.0, BUSY), (5.0, ASLEEP))
    )
    assert plain == pytest.approx(0.2, rel=0.15)
    # A third of a queue of 100 ms, nearly all of it; and behind one that sleeps they will stand for longer.
    assert 0.015 < more - plain < 0.035
    assert less < plain - 0.005


def test_what_very_many_peers_took_is_added_up_by_process_without_a_table_of_all_by_all() -> None:
    # GIVEN a rank in whose place each of very many peers ran, and one of them twice
    fleet, count = gather(build(crowded(USUAL_S))), 2000
    ranks = fleet.ranks.taken(np.zeros(count, dtype=np.int64))
    ranks = replace(ranks, pid=np.arange(count), cpus=("0-3",) * count)
    one, text = np.zeros(count, dtype=np.int64), Labels(np.zeros(count, dtype=np.int64), ("cpu.taken_s",))
    value, pid = np.arange(count, dtype=np.float64), np.arange(count)
    value[0], pid[0] = 5000.0, 1999
    counters = Counters(Columns(*[text] * 3, one, *[text] * 3, *[value] * 4, text, pid))
    fleet = replace(fleet, ranks=ranks, counters=counters)
    others, everyone = np.array([0]), np.arange(count)
    tracemalloc.start()
    try:
        usual = _usual_s(fleet, everyone, others, everyone, one)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
    # THEN the median of them is known
    assert usual.tolist() == [1000.0]
