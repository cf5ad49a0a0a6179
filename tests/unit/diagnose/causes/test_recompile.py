"""A rank that compiles its model again and again is told so; one whose compiled code is slow, or whose peers compile as long, is not."""

from __future__ import annotations

import pytest
from builders import TORCH, TRAIN, Job, Work, build, first, slow_python

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.sentence import sentence_of
from rankscope.observer.window.stacks import LEFT_OUT, StackFrame

RANK = 2
STEP = StackFrame("training_step", TRAIN, 104)
RUNS = (
    STEP,
    StackFrame("_fn", f"{TORCH}/_dynamo/eval_frame.py", 700),
)  # what is compiled and what is run both go through it
COMPILES = (*RUNS, StackFrame("_compile", f"{TORCH}/_dynamo/convert_frame.py", 900), LEFT_OUT)
BACKWARD = (
    STEP,
    StackFrame("backward", f"{TORCH}/_functorch/_aot_autograd/runtime_wrappers.py", 2100),
    StackFrame("compile_fx_inner", f"{TORCH}/_inductor/compile_fx.py", 620),
)
TRACES = Work("python", "step", 0, 1200, f"{TORCH}/_dynamo/symbolic_convert.py", frames=COMPILES)
FAKES = Work("python", "__torch_dispatch__", 0, 1300, f"{TORCH}/_subclasses/fake_tensor.py", frames=COMPILES)
GENERATES = Work("python", "codegen", 0, 90, f"{TORCH}/_inductor/scheduler.py", frames=BACKWARD)
WAITS = Work(
    "sync", "futex", 0, 355, "/usr/lib/python3.11/threading.py", caller="Condition.wait",
    frames=(*BACKWARD, StackFrame("_wait_futures", f"{TORCH}/_inductor/async_compile.py", 600)),
)  # fmt: skip
RUN = Work("python", "__call__", 0, 800, f"{TORCH}/fx/graph_module.py", frames=RUNS)


@pytest.mark.parametrize(
    "works", [[(TRACES, 0.06), (FAKES, 0.03)], [(GENERATES, 0.08)], [(TRACES, 0.04), (WAITS, 0.05)]],
    ids=["forward", "backward", "waits-for-workers"],
)  # fmt: skip
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_rank_that_compiles_again_and_again_is_told_so(works: list[tuple[Work, float]], hosts: int) -> None:
    # GIVEN peers that run the same compiled code
    extra = {rank: [(RUN, 0.02), *(works if rank == RANK else [])] for rank in range(8)}
    verdict = diagnose(build(Job(extra=extra, hosts=hosts)))
    suspect = first(verdict)
    assert (suspect.component, suspect.cause, suspect.ranks) == ("python", "recompile", (RANK,))
    assert len(verdict.suspects) == 1 and "TORCH_LOGS" in suspect.action
    assert suspect.lost_seconds_per_step == pytest.approx(sum(seconds for _, seconds in works), rel=0.25)
    assert suspect.function is not None and suspect.function.name == "training_step"
    said = "its code is compiled again and again, below training_step (train.py:104), which costs"
    assert sentence_of(verdict).startswith(f"Rank 2 on node-0: {said}")


def test_compiled_code_that_is_slow_is_a_slow_function() -> None:
    suspect = first(diagnose(build(slow_python(RANK, 0.08, RUN))))
    assert (suspect.component, suspect.cause, suspect.ranks) == ("python", "slow-function", (RANK,))


def test_what_all_ranks_compile_accuses_no_rank() -> None:
    # GIVEN a job whose ranks all compile
    extra = {rank: [(TRACES, 0.05)] for rank in range(8)}
    verdict = diagnose(build(Job(extra=extra)))
    assert verdict.status == "inefficient" and [one.scope for one in verdict.suspects] == ["all"]
    # AND one that computes longer besides
    extra[RANK] = [*extra[RANK], (Work("python", "augment", 0, 56), 0.08)]
    suspect = first(diagnose(build(Job(extra=extra))))
    assert (suspect.cause, suspect.ranks) == ("slow-function", (RANK,))
    assert suspect.function is not None and suspect.function.name == "augment"


def test_a_little_compiling_is_no_reason_for_what_takes_far_longer() -> None:
    extra = {RANK: [(TRACES, 0.02), (Work("python", "augment", 0, 56), 0.08)]}
    suspect = first(diagnose(build(Job(extra=extra))))
    assert (suspect.cause, suspect.ranks) == ("slow-function", (RANK,))
