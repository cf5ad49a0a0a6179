"""Where collectives run on a GPU that does not show when it computes, a wait for it is waiting for others: what made a rank late shows."""

from __future__ import annotations

import pytest
from builders import TRAIN, Job, Work, build, codes, columns, first

from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.waits import waits
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame

LIBRARY = "/usr/lib/python3.11"
RANK, LATE_S = 3, 0.06
NEXT = StackFrame("Loader.__next__", f"{LIBRARY}/site-packages/torch/utils/data/dataloader.py", 736)
# With pinned memory a batch comes through a thread: the training waits for a queue of its own process.
PINNED = Work("sync", "futex", 0, 355, f"{LIBRARY}/threading.py", caller="Condition.wait", frames=(NEXT,))
GIL = Work("sync", "gil", 0, 56, caller="augment", holder=("Index.refresh", TRAIN, 205, "index"))
LOCK = Work("sync", "futex", 0, 40, caller="Metrics.log_metrics")
READS = Work("python", "read_record", 0, 33, detail="sleep")
KERNELS = Work("gpu", "kernels", 0)


def on_a_gpu(window: Window) -> Window:
    """The same job whose ranks meet on their GPUs: what they stayed in collectives they wait for these."""
    waiting = {"kind": "sync", "name": "gpu", "detail": "cudaStreamSynchronize", "caller": "Metrics.log_metrics"}
    rows = [
        row
        | (waiting if row["kind"] == "collective" else {})
        | ({"thread": "loader"} if row["name"] == READS.name else {})
        for row in window.patterns.to_pylist()
    ]
    return columns(window, "patterns", rows)


@pytest.mark.parametrize(
    ("works", "cause", "function"),
    [
        ([(PINNED, LATE_S), (READS, 2 * LATE_S)], "dataloader", "read_record"),
        ([(GIL, LATE_S)], "gil", "Index.refresh"),
        ([(LOCK, LATE_S)], "lock", "Metrics.log_metrics"),
    ],
)
def test_who_comes_late_to_its_gpu_is_named_with_what_made_it_late(
    works: list[tuple[Work, float]], cause: str, function: str
) -> None:
    [window] = build(Job(extra={RANK: works}))
    steps = [
        row | ({"own_s": row["own_s"] - 2 * LATE_S} if row["rank"] == RANK and len(works) > 1 else {})
        for row in window.steps.to_pylist()
    ]  # what a loader's worker does is no time of the rank's
    verdict = diagnose([columns(on_a_gpu(window), "steps", steps)])
    suspect = first(verdict)
    assert (suspect.component, suspect.cause, suspect.ranks) == ("python", cause, (RANK,))
    assert suspect.function is not None and suspect.function.name == function


def test_a_healthy_job_that_meets_on_its_gpus_is_healthy() -> None:
    [window] = build(Job())
    verdict = diagnose([on_a_gpu(window)])
    assert verdict.status == "healthy" and NoteCode.BEHIND_GPU not in codes(verdict)


def test_that_a_gpu_may_work_meanwhile_is_told_with_what_a_host_does_too_long() -> None:
    [window] = build(Job(extra={RANK: [(LOCK, LATE_S)]}))
    assert NoteCode.BEHIND_GPU in codes(diagnose([on_a_gpu(window)]))
    assert NoteCode.BEHIND_GPU not in codes(diagnose([window]))


def test_gpus_that_have_more_to_do_than_before_are_no_slow_network() -> None:
    [now], [before] = build(Job(transfer_s=0.10)), build(Job(start=1.75e9))
    suspect = first(diagnose([on_a_gpu(now)], [on_a_gpu(before)]))
    assert (suspect.component, suspect.cause) == ("workload", "slow-everywhere")
    assert suspect.function is not None and suspect.function.name == "gpu"
    assert first(diagnose([now], [before])).component == "network"


@pytest.mark.parametrize("shown", [False, True])
def test_a_wait_for_a_gpu_is_own_time_only_where_that_shows_when_it_computes(shown: bool) -> None:
    [window] = build(Job(ranks=2, extra={rank: [(KERNELS, 0.1)] for rank in range(2)} if shown else {}))
    table = gather([on_a_gpu(window)]).patterns
    of_gpu = (table.kind.codes == table.kind.code("sync")) & (table.name.codes == table.name.code("gpu"))
    assert of_gpu.sum() == 2
    assert waits(table)[of_gpu].tolist() == [not shown] * 2
    assert not waits(table)[~of_gpu].any()
