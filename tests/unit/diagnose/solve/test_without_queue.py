"""Where ranks stand in the queue for a CPU for most of their steps, who computes for too long is found by what is left without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import ASLEEP, BUSY, Job, build, columns, hogged, own_of, retimed, said

from rankscope.diagnose.infer.causes.hypothesis import Hypothesis
from rankscope.diagnose.infer.causes.rank.odd_ranks import compare
from rankscope.diagnose.infer.causes.rows import Clear, Row, of_ranks
from rankscope.diagnose.infer.causes.whole_job import propose
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.behind import beside_queues_s
from rankscope.diagnose.infer.model.busy_host import without_queue
from rankscope.diagnose.infer.solve.judge import judge
from rankscope.diagnose.infer.solve.prepare import prepare
from rankscope.diagnose.infer.solve.select import Found, select
from rankscope.diagnose.infer.solve.views import as_it_is, slow_without_queue, without_queueing
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window
from rankscope.probes.base.arrays import Ints

RANKS, STEPS = 3, 70
NOBODY: Ints = np.empty(0, dtype=np.int64)


def looked_at(fleet: Fleet) -> tuple[Found, Found]:
    """What is found in the window as it is, and without queues."""
    found: list[Found] = []
    for view_of in (as_it_is, without_queueing):
        view = view_of(fleet, None, found[0] if found else None)
        assert view is not None
        odd = compare(view.job, view.among)
        found.append(select(odd, propose(odd.job)))
    return found[0], found[1]


def queued(seed: int, extra_s: float, all_s: float = 0.2) -> Window:
    """Rank 1 computes for longer; all stand in the queue for about as long as they work, the others for as much longer as it computes."""
    rng = np.random.default_rng(seed)
    window = build(Job(ranks=RANKS, steps=STEPS, seed=seed, extra={1: [(BUSY, extra_s)]}))[0]
    queue = rng.exponential(all_s, (RANKS, STEPS)) + extra_s * np.array([[1.0], [0.0], [1.0]])
    own = own_of(window) + queue
    return retimed(window, own, own.max(axis=0) + 0.02, sched_s=queue)


@pytest.mark.parametrize("seed", range(3))
def test_who_computes_longer_is_found_though_its_peers_stand_in_the_queue_as_long(seed: int) -> None:
    fleet = gather([queued(seed, 0.06)])
    verdict = judge(fleet)
    first = verdict.suspects[0]
    assert (first.component, first.ranks) == ("python", (1,)) and first.function is not None
    assert first.function.name == "augment" and said(verdict, NoteCode.WITHOUT_QUEUE)
    # 60 ms, for as much longer as it stands in the queue itself, but for what the others stand there longer and nobody waits for: half.
    step_s = float(np.nanmean(fleet.steps.seconds))  # a cost is a mean, and so is what it is a share of
    scene, _ = prepare(fleet, np.nanmedian(fleet.steps.seconds, axis=0), ())
    assert scene.queue_s is not None
    own_s, queue_s = float(fleet.steps.own_s[1].mean()), float(scene.queue_s[1])
    spared_s = float(np.median(scene.queue_s[[0, 2]])) - queue_s
    assert first.lost_seconds_per_step == pytest.approx(0.06 * own_s / (own_s - queue_s) - spared_s / 2, rel=0.25)
    assert first.lost_percent == pytest.approx(100 * first.lost_seconds_per_step / step_s, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_who_has_a_cpu_for_itself_is_found_beside_others_that_stand_behind_each_other(seed: int) -> None:
    """The step is hardly shorter without the queues, as the rank that is late stands in none: they hide it all the same."""
    verdict = judge(gather([queued(seed, 0.06, 0.002)]))
    (first,) = verdict.suspects
    assert (first.component, first.ranks) == ("python", (1,)) and said(verdict, NoteCode.WITHOUT_QUEUE)
    assert first.function is not None and first.function.name == "augment"


@pytest.mark.parametrize(("queue_s", "lost_s"), [
    ((0.1, 0.1, 0.1), 0.06 * 2.0),  # nobody is spared it: its 60 ms take as much longer as all it does
    ((0.3, 0.1, 0.3), 0.12**2 / 0.4),  # the others are, by more than it is late: where that is before other collectives
    ((0.16, 0.1, 0.16), 0.12 - 0.03),  # by less: but for half of that
    ((0.02, 0.1, 0.02), 0.12),  # it stands in it for longer
])  # fmt: skip
def test_what_is_hidden_costs_as_much_as_the_queues_of_the_others_leave_of_it(
    queue_s: tuple[float, ...], lost_s: float
) -> None:
    fleet = gather([queued(0, 0.06)])
    scene, _ = prepare(fleet, np.nanmedian(fleet.steps.seconds, axis=0), ())
    known = replace(scene, own=np.full_like(scene.own, 0.2), queue_s=np.array(queue_s))
    assert beside_queues_s(known, np.array([1]), 0.06) == pytest.approx(lost_s)


@pytest.mark.parametrize("seed", range(3))
def test_who_also_stands_in_the_queue_for_longer_costs_that_too(seed: int) -> None:
    # GIVEN a rank that computes 60 ms longer, and stands in the queue 500 ms longer, too
    window = queued(seed, 0.06)
    rows = window.steps.to_pylist()
    for row in rows:
        more = ("own_s", "sched_s") if row["rank"] == 1 else ("wait_s",)
        row |= {name: row[name] + 0.5 for name in ("seconds", *more)}
    costs_s = []
    for made in (window, columns(window, "steps", rows)):
        fleet = gather([made])
        # WHEN it is looked at without the queues
        rows_without = slow_without_queue(*looked_at(fleet), NOBODY)
        assert [row.found.rows for row in rows_without] == [(1,)]
        costs_s.append(rows_without[0].priced.taken.step_s)
    # THEN it costs what a step were shorter if it stood there as its peers do, and not only its part of the work
    assert costs_s[0] < 0.2
    assert 0.35 < costs_s[1] < 0.06 + 0.5


@pytest.mark.parametrize("seed", range(3))
def test_queues_alone_accuse_nobody(seed: int) -> None:
    assert judge(gather([queued(seed, 1e-9)])).suspects == ()


def test_without_the_queue_a_step_is_as_long_as_work_and_waiting() -> None:
    fleet = gather([queued(0, 0.06)])
    calm = without_queue(fleet)
    queue = fleet.steps.sched_s
    assert np.allclose(calm.steps.own_s, fleet.steps.own_s - queue)
    gone = fleet.steps.seconds - calm.steps.seconds
    assert (gone >= 0).all() and np.allclose(gone, gone[0])
    assert np.allclose(calm.steps.own_s + calm.steps.wait_s, calm.steps.seconds)
    assert np.allclose(calm.steps.wait_s.min(axis=0), fleet.steps.wait_s.min(axis=0))
    assert not calm.patterns.per_step_s[calm.patterns.kind.codes == calm.patterns.kind.code("sched")].any()


@pytest.mark.parametrize("seed", range(3))
def test_who_is_accused_so_is_neither_acquitted_in_a_note_nor_accused_of_its_slowest_steps_again(seed: int) -> None:
    window = queued(seed, 0.06)
    rows = window.steps.to_pylist()
    for row in rows:
        if row["rank"] == 1 and row["step"] % 12 == 5:  # now and then it computes for longer still, and the others wait
            row |= {"own_s": row["own_s"] + 1.0, "seconds": row["seconds"] + 1.0}
        elif row["step"] % 12 == 5:
            row |= {"wait_s": row["wait_s"] + 1.0, "seconds": row["seconds"] + 1.0}
    verdict = judge(gather([columns(window, "steps", rows)]))
    assert [(one.component, one.ranks) for one in verdict.suspects] == [("python", (1,))]
    assert not [note.text for note in verdict.notes if "not accused" in note.text]


@pytest.mark.parametrize("seed", range(3))
def test_a_function_is_found_beside_a_queue_that_wanders_more_than_it_takes(seed: int) -> None:
    # GIVEN a rank that strangers keep from its CPU for 150 ms on average, now for none and now for twice that, and that sleeps for 60 ms
    made = hogged(1, 0.15, ranks=2, seed=seed)
    made.extra[1].append((ASLEEP, 0.06))
    (window,) = build(made)
    rows = window.steps.to_pylist()
    for row in rows:
        more_s = 0.14 * (-1) ** (row["step"] // 6)
        row["seconds"] += more_s
        if row["rank"] == 1:
            row["own_s"] += more_s
            row["sched_s"] += more_s
        else:
            row["wait_s"] += more_s
    # WHEN it is judged
    verdict = judge(gather([columns(window, "steps", rows)]))
    # THEN both are named
    assert {(one.component, one.cause) for one in verdict.suspects} == {
        ("cpu", "contended"),
        ("python", "blocking-call"),
    }


def test_what_stands_may_be_of_other_steps_than_those_in_which_others_were_looked_for() -> None:
    # GIVEN steps of which the later part is judged, and all of them are without the queues
    fleet = gather([queued(0, 0.06)])
    scene, _ = prepare(fleet, np.nanmedian(fleet.steps.seconds, axis=0), ())
    later = replace(scene, own=scene.own[:, 20:], wait=scene.wait[:, 20:])
    found, calm = looked_at(fleet)
    assert len(calm.odd.selection.rows) == 1
    slow = tuple(slow_without_queue(found, calm, NOBODY))
    # WHEN another cause stands in the later part, and who computes longer does not
    strangers = Hypothesis("cpu", "contended", (0, 1, 2), 0.1, 1.0, (), "", scope="host")
    taken = Row(strangers, of_ranks(strangers.rows, np.full((3, STEPS - 20), 0.1)), Clear(9.0, 50.0))
    suspects, notes = replace(calm.odd, job=replace(calm.job, slow=slow)).suspects([taken], later, fleet)
    # THEN it is told what a step would be shorter
    assert suspects == []
    assert [note.code for note in notes if note.code == NoteCode.NO_GAIN] == [NoteCode.NO_GAIN]


@pytest.mark.parametrize("seed", range(3))
def test_work_that_moves_from_rank_to_rank_is_seen_though_queues_move_more(seed: int) -> None:
    # GIVEN in each step another rank has 60 ms more to compute, and all stand in the queue for longer than that, now long, now short
    window = queued(seed, 1e-9)
    rows, more_s = window.steps.to_pylist(), 0.06
    for row in rows:
        if row["step"] % RANKS == row["rank"]:
            row["own_s"] += more_s
        else:
            row["wait_s"] += more_s
        row["seconds"] += more_s
    # WHEN it is judged
    verdict = judge(gather([columns(window, "steps", rows)]))
    # THEN the work is uneven, and nobody is to blame
    assert verdict.status == "imbalance"
    assert [(one.component, one.cause) for one in verdict.suspects] == [("workload", "data-imbalance")]
