"""Another thread of the rank's own process takes the CPU or the GIL from its training thread: that thread is named."""

from __future__ import annotations

import time
from typing import Any

import pytest
from builders import QUEUE, TRAIN, Job, Work, build, columns, said

from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.busy_host import taken_by_threads_s
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.stacks import StackFrame

RANK, RANKS = 2, 4
TAKEN_S = 0.06  # per step, from the training thread
DECODES = Work("python", "read_clip", 0, 33, frames=(StackFrame("Feeder._fill", TRAIN, 21),))
ENCODES = Work(
    "python", "JSONEncoder.iterencode", 0, 205, "/usr/lib/python3.11/json/encoder.py",
    frames=(StackFrame("Uploader.encode", TRAIN, 61),),
)  # fmt: skip
GIL = Work("sync", "gil", 0, 56, caller="augment", holder=("JSONEncoder.iterencode", ENCODES.file, 205, "uploader"))
LATE = Work(
    "sync", "futex", 0, 355, "/usr/lib/python3.11/threading.py", caller="Condition.wait",
    frames=(StackFrame("Feeder.__iter__", TRAIN, 40), StackFrame("Queue.get", "/usr/lib/python3.11/queue.py", 171)),
)  # fmt: skip


def counted(job: Job, *, beside_s: dict[int, float], others_s: float = 0.001, queue_s: float = TAKEN_S) -> None:
    """CPU time of the threads beside the training one, by rank, and who ran while the rank's threads stood in the queue."""
    for rank in range(job.ranks):
        ready_s = 0.005 + (2 * queue_s if rank == RANK else 0.0)
        taken_s = 0.003 + (others_s if rank == RANK else 0.0)
        job.counters += [
            {"rank": rank, "name": name, "value": seconds * job.steps}
            for name, seconds in (
                ("cpu.run_s", 0.11),
                ("cpu.process_run_s", 0.11 + beside_s.get(rank, 0.002)),
                ("cpu.process_ready_s", ready_s),
            )
        ]
        taker = {"comm": "backup", "pid": 77, "value": taken_s * job.steps}
        job.counters.append({"rank": rank, "name": "cpu.taken_s", **taker})


def judged(job: Job, threads: dict[int, tuple[Work, float]]) -> Verdict:
    """`threads`: what a Python thread beside the training one computes, by rank, seconds per step."""
    job.extra = {**job.extra}
    for rank, (work, _) in threads.items():
        job.extra[rank] = [*job.extra.get(rank, []), (work, 1e-9)]
    [window] = build(job)
    rows = []
    for row in window.patterns.to_pylist():
        work, seconds = threads.get(row["rank"], (None, 0.0))
        if work is not None and row["name"] == work.name:
            row |= {"thread": "other", "beta": 0.0, "per_step_s": seconds, "total_s": seconds * job.steps}
        rows.append(row)
    return diagnose([columns(window, "patterns", rows)])


def only(verdict: Verdict) -> Suspect:
    assert verdict.status == "fault"
    [suspect] = verdict.suspects
    assert suspect.ranks == (RANK,)
    return suspect


@pytest.mark.parametrize("seed", range(3))
def test_a_python_thread_behind_which_the_training_stands_is_named_by_its_function(seed: int) -> None:
    # GIVEN a thread that computes without the GIL for longer than the peers' do, and no other process that ran meanwhile
    job = Job(ranks=RANKS, seed=seed, extra={RANK: [(QUEUE, TAKEN_S)]})
    counted(job, beside_s={rank: 0.1 if rank == RANK else 0.01 for rank in range(RANKS)})
    found = only(judged(job, {rank: (DECODES, 0.1 if rank == RANK else 0.01) for rank in range(RANKS)}))
    # THEN its function is charged with the time in the queue, at its line
    assert (found.component, found.cause) == ("python", "slow-function")
    assert found.function is not None and (found.function.name, found.function.line) == ("read_clip", 33)
    assert found.lost_seconds_per_step == pytest.approx(TAKEN_S, rel=0.2)
    assert any("behind threads of its own process" in each.measure for each in found.evidence)


@pytest.mark.parametrize(("gil_s", "cause"), [(0.05, "gil"), (0.02, "slow-function")])
def test_what_a_thread_takes_by_the_gil_and_by_the_cpu_is_one_charge_under_the_users_name(
    gil_s: float, cause: str
) -> None:
    job = Job(ranks=RANKS, extra={RANK: [(QUEUE, 0.04), (GIL, gil_s)]})
    counted(job, beside_s={RANK: 0.1}, queue_s=0.04)
    found = only(judged(job, {RANK: (ENCODES, 0.1)}))
    assert (found.component, found.cause) == ("python", cause)
    assert found.function is not None and (found.function.name, found.function.line) == ("Uploader.encode", 61)
    assert found.lost_seconds_per_step == pytest.approx(0.04 + gil_s, rel=0.2)


@pytest.mark.parametrize("beside", [True, False], ids=["on the same CPUs", "on others"])
def test_what_a_thread_takes_from_ranks_beside_it_is_a_part_of_its_price(beside: bool) -> None:
    # GIVEN peers that stand in the queue as well, while the rank's process runs on their CPUs or on its own
    peers = [rank for rank in range(RANKS) if rank != RANK]
    job = Job(
        ranks=RANKS, noise=0.02, extra={RANK: [(QUEUE, TAKEN_S + 0.03)]} | {rank: [(QUEUE, 0.03)] for rank in peers}
    )
    job.ranks_columns = {rank: {"cpus": "0-3" if beside or rank != RANK else "8-11"} for rank in range(RANKS)}
    counted(job, beside_s={RANK: 0.11})
    for rank in peers:
        taker = {"comm": "python", "pid": 4000 + RANK, "value": 0.03 * job.steps}
        job.counters.append({"rank": rank, "name": "cpu.taken_s", **(taker if beside else taker | {"pid": 4000})})
    found = only(judged(job, {RANK: (DECODES, 0.11)}))
    assert found.function is not None and found.function.name == "read_clip"
    # THEN without the thread they would stand there for less, by the half of the process's CPU time that is the thread's, at least
    if beside:
        assert TAKEN_S + 0.5 * 0.03 < found.lost_seconds_per_step < TAKEN_S + 0.035
    else:
        assert found.lost_seconds_per_step == pytest.approx(TAKEN_S, rel=0.15)


def test_who_has_the_same_number_on_another_host_takes_nothing_there() -> None:
    job = Job(ranks=4, hosts=2, extra={rank: [(QUEUE, 0.03)] for rank in range(4)})
    for rank in range(1, 4):
        job.counters.append(
            {"rank": rank, "name": "cpu.taken_s", "comm": "python", "pid": 4000, "value": 0.03 * job.steps}
        )
    taken = taken_by_threads_s(gather(build(job)), 0, behind_s=0.01, part=0.5).mean(axis=1)
    assert taken[0] > 0.01 and taken[1] > 0.01 and not taken[2:].any()


def test_a_thread_whose_batch_comes_late_and_that_takes_the_cpu_is_accused_once() -> None:
    job = Job(ranks=RANKS, extra={RANK: [(QUEUE, 0.04), (LATE, 0.05)]})
    counted(job, beside_s={RANK: 0.1}, queue_s=0.04)
    found = only(judged(job, {RANK: (DECODES, 0.1)}))
    assert (found.component, found.cause) == ("python", "slow-function")
    assert found.function is not None and found.function.name == "read_clip"
    assert found.lost_seconds_per_step == pytest.approx(0.09, rel=0.2)


def test_a_thread_that_computes_as_much_on_the_peers_is_not_named() -> None:
    job = Job(ranks=RANKS, extra={RANK: [(QUEUE, TAKEN_S)]})
    counted(job, beside_s=dict.fromkeys(range(RANKS), 0.1), others_s=2 * TAKEN_S)
    found = only(judged(job, dict.fromkeys(range(RANKS), (DECODES, 0.1))))
    assert (found.component, found.cause, found.function) == ("cpu", "contended", None)


def test_a_stranger_who_ran_meanwhile_is_named_and_not_the_thread() -> None:
    # GIVEN a thread that computes more than the peers' and a process that ran while the rank's threads stood in the queue
    job = Job(ranks=RANKS, extra={RANK: [(QUEUE, TAKEN_S)]})
    counted(job, beside_s={RANK: 0.1}, others_s=2 * TAKEN_S)
    found = only(judged(job, {RANK: (DECODES, 0.1)}))
    assert (found.component, found.cause, found.instance) == ("cpu", "contended", "backup (77)")


def natives(job: Job, instances: dict[int, dict[str, float]]) -> None:
    job.counters += [
        {"scope": "thread", "rank": rank, "instance": instance, "name": "thread.run_s", "value": seconds * job.steps}
        for rank, those in instances.items()
        for instance, seconds in those.items()
    ]


def test_a_pool_without_python_is_named_by_its_thread_and_library() -> None:
    job = Job(ranks=RANKS, extra={RANK: [(QUEUE, TAKEN_S)]})
    counted(job, beside_s={rank: 0.1 if rank == RANK else 0.01 for rank in range(RANKS)})
    pool = {rank: {"python: sgemm_kernel (2 threads)": 0.01} for rank in range(RANKS)}
    natives(job, pool | {RANK: {"python: sgemm_kernel (3 threads)": 0.1}})
    found = only(judged(job, {}))
    assert (found.component, found.cause) == ("cpu", "contended")
    assert found.instance == "python: sgemm_kernel (3 threads)"
    assert found.lost_seconds_per_step == pytest.approx(TAKEN_S, rel=0.2)


@pytest.mark.parametrize(
    ("instances", "usual"),
    [
        ({"gloo_tcp_loop: kernel": 0.1}, {"gloo_tcp_loop: kernel": 0.01}),
        ({"pt_gloo_runloop: gloo::sum": 0.09}, {"pt_gloo_runloop: kernel": 0.09}),
    ],
    ids=["what the job sends", "the same threads, sampled elsewhere"],
)
def test_threads_of_a_library_that_are_not_odd_are_not_named(
    instances: dict[str, float], usual: dict[str, float]
) -> None:
    job = Job(ranks=RANKS, extra={RANK: [(QUEUE, TAKEN_S)]})
    counted(job, beside_s={rank: 0.1 if rank == RANK else 0.01 for rank in range(RANKS)})
    natives(job, dict.fromkeys(range(RANKS), usual) | {RANK: instances})
    found = only(judged(job, {}))
    # THEN that threads of its own ran is told all the same, and no quota is blamed for it
    assert (found.component, found.cause, found.instance) == ("cpu", "contended", "")
    assert "Threads of the rank's own process" in found.action


def test_a_thread_that_takes_nothing_from_the_training_is_not_accused() -> None:
    # GIVEN a rank whose thread computes on CPUs that nobody wants
    job = Job(ranks=RANKS)
    counted(job, beside_s={RANK: 0.1}, queue_s=0.0)
    verdict = judged(job, {RANK: (DECODES, 0.1)})
    assert (verdict.status, verdict.suspects) == ("healthy", ())
    assert not said(verdict, NoteCode.NO_FUNCTION)


def test_a_rank_that_is_not_accused_is_told_to_stand_behind_its_own_threads() -> None:
    # GIVEN a rank of three, slower in everything, whose threads that carry what the job sends take its CPU; peers take from all alike
    job = Job(ranks=3, noise=0.03, scale={RANK: 1.12}, extra={RANK: [(QUEUE, 0.05)]})
    for rank in range(3):
        mine = rank == RANK
        values = {
            "cpu.run_s": 0.11,
            "cpu.process_run_s": 0.18 if mine else 0.12,
            "cpu.process_ready_s": 0.1 if mine else 0.03,
        }
        job.counters += [{"rank": rank, "name": name, "value": each * job.steps} for name, each in values.items()]
        taker = {"comm": "python", "pid": 4000 + (rank + 1) % 3, "value": 0.029 * job.steps}
        job.counters.append({"rank": rank, "name": "cpu.taken_s", **taker})
    natives(job, {rank: {"gloo_tcp_loop: kernel": 0.07 if rank == RANK else 0.01} for rank in range(3)})
    verdict = judged(job, {})
    assert (verdict.status, verdict.suspects) == ("unknown", ())
    assert "threads of its own process have its CPUs, gloo_tcp_loop: kernel most" in said(verdict, NoteCode.FEW_PEERS)


def test_windows_that_do_not_count_the_queue_of_the_process_are_judged_as_before() -> None:
    counters: list[dict[str, Any]] = [{"rank": RANK, "name": "cpu.process_run_s", "value": 9.0}]
    job = Job(ranks=RANKS, extra={RANK: [(QUEUE, TAKEN_S)]}, counters=counters)
    found = only(judged(job, {RANK: (DECODES, 0.1)}))
    assert (found.component, found.cause, found.function) == ("cpu", "contended", None)


def test_a_crowd_of_threads_keeps_nobody_busy_for_long() -> None:
    """A forged window may name any number of them: twice as many must not take four times as long."""
    took_s = []
    for count in (20_000, 40_000):
        job = Job(ranks=RANKS, extra={RANK: [(QUEUE, TAKEN_S)]})
        counted(job, beside_s={RANK: 0.1})
        natives(job, {RANK: {f"w{at}: gemm{at} (1 threads)": 1e-6 for at in range(count)}})
        windows = build(job)
        began = time.process_time()
        diagnose(windows)
        took_s.append(time.process_time() - began)
    assert took_s[1] < 3.0, took_s
