"""What all ranks lose and none more than another is told with its share, its reason and what to do; computing is never waste."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import BUSY, TORCH, TRAIN, Job, Work, build, columns
from paused import paused

from rankscope.diagnose.infer.causes import registry, whole_job
from rankscope.diagnose.infer.causes.job.moving_work import moving_work
from rankscope.diagnose.infer.causes.whole_job import WholeJob
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict
from rankscope.diagnose.infer.verdict.sentence import headline, sentence_of
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame

RANKS, STEPS = 4, 100
LOADER = (StackFrame("__next__", f"{TORCH}/utils/data/dataloader.py", 700),)
COLLECTS = Work("python", "draw", 0, 56, detail="gc")
WAITS = Work("sync", "futex", 0, 1200, f"{TORCH}/utils/data/dataloader.py", frames=LOADER)
COMPILES = Work("python", "step", 0, 1200, f"{TORCH}/_dynamo/symbolic_convert.py",
                frames=(StackFrame("_compile", f"{TORCH}/_dynamo/convert_frame.py", 900),))  # fmt: skip
QUEUES = Work("sched", "ready", 0, 56, detail="queue", caller="augment")


def of_all(*works: tuple[Work, float], **more: Any) -> Job:
    """A job in whose every step each rank does these works besides, for so many seconds."""
    return Job(ranks=RANKS, steps=STEPS, extra={rank: list(works) for rank in range(RANKS)}, **more)


def only(verdict: Verdict) -> Suspect:
    assert verdict.status == "inefficient", (verdict.status, verdict.suspects, verdict.notes)
    (suspect,) = verdict.suspects
    assert suspect.waste
    return suspect


def in_steps_of_its_own(window: Window, each_s: float, every: int) -> Window:
    """The window in which the ranks stall in turn, one in each `every`th step, while the others wait."""
    rows = window.steps.to_pylist()
    for row in rows:
        if row["step"] % every == every - 1:
            mine = row["step"] // every % RANKS == row["rank"]
            row["seconds"] += each_s
            row["own_s" if mine else "wait_s"] += each_s
    return columns(window, "steps", rows)


@pytest.mark.parametrize("seconds", [0.03, 0.09])
def test_collections_in_every_step_cost_what_they_take(seconds: float) -> None:
    verdict = diagnose(build(of_all((COLLECTS, seconds))))
    suspect = only(verdict)
    assert (suspect.component, suspect.cause, suspect.scope, suspect.ranks) == ("python", "gc", "all", (0, 1, 2, 3))
    assert suspect.lost_seconds_per_step == pytest.approx(seconds, rel=0.15)
    assert verdict.exit_code == 1 and json.loads(to_json(verdict))["suspects"][0]["waste"] is True
    assert headline(verdict).startswith("INEFFICIENT  Nobody stands out, but ")
    assert sentence_of(verdict).startswith(
        f"Nobody stands out, but {suspect.lost_percent:.0f} % of the time would come back. "
    )


def test_collections_of_one_rank_after_another_cost_the_sum_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN that nothing else in the window says whose work moves (job/moving_work.py)
    others = [one for one in registry.proposers(WholeJob) if one is not moving_work]
    monkeypatch.setattr(
        whole_job, "proposers", lambda *given: others if given == (WholeJob,) else registry.proposers(*given)
    )
    (window,) = build(of_all((COLLECTS, 1e-9)))
    rows = window.patterns.to_pylist()
    for row in rows:
        if row["detail"] == "gc":
            row["per_step_s"], row["per_step_sd_s"] = 0.4 * 3 / STEPS, 0.4 * (3 / STEPS) ** 0.5
    suspect = only(diagnose([columns(in_steps_of_its_own(window, 0.4, 8), "patterns", rows)]))  # three times each
    assert suspect.cause == "gc" and suspect.lost_seconds_per_step == pytest.approx(0.4 * 12 / STEPS, rel=0.2)
    assert any("each rank in steps of its own" in str(one.value) for one in suspect.evidence)
    assert "at the same step" in suspect.action


def test_what_takes_a_twentieth_of_the_step_is_nobodys_problem() -> None:
    for work in (COLLECTS, WAITS, COMPILES):
        assert diagnose(build(of_all((work, 0.008)))).status == "healthy"


def test_computing_is_never_waste() -> None:
    assert diagnose(build(of_all((BUSY, 0.3)))).status == "healthy"


def test_input_that_comes_late_in_most_steps_is_told_with_what_the_workers_do() -> None:
    (window,) = build(of_all((WAITS, 0.08)))
    like = next(row for row in window.patterns.to_pylist() if row["name"] == "augment")
    rows = [
        {**like, "rank": rank, "thread": "loader", "name": "decode", "stack": -1, "per_step_s": 0.3}
        for rank in range(RANKS)
    ]
    suspect = only(diagnose([columns(window, "patterns", [*window.patterns.to_pylist(), *rows])]))
    assert (suspect.component, suspect.cause, suspect.scope) == ("python", "dataloader", "all")
    assert suspect.lost_seconds_per_step == pytest.approx(0.08, rel=0.15)
    assert "cannot keep up, mostly in decode" in suspect.action


@pytest.mark.parametrize(
    ("taker", "part"),
    [
        (0, 1.0),  # of a rank's own, besides its threads: its workers
        (1, 0.75),  # of another rank: the part of its workers in its CPU time
        (99, 0.0),  # a stranger
    ],
)
def test_workers_that_are_late_also_cost_what_ranks_queue_behind_them(taker: int, part: float) -> None:
    job = of_all((WAITS, 0.2), (QUEUES, 0.1))
    for rank in range(RANKS):
        ran = {"cpu.workers_run_s": 15.0, "cpu.process_run_s": 5.0, "cpu.process_ready_s": 10.0}
        job.counters += [{"rank": rank, "name": name, "value": seconds} for name, seconds in ran.items()]
        pid = 4000 + (rank + taker) % RANKS if taker < RANKS else 77
        job.counters.append({"rank": rank, "name": "cpu.taken_s", "comm": "python", "pid": pid, "value": 10.0})
    (window,) = build(job)
    rows = window.steps.to_pylist()
    step_s = sum(row["seconds"] for row in rows) / len(rows)
    assert only(diagnose([window])).lost_seconds_per_step == pytest.approx(0.2 + 0.2 / step_s * 0.1 * part, rel=0.04)


def test_workers_that_are_started_anew_in_each_epoch_are_told_with_their_rhythm() -> None:
    job = of_all(
        (
            Work(
                "sync",
                "futex",
                0,
                700,
                f"{TORCH}/utils/data/dataloader.py",
                frames=(StackFrame("wait", TRAIN, 44), *LOADER),
            ),
            1e-9,
        )
    )
    (window,) = build(job)
    window = paused(window, ("wait", 44, ""), 0.8, range(24, STEPS, 25))
    rows = window.patterns.to_pylist()
    for row in rows:
        if row["kind"] == "sync":
            row["per_step_s"] = 0.8 / 25
    suspect = only(diagnose([columns(window, "patterns", rows)]))
    assert suspect.cause == "dataloader" and suspect.lost_seconds_per_step == pytest.approx(0.8 / 25, rel=0.2)
    assert any(one.value == "in every 25th step" for one in suspect.evidence) and "persistent_workers" in suspect.action


def test_code_that_all_ranks_compile_again_and_again_is_told() -> None:
    suspect = only(diagnose(build(of_all((COMPILES, 0.06)))))
    assert (suspect.component, suspect.cause, suspect.scope) == ("python", "recompile", "all")
    assert suspect.lost_seconds_per_step == pytest.approx(0.06, rel=0.15)


@pytest.mark.parametrize(
    "file", ["_inductor/output_code.py", "_functorch/_aot_autograd/runtime_wrappers.py", "_dynamo/eval_frame.py"]
)
def test_compiled_code_that_only_runs_is_computing(file: str) -> None:
    runs = Work(
        "python",
        "call",
        0,
        30,
        "/tmp/torchinductor_root/ab/cab.py",
        frames=(StackFrame("__call__", f"{TORCH}/{file}", 600),),
    )
    assert diagnose(build(of_all((runs, 0.1)))).status == "healthy"


def on_one_cpu(busy_s: float, cpus: str = "0") -> Job:
    job = of_all((QUEUES, 0.3))
    job.ranks_columns = {rank: {"cpus": cpus} for rank in range(RANKS)}
    job.counters = [{"scope": "host", "name": "cpu.busy_s", "value": busy_s, "limit": 80.0}]
    job.counters += [{"rank": rank, "name": "cpu.taken_s", "comm": "python", "pid": 4000 + other, "value": 10.0}
                     for rank in range(RANKS) for other in range(RANKS) if other != rank]  # fmt: skip
    return job


def test_ranks_on_one_cpu_while_others_idle_are_told_with_the_masks() -> None:
    suspect = only(diagnose(build(on_one_cpu(20.0))))
    assert (suspect.component, suspect.cause, suspect.instance) == ("cpu", "affinity", "CPU 0")
    assert suspect.lost_seconds_per_step == pytest.approx(0.3, rel=0.1)  # four CPUs for four ranks
    assert "python" not in suspect.action
    assert suspect.evidence[0].measure == f"ranks 0-{RANKS - 1} on node-0 may run on"
    assert "`taskset -acp 0-3 PID` on node-0 for PID 4000, 4001" in suspect.action


def test_ranks_in_containers_of_one_machine_are_told_with_the_machine() -> None:
    job = on_one_cpu(20.0)
    job.namespaces = 2
    verdict = diagnose(build(job))
    suspect = only(verdict)
    assert (suspect.instance, suspect.host) == ("CPU 0 of node-0", "")
    assert suspect.evidence[0].measure == f"ranks 0-{RANKS - 1} (containers of node-0) may run on"
    assert "PID` on node-0 for PID 4000" in suspect.action and "run on CPU 0 of node-0 alone" in sentence_of(verdict)


@pytest.mark.parametrize(
    ("cpus", "workers_s", "busy_s", "told"),
    [("0", 8.0, 20.0, True), ("0", 8.0, 79.0, False), ("0-3", 8.0, 20.0, False), ("0", 0.0, 20.0, False)],
)
def test_a_rank_on_one_cpu_with_its_workers_while_others_idle_is_told_so(
    cpus: str, workers_s: float, busy_s: float, told: bool
) -> None:
    job = Job(ranks=1, steps=STEPS, extra={0: [(QUEUES, 0.3)]})
    job.ranks_columns = {0: {"cpus": cpus}}
    job.counters = [{"scope": "host", "name": "cpu.busy_s", "value": busy_s, "limit": 80.0}]
    job.counters += [{"rank": 0, "name": "cpu.taken_s", "comm": "pt_data_worker", "pid": 4000, "value": 8.0}]
    job.counters += [{"rank": 0, "name": "cpu.workers_run_s", "value": workers_s}] if workers_s else []
    verdict = diagnose(build(job))
    assert (verdict.status == "inefficient") is told, (verdict.suspects, verdict.notes)
    if told:
        suspect = only(verdict)
        assert (suspect.component, suspect.cause, suspect.instance, suspect.scope) == (
            "cpu",
            "affinity",
            "CPU 0",
            "rank",
        )
        assert suspect.lost_seconds_per_step == pytest.approx(0.3, rel=0.1)
        assert "for PID 4000 and each of its children" in suspect.action and "its own loader workers" in sentence_of(
            verdict
        )


@pytest.mark.parametrize(("busy_s", "cpus"), [(79.0, "0"), (20.0, "0-3")])
def test_ranks_that_share_all_cpus_or_whose_others_are_busy_waste_nothing(busy_s: float, cpus: str) -> None:
    assert diagnose(build(on_one_cpu(busy_s, cpus))).status == "healthy"


def rare(window: Window, work: Work, seconds: float, steps: range, workers: Any = range(RANKS)) -> Window:
    """The window with a function of the user's that takes so long in these steps only, and shows in the patterns."""
    window = paused(window, (work.name, work.line, ""), seconds, steps, workers)
    rows = window.patterns.to_pylist()
    for row in rows:
        if row["name"] == work.name:
            row["per_step_s"] = seconds * len(steps) / STEPS if row["rank"] in workers else 0.0
    return columns(window, "patterns", rows)


@pytest.mark.parametrize(("seconds", "status"), [(0.3, "healthy"), (1.2, "inefficient")])
def test_a_checkpoint_is_waste_from_a_tenth_of_the_time_on(seconds: float, status: str) -> None:
    save = Work("python", "save", 0, 74, detail="sleep")
    (window,) = build(of_all((save, 1e-9)))
    verdict = diagnose([rare(window, save, seconds, range(24, STEPS, 25))])
    assert verdict.status == status
    if status == "inefficient":
        suspect = only(verdict)
        assert (suspect.cause, suspect.function and suspect.function.name) == ("pause", "save")
        assert suspect.lost_seconds_per_step == pytest.approx(seconds / 25, rel=0.15)


def test_an_evaluation_of_all_ranks_is_computing() -> None:
    evaluate = Work("python", "evaluate", 0, 61)
    (window,) = build(of_all((evaluate, 1e-9)))
    assert diagnose([rare(window, evaluate, 1.2, range(24, STEPS, 25))]).status == "healthy"


def test_waste_comes_after_who_differs_and_changes_nothing_of_it() -> None:
    job = of_all((COLLECTS, 0.06))
    alone = diagnose(build(Job(ranks=RANKS, steps=STEPS, extra={2: [(BUSY, 0.1)]})))
    job.extra[2] = [*job.extra[2], (BUSY, 0.1)]
    verdict = diagnose(build(job))
    assert verdict.status == "fault" and [one.waste for one in verdict.suspects] == [False, True]
    first, second = verdict.suspects
    assert (first.component, first.cause, first.ranks) == ("python", "slow-function", (2,))
    assert first.lost_seconds_per_step == pytest.approx(alone.suspects[0].lost_seconds_per_step, rel=0.1)
    assert second.cause == "gc" and second.lost_seconds_per_step == pytest.approx(0.06, rel=0.2)


@pytest.mark.parametrize("work", [Work("io", "fsync", 0, 92, detail="/logs (nfs)", caller="log_metrics"),
                                  Work("sync", "pipe", 0, 92, detail="write", caller="print_loss")], ids=["files", "prints"])  # fmt: skip
def test_what_the_training_thread_writes_in_each_step_is_told_with_its_function(work: Work) -> None:
    suspect = only(diagnose(build(of_all((work, 0.07)))))
    assert (suspect.component, suspect.cause, suspect.scope) == ("storage", "slow-write", "all")
    assert suspect.function is not None and suspect.function.name == work.caller
    assert suspect.lost_seconds_per_step == pytest.approx(0.07, rel=0.15)
    assert diagnose(build(of_all((Work("io", "read", 0, 40, detail="/data (ext4)"), 0.07)))).status == "healthy"


def fills(for_what: str, faults_per_step: float, share: float = 0.5) -> Job:
    job = of_all((Work("python", "fill", 0, 60, kernel=(share, for_what)), 0.12))
    job.counters = [
        {"rank": rank, "name": "memory.minor_faults", "value": STEPS * faults_per_step} for rank in range(RANKS)
    ]
    return job


@pytest.mark.parametrize("for_what", ["page fault", "munmap", "brk"])
def test_memory_that_all_take_anew_in_each_step_costs_what_the_kernel_does_for_it(for_what: str) -> None:
    suspect = only(diagnose(build(fills(for_what, 20_000))))
    assert (suspect.component, suspect.cause, suspect.scope) == ("memory", "page-faults", "all")
    assert suspect.function is not None and suspect.function.name == "fill"
    assert suspect.lost_seconds_per_step == pytest.approx(0.06, rel=0.15)
    assert suspect.evidence[1].value == 20_000 and "MALLOC_TRIM_THRESHOLD_" in suspect.action


@pytest.mark.parametrize(
    ("for_what", "faults", "share"), [("write", 20_000, 0.5), ("page fault", 500, 0.5), ("page fault", 20_000, 0.06)],
    ids=["a system call", "interrupts", "little"],
)  # fmt: skip
def test_other_time_in_the_kernel_is_no_waste_of_memory(for_what: str, faults: float, share: float) -> None:
    assert diagnose(build(fills(for_what, faults, share))).status == "healthy"


def rising(window: Window, per_step_s: float) -> Window:
    """The window with steps whose own work becomes longer by so much from each to the next."""
    rows = window.steps.to_pylist()
    for row in rows:
        more_s = (row["step"] - STEPS / 2) * per_step_s
        row["seconds"] += more_s
        row["own_s"] += more_s
    return columns(window, "steps", rows)


LOOKS = Work("python", "look_through", 0, 61, growth_s=0.067)


@pytest.mark.parametrize("ranks", [RANKS, 1])
def test_a_function_that_takes_longer_from_step_to_step_costs_what_it_takes_more_than_at_first(ranks: int) -> None:
    job = Job(ranks=ranks, steps=STEPS, extra={rank: [(LOOKS, 0.1)] for rank in range(ranks)})
    suspect = only(diagnose([rising(build(job)[0], 0.001)]))
    assert (suspect.component, suspect.cause) == ("python", "slow-function")
    assert suspect.function is not None and suspect.function.name == "look_through"
    assert (
        0.045 < suspect.lost_seconds_per_step < 0.09
    )  # half of what it grew, or of the later part, where that is judged
    assert "takes longer from step to step" in sentence_of(diagnose([rising(build(job)[0], 0.001)]))


def test_longer_input_or_a_change_of_level_is_no_function_that_grows() -> None:
    grows = Work("python", "Linear.forward", 0, 131, f"{TORCH}/nn/modules/linear.py", growth_s=0.067)
    (of_library,) = build(of_all((grows, 0.1)))
    (steady,) = build(of_all((LOOKS, 0.1)))
    rows = steady.steps.to_pylist()
    for row in rows:
        row["seconds"] += 0.1 * (row["step"] >= STEPS / 2)
        row["own_s"] += 0.1 * (row["step"] >= STEPS / 2)
    for window in (rising(of_library, 0.001), columns(steady, "steps", rows), steady):
        assert not [one for one in diagnose([window]).suspects if one.cause == "slow-function"]


def with_pools(cpus: str, spins: float = 0.06, queues: float = 0.2) -> Job:
    job = of_all(
        (Work("python", "backward", 0, 820, f"{TORCH}/autograd/graph.py", native="libgomp-a34b3233.so.1"), spins),
        (QUEUES, queues),
    )
    job.ranks_columns = {rank: {"cpus": cpus} for rank in range(RANKS)}
    job.counters = [{"rank": rank, "name": "thread.run_s", "instance": "python: libgomp-a34b3233.so.1 (3 threads)", "value": 8.0}
                    for rank in range(RANKS)]  # fmt: skip
    job.counters += [
        {"rank": rank, "name": "cpu.taken_s", "comm": "python", "pid": 4000, "value": 10.0} for rank in range(RANKS)
    ]
    return job


def test_pools_of_more_threads_than_cpus_cost_their_queueing_and_their_spinning() -> None:
    suspect = only(diagnose(build(with_pools("0-3"))))
    assert (suspect.component, suspect.cause, suspect.scope) == ("cpu", "oversubscribed", "all")
    assert suspect.lost_seconds_per_step == pytest.approx(0.06 + 0.2, rel=0.1)
    assert suspect.evidence[0].value == 16 and "OMP_NUM_THREADS" in suspect.action


def test_what_the_threads_of_a_pool_compute_is_not_gained_without_them() -> None:
    (window,) = build(with_pools("0-3"))
    rows = window.patterns.to_pylist()
    for row in rows:
        if row["native"] and "gomp" in row["native"]:
            row["native_share"] = 0.5
    suspect = only(diagnose([columns(window, "patterns", rows)]))
    # Of 0.06 s half is spinning; the other half each of three more threads computes as well.
    assert suspect.lost_seconds_per_step == pytest.approx(0.2 + 0.03 - 3 * 0.03, rel=0.15)


def test_a_pool_with_a_cpu_for_each_thread_may_spin() -> None:
    assert diagnose(build(with_pools("0-15"))).status == "healthy"


@pytest.mark.parametrize(
    ("work", "cause"),
    [(COLLECTS, "gc"), (WAITS, "dataloader"), (COMPILES, "recompile")],
    ids=["gc", "input", "recompile"],
)
def test_a_rank_that_trains_alone_is_told_its_waste(work: Work, cause: str) -> None:
    verdict = diagnose(build(Job(ranks=1, steps=STEPS, extra={0: [(work, 0.08)]})))
    suspect = only(verdict)
    assert (suspect.cause, suspect.scope, suspect.ranks) == (cause, "rank", (0,))
    assert suspect.lost_seconds_per_step == pytest.approx(0.08, rel=0.15)
    assert "them" not in sentence_of(verdict) and sentence_of(verdict).startswith("No rank to compare with")


def test_of_loaders_that_all_work_without_a_pause_who_waits_longest_is_no_suspect() -> None:
    # GIVEN ranks whose workers need the whole step for a batch; rank 1 comes last, and the others wait for it
    (window,) = build(of_all((WAITS, 0.2)))
    table, steps = window.patterns.to_pylist(), window.steps.to_pylist()
    for row in steps:
        early = 0.12 if row["rank"] != 1 else 0.0
        row["own_s"], row["sync_s"], row["wait_s"] = row["own_s"] - early, row["sync_s"] - early, row["wait_s"] + early
    for row in table:
        if row["kind"] == "sync" and row["rank"] != 1:
            row["per_step_s"] -= 0.12
    like = next(row for row in table if row["name"] == "augment")

    def workers(idle_s: float) -> list[dict[str, Any]]:
        works = {**like, "thread": "loader", "name": "decode", "stack": -1}
        waits = {**works, "kind": "sync", "name": "poll"}
        return [
            {**one, "rank": rank, "per_step_s": seconds}
            for rank in range(RANKS) for one, seconds in ((works, 0.39), (waits, idle_s if rank != 1 else 0.01))
        ]  # fmt: skip

    window = columns(window, "steps", steps)
    verdict = diagnose([columns(window, "patterns", [*table, *workers(0.01)])])
    assert verdict.status == "inefficient", verdict.suspects
    (suspect,) = verdict.suspects
    assert (suspect.cause, suspect.scope) == ("dataloader", "all") and suspect.lost_seconds_per_step > 0.15
    assert not [note for note in verdict.notes if note.rank == 1]
    # WHEN the workers of the others have time left THEN the rank is slow
    verdict = diagnose([columns(window, "patterns", [*table, *workers(0.2)])])
    assert (verdict.status, verdict.suspects[0].cause, verdict.suspects[0].ranks) == ("fault", "dataloader", (1,))
