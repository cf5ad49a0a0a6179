"""GPU functions of a rank: located launches become rows by kernel and place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.observer.gpu.launched import GRAPH, OTHERS, LaunchSite, launch_patterns, launch_sites
from rankscope.observer.gpu.waited import wait_patterns
from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread.functions import FunctionKey, StackName
from rankscope.observer.thread.patterns import MeasuredPattern
from rankscope.observer.window.schema import BY_LAUNCHES
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.bpf import ring
from rankscope.probes.calls.table import CALL_TABLE

GEMM, NORM, DRIVER, STRANGE = (0x1000, 0x2001), (0x1100, 0x2002), (0x7000, 0x3000), (0x7001, 0x4000)
FORWARD = StackName(
    "forward",
    "/work/train.py",
    18,
    (StackFrame("main", "/work/train.py", 3), StackFrame("forward", "/work/train.py", 18)),
)
STACKS = {5: FORWARD, 6: StackName("norm", "/work/norm.py", 7, (StackFrame("norm", "/work/norm.py", 7),))}


def located(*launches: tuple[tuple[int, int], int, int, int]) -> ring.Events:
    """Events of (what was passed and where the call returns, which argument it is, stack, tid)."""
    events = np.zeros(len(launches), ring.EVENT)
    for event, ((function, caller), argument, stack, tid) in zip(events, launches, strict=True):
        event["type"], event["what"], event["tid"] = ring.LAUNCH, argument, tid
        event["stack"], event["arg"], event["ready_ns"] = function, caller, stack
    return events


def kernels(total_s: float, per_step_s: float | None = 0.4) -> MeasuredPattern:
    function = FunctionKey("gpu", "kernels", resource="gpu")
    return MeasuredPattern(function, total_s / 10, 0.9, 0.1, 20, total_s, 0.1, 0.2, 0.3, per_step_s, 0.01, 0)


def test_launches_are_counted_by_kernel_and_place() -> None:
    events = located(
        (GEMM, 1, 5, 40), (GEMM, 1, 5, 40), (NORM, 2, 6, 40), (GEMM, 1, 0, 41), (DRIVER, 1, 5, 40), (STRANGE, 1, 5, 40),
        ((0x9000, 0x2001), 0, 5, 40), ((0x7002, 0x5000), 1, 5, 40),
    )  # fmt: skip
    names = {GEMM: "gemm<float>", NORM: "norm"}
    files = {DRIVER: "libcudart.so.12", STRANGE: "libcublasLt.so.12", (0x9000, 0x2001): "libtorch_cuda.so"}
    assert set(launch_sites(events, names, files, {40: "the main thread", 41: "thread pt_autograd_0"})) == {
        LaunchSite("gemm<float>", 5, "", 2),
        LaunchSite("norm", 6, "", 1),
        LaunchSite("gemm<float>", 0, "thread pt_autograd_0", 1),
        LaunchSite("kernel of libcublasLt.so.12", 5, "", 1),
        LaunchSite(GRAPH, 5, "", 1),
        LaunchSite("kernel", 5, "", 1),
    }  # the runtime's own call of the driver is its caller's launch, which was counted


def test_the_time_of_all_kernels_is_divided_by_launches_and_marked() -> None:
    sites = [LaunchSite("gemm", 5, "", 6), LaunchSite("norm", 6, "", 2), LaunchSite("ncclDevKernel_Sum", 6, "", 4)]
    gemm, nccl, norm = launch_patterns(sites, STACKS, [kernels(4.0)])
    assert (gemm.function.name, gemm.function.caller, gemm.function.file, gemm.function.line) == (
        "gemm",
        "forward",
        "/work/train.py",
        18,
    )
    assert (gemm.function.stack, gemm.function.detail) == (FORWARD.frames, BY_LAUNCHES)
    assert (gemm.total_s, gemm.beta, gemm.per_step_s) == pytest.approx((3.0, 0.3, 0.3))
    assert (norm.total_s, norm.count, norm.mu, norm.sigma) == (1.0, 2, 0.9, 0.1)
    assert (nccl.count, nccl.total_s, nccl.beta, nccl.function.detail) == (4, 0.0, 0.0, "")


def test_without_activity_of_the_gpu_launches_are_counted_and_have_no_time() -> None:
    (only,) = launch_patterns([LaunchSite("gemm", 0, "thread pt_autograd_0", 3)], STACKS, [])
    assert (only.count, only.total_s, only.mu, only.function.detail) == (3, 0.0, None, "")
    assert (only.function.caller, only.function.file) == ("thread pt_autograd_0", "")


def test_a_function_has_the_stack_of_most_of_its_launches() -> None:
    other = StackName(
        "forward", "/work/train.py", 18, (StackFrame("evaluate", "/work/train.py", 90), *FORWARD.frames[1:])
    )
    (only,) = launch_patterns([LaunchSite("gemm", 5, "", 9), LaunchSite("gemm", 7, "", 2)], {**STACKS, 7: other}, [])
    assert (only.count, only.function.stack) == (11, FORWARD.frames)


@given(
    st.lists(st.tuples(st.sampled_from([f"k{n}" for n in range(60)]), st.integers(1, 100)), max_size=80),
    st.floats(0.1, 5.0),
)
def test_the_parts_add_up_to_the_whole_however_many_they_are(seen: list[tuple[str, int]], total_s: float) -> None:
    found = launch_patterns([LaunchSite(name, 5, "", count) for name, count in seen], STACKS, [kernels(total_s, None)])
    assert sum(one.count for one in found) == sum(count for _, count in seen)
    assert len(found) <= 25
    assert found == () or sum(one.total_s for one in found) == pytest.approx(total_s)
    assert [one.function.name for one in found[:-1]].count(OTHERS) == 0
    assert all(one.per_step_s is None for one in found)


def test_waits_for_the_gpu_are_told_by_place_with_how_often_and_how_long() -> None:
    row = next(at for at, one in enumerate(CALL_TABLE) if one.symbol == "cudaStreamSynchronize")
    waits = np.zeros(7, ring.EVENT)
    waits["type"], waits["what"], waits["ready_ns"] = ring.CALL, row, [5, 5, 6, 5, 5, 6, 5]
    waits["dur_ns"] = [1_000_000, 3_000_000, 9_000_000, 1_000_000, 3_000_000, 9_000_000, 5_000_000]
    start_s = np.array([0.1, 0.2, 0.9, 1.1, 1.2, 1.9, 2.5])  # the last one behind the last step
    steps = FoundSteps(np.array([0.0, 1.0, 2.0]))
    norm, forward = wait_patterns(waits, start_s, STACKS, CALL_TABLE, steps)
    assert (norm.function.name, norm.function.caller, norm.count) == ("cudaStreamSynchronize", "norm", 2)
    assert (forward.function.caller, forward.function.line, forward.count) == ("forward", 18, 5)
    assert (forward.total_s, forward.per_step_s, forward.max_s) == pytest.approx((0.013, 0.004, 0.005))
    assert (forward.beta, norm.per_step_s) == (0.0, pytest.approx(0.009))
