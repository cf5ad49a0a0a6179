"""Synthetic fleets with a known fault: the verdict must name it, strong or weak, under any noise seed."""

from __future__ import annotations

import builders
import numpy as np
import pytest
from builders import Job, build, codes, first, said

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.stacks import StackFrame

STEP_S = 0.25
DOSES = {"strong": 0.6, "weak": 0.15}


FAULTS = {
    "busy function": (builders.slow_python, "python", "slow-function"),
    "sleeping function": (
        lambda rank, s, **more: builders.slow_python(rank, s, builders.ASLEEP, **more),
        "python",
        "blocking-call",
    ),
    "hog": (builders.hogged, "cpu", "contended"),
    "quota": (builders.throttled, "cpu", "quota"),
    "slow read": (builders.slow_read, "storage", "slow-read"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dose", DOSES)
@pytest.mark.parametrize(("ranks", "seed"), [(2, 11), (4, 13), (8, 17), (8, 19)])
def test_one_slow_rank_is_named_with_component_and_cause(fault: str, dose: str, ranks: int, seed: int) -> None:
    # GIVEN one rank that loses a share of the step to a fault, in windows of one or two hosts
    make, component, cause = FAULTS[fault]
    culprit = seed % ranks
    lost = DOSES[dose] * STEP_S
    job = make(culprit, lost, ranks=ranks, hosts=1 + (seed % 2), seed=seed, noise=0.05)

    # WHEN it is diagnosed
    verdict = diagnose(build(job))

    # THEN the rank, the component and the cause come first, and the lost time is about right
    suspect = first(verdict)
    assert (verdict.status, verdict.exit_code) == ("fault", 1)
    assert (suspect.component, suspect.cause, suspect.ranks) == (component, cause, (culprit,))
    assert 0.5 * lost < suspect.lost_seconds_per_step < 1.5 * lost
    assert suspect.evidence and suspect.action and 0.5 < suspect.confidence < 1


@pytest.mark.parametrize("work", [builders.BUSY, builders.ASLEEP])
def test_the_python_function_is_named_where_it_was_injected(work: builders.Work) -> None:
    suspect = first(diagnose(build(builders.slow_python(5, 0.08, work))))
    assert suspect.function is not None
    assert (suspect.function.name, suspect.function.file, suspect.function.line) == (
        work.name,
        builders.TRAIN,
        work.line,
    )


def test_a_function_of_the_library_is_blamed_on_the_user_code_that_calls_it() -> None:
    # GIVEN a library function that only the culprit calls, from augment
    leaf = builders.Work("python", "sort", 0, 9, "/opt/venv/lib/python3.11/site-packages/numpy/sort.py",
                         frames=(StackFrame("augment", builders.TRAIN, 56),))  # fmt: skip
    # WHEN
    suspect = first(diagnose(build(Job(extra={1: [(leaf, 0.08)]}))))
    # THEN augment is named and the leaf is evidence
    assert suspect.function is not None and suspect.function.name == "augment"
    assert any("sort" in str(evidence.value) for evidence in suspect.evidence)


@pytest.mark.parametrize("seed", [11, 13, 17])
def test_what_no_peer_ever_calls_is_odd_however_much_else_its_caller_does_and_the_rank_loses(seed: int) -> None:
    """The more a rank computes the longer it stands in the queue, and its function has ordinary work besides."""
    library = builders.Work(
        "python",
        "sub",
        0.0,
        178,
        "/usr/lib/python3.11/re/__init__.py",
        frames=(StackFrame("augment", builders.TRAIN, 56),),
    )
    queued = builders.Work(
        "sched", "ready", 0.0, 178, library.file, detail="queue", caller="sub", frames=library.frames
    )
    job = Job(ranks=3, seed=seed, extra={1: [(library, 0.13), (queued, 0.06)]})
    suspect = first(diagnose(build(job)))
    assert (suspect.component, suspect.cause, suspect.ranks) == ("python", "slow-function", (1,))
    assert suspect.function is not None and suspect.function.name == "augment"


def test_a_function_that_spends_its_time_in_two_helpers_is_named() -> None:
    helpers = [builders.Work("python", name, 0, line, frames=(StackFrame("augment", builders.TRAIN, 56),)) for name, line in
               (("flip", 200), ("crop", 210))]  # fmt: skip
    suspect = first(diagnose(build(Job(extra={1: [(helper, 0.04) for helper in helpers]}))))
    assert suspect.function is not None and suspect.function.name == "augment"


def test_the_training_loop_is_not_blamed_for_more_work_everywhere() -> None:
    verdict = diagnose(build(Job(scale={2: 1.6})))
    assert (verdict.status, verdict.exit_code) == ("imbalance", 1)
    assert (first(verdict).component, first(verdict).ranks, first(verdict).function) == ("workload", (2,), None)


def test_the_hog_is_named_and_counted_by_name() -> None:
    suspect = first(diagnose(build(builders.hogged(3, 0.1))))
    assert suspect.instance == "compress-logs (2 processes)"


def test_a_rank_of_the_same_job_is_no_hog() -> None:
    # GIVEN two ranks pinned to one CPU
    job = Job(extra={3: [(builders.QUEUE, 0.1)]}, ranks_columns={2: {"cpus": "1"}, 3: {"cpus": "1"}})
    job.counters.append({"rank": 3, "name": "cpu.taken_s", "comm": "python", "pid": 4002, "value": 0.1 * job.steps})
    # THEN their affinity is charged
    suspect = first(diagnose(build(job)))
    assert (suspect.component, suspect.cause) == ("cpu", "affinity")


def test_ranks_that_may_run_wherever_any_rank_may_are_not_crowded() -> None:
    # GIVEN a rank that is bound to one CPU, and two that may use both and stand behind it
    job = Job(ranks=3, extra={1: [(builders.QUEUE, 0.06)]}, ranks_columns={0: {"cpus": "1"}})
    job.counters.append({"rank": 1, "name": "cpu.taken_s", "comm": "python", "pid": 4000, "value": 0.06 * job.steps})
    suspect = first(diagnose(build(job)))
    assert (suspect.component, suspect.cause) == ("cpu", "contended")


def test_who_stands_behind_ranks_of_its_own_job_on_cpus_of_all_is_accused_with_less_certainty() -> None:
    said = []
    for taker in ({"comm": "python", "pid": 4002}, {"comm": "backup", "pid": 9}):
        job = Job(ranks=3, extra={1: [(builders.QUEUE, 0.06)]})
        job.counters.append({"rank": 1, "name": "cpu.taken_s", **taker, "value": 0.06 * job.steps})
        said.append(first(diagnose(build(job))))
    own, foreign = said
    assert (own.component, own.cause, own.ranks) == (foreign.component, foreign.cause, foreign.ranks)
    assert "from each other" in own.action and "backup" in foreign.action
    assert own.confidence < 0.95 < foreign.confidence


def test_what_a_suspect_takes_by_what_it_does_too_long_is_not_charged_to_who_stands_behind_it() -> None:
    # GIVEN a slow function on rank 0, behind which rank 1 stands on the CPU that they share
    crowd = {rank: {"cpus": "1"} for rank in (0, 1)}
    job = Job(ranks=6, extra={0: [(builders.STEP[2], 0.9)], 1: [(builders.QUEUE, 0.05)]}, ranks_columns=crowd)
    job.counters.append({"rank": 1, "name": "cpu.taken_s", "comm": "python", "pid": 4000, "value": 0.05 * job.steps})
    # THEN only rank 0 is accused: behind its ordinary work rank 1 would stand for 9 ms of 180
    verdict = diagnose(build(job))
    assert [(suspect.cause, suspect.ranks) for suspect in verdict.suspects] == [("slow-function", (0,))]


def test_who_stands_behind_the_ordinary_work_of_a_suspect_is_told_after_it() -> None:
    # GIVEN a slow function on rank 0, behind which rank 1 stands for 60 ms; rank 0 were there for 180 of its 480 ms without it
    crowd = {rank: {"cpus": "1"} for rank in (0, 1)}
    job = Job(ranks=6, extra={0: [(builders.STEP[2], 0.3)], 1: [(builders.QUEUE, 0.06)]}, ranks_columns=crowd)
    job.counters.append({"rank": 1, "name": "cpu.taken_s", "comm": "python", "pid": 4000, "value": 0.06 * job.steps})
    # THEN what is left of the queue is told as well: an eighth of the step without the slow function
    slow, crowded = diagnose(build(job)).suspects
    assert [(suspect.cause, suspect.ranks) for suspect in (slow, crowded)] == [
        ("slow-function", (0,)),
        ("affinity", (1,)),
    ]
    assert slow.lost_seconds_per_step > 5 * crowded.lost_seconds_per_step


def test_cpus_that_most_ranks_of_a_host_share_are_how_the_job_was_set_up() -> None:
    # GIVEN a slow function on one rank; three ranks share a CPU, one of them stands behind another for longer, and the fourth is alone
    crowd = {rank: {"cpus": "1" if rank < 3 else "2"} for rank in range(4)}
    job = Job(ranks=4, extra={0: [(builders.STEP[2], 0.2)], 1: [(builders.QUEUE, 0.03)], 2: [(builders.QUEUE, 0.05)]},
              ranks_columns=crowd)  # fmt: skip
    for rank, taker, seconds in ((1, 4002, 0.03), (2, 4001, 0.05)):
        job.counters.append(
            {"rank": rank, "name": "cpu.taken_s", "comm": "python", "pid": taker, "value": seconds * job.steps}
        )
    # THEN nobody's affinity is charged
    verdict = diagnose(build(job))
    assert (first(verdict).cause, first(verdict).ranks) == ("slow-function", (0,))
    assert "affinity" not in {suspect.cause for suspect in verdict.suspects}


def test_two_slow_functions_on_two_of_four_ranks_are_told_though_the_ranks_differ_by_as_much() -> None:
    slow = {1: [(builders.BUSY, 0.05)], 2: [(builders.Work("python", "letterbox", 0.0, 99), 0.08)]}
    verdict = diagnose(build(Job(ranks=4, extra=slow)))
    assert {(suspect.cause, suspect.ranks) for suspect in verdict.suspects} == {
        ("slow-function", (1,)),
        ("slow-function", (2,)),
    }


def test_who_costs_little_of_a_step_that_another_one_makes_long_is_told_by_the_step_without_it() -> None:
    # GIVEN steps of 0.2 s, which one rank makes 1 s long, and another one that takes 50 ms longer: 5 % of the step, a quarter without that
    slow = {1: [(builders.STEP[2], 0.8)], 4: [(builders.BUSY, 0.05)]}
    verdict = diagnose(build(Job(ranks=6, extra=slow)))
    assert {suspect.ranks for suspect in verdict.suspects} == {(1,), (4,)}


@pytest.mark.parametrize(("stolen", "cause"), [(0.0, "quota"), (6.0, "steal")])
def test_a_rank_that_is_ready_while_nobody_runs_has_no_rival(stolen: float, cause: str) -> None:
    # GIVEN takers are counted, and together they took next to nothing
    job = Job(extra={3: [(builders.QUEUE, 0.1)]})
    job.counters += [
        {"rank": 3, "name": "cpu.taken_s", "comm": "kworker", "pid": 9, "value": 0.1},
        {"scope": "host", "name": "cpu.steal_s", "value": stolen},
    ]
    suspect = first(diagnose(build(job)))
    assert (suspect.component, suspect.cause, suspect.ranks) == ("cpu", cause, (3,))


def test_without_a_counter_the_cpu_is_charged_with_less_confidence() -> None:
    with_counter = first(diagnose(build(builders.hogged(3, 0.1))))
    without = first(diagnose(build(Job(extra={3: [(builders.QUEUE, 0.1)]}))))
    assert (without.component, without.cause) == ("cpu", "contended")
    assert without.confidence < with_counter.confidence


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("factor", "shaper"), [(0.1, True), (0.1, False), (0.5, True)])
def test_a_slow_host_link_is_named_and_no_rank_is_accused(seed: int, factor: float, shaper: bool) -> None:
    node = seed % 4
    verdict = diagnose(build(builders.slow_link(node, factor, shaper, seed=seed)))
    suspect = first(verdict)
    assert (suspect.component, suspect.cause) == ("network", "slow-link")
    assert suspect.ranks == (2 * node, 2 * node + 1)
    assert suspect.host == f"lab-host-{node}" and f"198.18.0.{10 + node}" in suspect.instance
    assert len(verdict.suspects) == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_shaper_is_named_on_hosts_where_everybody_stands_in_the_queue(seed: int) -> None:
    job = builders.slow_link(seed % 4, 0.3, seed=seed, noise=0.01)
    job.counters += [
        {"rank": rank, "name": "cpu.process_ready_s", "value": 0.2 * job.steps} for rank in range(job.ranks)
    ]
    (window,) = build(job)
    flows = window.flows.to_pylist()
    for row in flows:
        if row["sent_bytes"] > 1e6 and row["local"].split(":")[0] != row["peer"].split(":")[0]:
            narrow = f"198.18.0.{10 + seed % 4}" in row["local"] + row["peer"]
            row["busy_s"] = row["sent_bytes"] / (0.99 * job.link_rate * (0.3 if narrow else 1.0))
    suspect = first(diagnose([builders.columns(window, "flows", flows)]))
    assert (suspect.component, suspect.ranks) == ("network", (2 * (seed % 4), 2 * (seed % 4) + 1))


@pytest.mark.parametrize("seed", range(6))
def test_a_fault_that_begins_in_the_window_is_dated(seed: int) -> None:
    job = builders.slow_python(seed, 0.12, onset=0.6, seed=seed)
    verdict = diagnose(build(job))
    suspect = first(verdict)
    assert suspect.ranks == (seed,) and suspect.function is not None and suspect.function.name == "augment"
    assert suspect.since is not None
    begun = 0.25 * 0.6 * job.steps
    assert abs(suspect.since - job.start - begun) < 3


def test_two_culprits_share_the_lost_time_and_the_worse_comes_first() -> None:
    verdict = diagnose(build(Job(extra={2: [(builders.BUSY, 0.09)], 6: [(builders.READ, 0.05)]})))
    assert [(s.component, s.ranks) for s in verdict.suspects] == [("python", (2,)), ("storage", (6,))]
    assert sum(s.lost_seconds_per_step for s in verdict.suspects) < 0.1


@pytest.mark.parametrize("seed", range(5))
def test_two_culprits_that_hide_each_other_are_both_named(seed: int) -> None:
    job = Job(
        ranks=4,
        extra={1: [(builders.BUSY, 0.027)], 2: [(builders.THROTTLED, 0.04)]},
        noise=0.02,
        spread=0.001,
        stalls=0.0,
        seed=seed,
    )
    job.counters += [
        {"scope": "cgroup", "rank": rank, "instance": f"/job/rank{rank}", "name": "cpu.throttled_s", "limit": 0.4,
         "value": 0.04 * job.steps if rank == 2 else 0.0}
        for rank in range(4)
    ]  # fmt: skip
    (window,) = build(job)
    # A quota strikes by jerks: two of three steps suffer little, the third all the more. Collectives end together.
    jerks = np.zeros((4, job.steps))
    jerks[2] = np.where(np.arange(job.steps) % 3 == seed % 3, 0.09, -0.045)
    own = builders.own_of(window) + jerks
    verdict = diagnose([builders.retimed(window, own, own.max(axis=0) + job.transfer_s, sched_s=jerks)])
    assert {(s.component, s.ranks) for s in verdict.suspects[:2]} == {("python", (1,)), ("cpu", (2,))}, verdict


def test_all_ranks_of_a_host_become_one_suspect() -> None:
    job = Job(hosts=2, extra={rank: [(builders.QUEUE, 0.09)] for rank in range(4, 8)})
    verdict = diagnose(build(job))
    assert [(s.component, s.host, s.ranks) for s in verdict.suspects] == [("cpu", "node-1", (4, 5, 6, 7))]


def test_a_pause_that_is_over_is_a_fault() -> None:
    # GIVEN a rank that was stopped for 4 s in the middle of the window: one long step
    (window,) = build(Job(ranks_columns={3: {"stopped_s": 4.0}}))
    # THEN
    verdict = diagnose([builders.stalled(window, 3, [40], 4.0)])
    suspect = first(verdict)
    assert (suspect.component, suspect.cause, suspect.ranks) == ("process", "stopped", (3,))
    assert suspect.lost_seconds_per_step == pytest.approx(4.0 / 70, rel=0.01)


# ---- hangs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 5])
def test_a_stopped_rank_is_a_hang(rank: int) -> None:
    verdict = diagnose(build(builders.stopped(rank)))
    assert (verdict.status, verdict.exit_code) == ("hang", 2)
    assert (first(verdict).component, first(verdict).cause, first(verdict).ranks) == ("process", "stopped", (rank,))


def test_a_job_that_hung_before_the_window_began_has_no_steps_and_is_still_judged() -> None:
    job = builders.stopped(4)
    for columns in job.ranks_columns.values():
        columns["last_progress_s"] = None
    window = build(job)[0]
    for table in ("steps", "patterns"):
        window = builders.columns(window, table, [])
    verdict = diagnose([window])
    assert verdict.status == "hang" and first(verdict).ranks == (4,)


def test_a_rank_that_ended_while_the_others_wait_is_named() -> None:
    job = builders.stopped(2)
    job.ranks_columns[2] = {"state": "exited"}
    verdict = diagnose(build(job))
    assert (verdict.status, first(verdict).cause, first(verdict).ranks) == ("hang", "exited", (2,))


def test_a_rank_that_is_in_no_collective_is_what_the_others_wait_for() -> None:
    job = builders.stopped(2)
    job.ranks_columns[2] = {"last_progress_s": 8.0}
    verdict = diagnose(build(job))
    assert (verdict.status, first(verdict).component, first(verdict).ranks) == ("hang", "process", (2,))
    assert first(verdict).function is not None


def everybody_waits(behind: dict[int, float]) -> Job:
    counters = [
        {"scope": "rank", "instance": "AllReduce", "rank": rank, "name": "ras.behind", "kind": "gauge", "value": value,
         "unit": "operations", "limit": 1009.0}
        for rank, value in behind.items()
    ]  # fmt: skip
    waits = {"last_progress_s": 8.0, "in_collective_s": 7.9}
    return Job(ranks_columns={rank: dict(waits) for rank in range(8)}, counters=counters)


def test_where_all_wait_the_rank_that_nccl_says_is_behind_is_named() -> None:
    verdict = diagnose(build(everybody_waits({5: 3.0})))
    suspect = first(verdict)
    assert (verdict.status, suspect.cause, suspect.ranks) == ("hang", "missing-collective", (5,))
    assert any(evidence.source == "nccl ras" and evidence.value == 3.0 for evidence in suspect.evidence)


@pytest.mark.parametrize("behind", [{}, dict.fromkeys(range(7), 2.0)])
def test_where_all_wait_and_nccl_says_nothing_or_names_nearly_all_nobody_is_accused(behind: dict[int, float]) -> None:
    verdict = diagnose(build(everybody_waits(behind)))
    assert verdict.status == "hang" and not verdict.suspects


def test_a_job_that_ends_in_the_window_does_not_hang() -> None:
    job = Job(ranks_columns={rank: {"state": "exited", "last_progress_s": 9.0} for rank in range(8)})
    verdict = diagnose(build(job))
    assert verdict.status == "healthy"
    assert NoteCode.RANKS_ENDED in codes(verdict)


def test_a_device_that_waits_longer_with_all_of_the_model_has_more_to_do() -> None:
    # GIVEN a rank whose device, forward and backward all take twice as long, and nothing else
    model = [work for work in builders.STEP if work.name in ("device_wait", "Linear.forward", "_engine_run_backward")]
    longer = Job(extra={2: [(work, work.seconds) for work in model]})
    verdict = diagnose(build(longer))
    assert (verdict.status, first(verdict).component, first(verdict).ranks) == ("imbalance", "workload", (2,))
    # AND one whose device alone does so is another matter
    alone = first(diagnose(build(Job(extra={2: [(model[0], 0.12)]}))))
    assert (alone.component, alone.ranks) == ("python", (2,))


@pytest.mark.parametrize(("more", "status"), [(1.31, "imbalance"), (1.03, "fault")])
def test_a_device_that_waits_longer_while_the_thread_computes_more_has_more_to_do(more: float, status: str) -> None:
    device = next(work for work in builders.STEP if work.name == "device_wait")
    job = Job(extra={2: [(device, 0.07)]})
    job.counters = [
        {
            "rank": rank,
            "name": "cpu.run_s",
            "value": 0.097 * job.steps * (more if rank == 2 else 1 + 0.01 * rank),
        }
        for rank in range(job.ranks)
    ]
    verdict = diagnose(build(job))
    assert (verdict.status, first(verdict).ranks) == (status, (2,))


@pytest.mark.parametrize(
    ("mine", "peers_differ", "status"),
    [(1.4, 0.0, "imbalance"), (1.4, 0.2, "fault"), (1.03, 0.0, "fault"), (0.0, 0.0, "fault")],
)
def test_a_device_that_waits_longer_while_the_rank_reads_more_has_more_to_do(
    mine: float, peers_differ: float, status: str
) -> None:
    # Its training thread computes as much as those of its peers: without that nobody knew.
    device = next(work for work in builders.STEP if work.name == "device_wait")
    job = Job(extra={2: [(device, 0.05)]})
    job.counters = [{"rank": rank, "name": "cpu.run_s", "value": 0.097 * job.steps} for rank in range(job.ranks)]
    job.read_bytes = {
        rank: 524288 * (mine if rank == 2 else 1 + peers_differ * (rank % 2)) for rank in range(job.ranks)
    }
    verdict = diagnose(build(job))
    assert (verdict.status, first(verdict).ranks) == (status, (2,))


def test_what_a_rank_reads_tells_longer_input_with_two_peers_too() -> None:
    device = next(work for work in builders.STEP if work.name == "device_wait")
    job = Job(ranks=3, extra={2: [(device, 0.05)]}, read_bytes={0: 524288, 1: 524288, 2: 1.4 * 524288})
    verdict = diagnose(build(job))
    assert (verdict.status, first(verdict).component, first(verdict).ranks) == ("imbalance", "workload", (2,))
    # AND what grew in all functions alike, and nothing says why, is unknown
    alike = diagnose(build(Job(ranks=3, scale={2: 1.5})))
    assert (alike.status, alike.suspects) == ("unknown", ()) and alike.notes[0].code is NoteCode.FEW_PEERS


@pytest.mark.parametrize(("given", "told"), [(1_200_000, True), (9_000, False)])
def test_a_rank_that_is_slower_in_everything_and_is_given_far_more_pages_is_told_so(given: int, told: bool) -> None:
    counters = [
        {"name": "memory.minor_faults", "rank": rank, "value": float(given if rank == 1 else 5_000), "unit": "events"}
        for rank in range(3)
    ]
    verdict = diagnose(build(Job(ranks=3, scale={1: 1.35}, counters=counters, seed=5)))
    assert (verdict.status, verdict.suspects) == ("unknown", ())
    assert ("gave it 1200000 pages" in said(verdict, NoteCode.FEW_PEERS)) == told


@pytest.mark.parametrize(("taken_s", "status"), [(6.0, "healthy"), (0.2, "unknown")])
def test_a_rank_from_which_others_took_as_much_cpu_as_it_lost_is_on_a_busy_host(taken_s: float, status: str) -> None:
    # GIVEN a rank of three that takes a third longer for everything, and a process that took much or little of its CPU
    taken = {"name": "cpu.taken_s", "rank": 1, "comm": "backup", "pid": 77, "value": taken_s}
    job = Job(ranks=3, scale={1: 1.35}, counters=[taken], seed=5)

    # WHEN it is diagnosed
    verdict = diagnose(build(job))

    # THEN nobody is accused, and where the CPU explains it the job is healthy, with a note that names the taker
    assert (verdict.status, verdict.suspects) == (status, ())
    code = NoteCode.HOST_BUSY if status == "healthy" else NoteCode.FEW_PEERS
    assert code in codes(verdict)
    assert ("backup (77)" in said(verdict, NoteCode.HOST_BUSY)) == (status == "healthy")


@pytest.mark.parametrize("seed", range(3))
def test_the_cpu_time_of_a_thread_that_holds_the_gil_is_not_longer_input(seed: int) -> None:
    # GIVEN a function a little slower than the peers', and another thread of the process that computes under the GIL
    held = builders.Work(
        "sync", "gil", 0, holder=("Metrics.encode", "/job/metrics.py", 41, "uploader"), caller="augment"
    )
    job = Job(extra={2: [(held, 0.05), (builders.BUSY, 0.006)]}, seed=seed)
    cpu = {rank: 0.097 + (0.09 if rank == 2 else 0.001 * rank) for rank in range(job.ranks)}
    job.counters = [
        {"rank": rank, "name": "cpu.process_run_s", "value": each * job.steps} for rank, each in cpu.items()
    ]
    suspect = first(diagnose(build(job)))
    assert (suspect.component, suspect.cause, suspect.ranks) == ("python", "gil", (2,))


def staged(**more: object) -> list[builders.Window]:
    """Every rank has a role of its own: a pipeline without replicas."""
    columns = {rank: {"role": f"stage-{rank}"} for rank in range(4)}
    return build(Job(ranks=4, ranks_columns=columns, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["busy function", "slow read", "hog"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_without_peers_is_told_by_its_own_past(fault: str, rank: int) -> None:
    make, component, cause = FAULTS[fault]
    job = make(rank, 0.1, ranks=4, ranks_columns={each: {"role": f"stage-{each}"} for each in range(4)})
    before = staged(start=1_759_990_000.0, seed=97) + staged(start=1_759_991_000.0, seed=98)
    assert diagnose(build(job)).status in ("unknown", "imbalance")
    verdict = diagnose(build(job), before)
    assert [(s.component, s.cause, s.ranks) for s in verdict.suspects] == [(component, cause, (rank,))]
    assert verdict.suspects[0].lost_seconds_per_step == pytest.approx(0.1, rel=0.4)
    assert NoteCode.OWN_PAST in codes(verdict)


def test_ranks_without_peers_that_are_as_they_were_are_healthy() -> None:
    verdict = diagnose(staged(), staged(start=1_759_990_000.0, seed=97))
    assert not verdict.suspects


def test_a_blocking_call_is_named_where_it_sleeps() -> None:
    # GIVEN a rank that sleeps in record_signal, and whose real_batch, which calls that, computes a little more besides
    calling = (StackFrame("real_batch", builders.TRAIN, 30),)
    sleeping = builders.Work("python", "record_signal", 0, 18, detail="sleep", frames=calling)
    computing = builders.Work("python", "detrend", 0, 24, frames=calling)
    made = Job(ranks=2, extra={1: [(sleeping, 0.06), (computing, 0.05)], 0: [(computing, 0.001)]})
    # WHEN it is judged
    suspect = first(diagnose(build(made)))
    # THEN the function that is named is the one that sleeps
    assert (suspect.component, suspect.cause, suspect.ranks) == ("python", "blocking-call", (1,))
    assert suspect.function is not None and suspect.function.name == "record_signal"
