"""The budget of a step adds up, whatever a fleet is like: nothing below 0, no share above 100 %."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import builders
import numpy as np
import pytest
from builders import Job, Work, build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpuskit.archive import HOME, SUFFIX, opened
from rankscope.diagnose.face.report.budget_words import line_of, whole_percents
from rankscope.diagnose.infer.budget import measure
from rankscope.diagnose.infer.budget.kernel import with_kernel
from rankscope.diagnose.infer.budget.spent import spent_in
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.budget import Budget, Kind
from rankscope.observer.window.folder import read_window

SAMPLE = ("h100-1", "lab-31-32", "quiet-1")
LOADER = "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"


def budget_of(fleet: Fleet) -> Budget | None:
    spent = spent_in(fleet)
    return None if spent is None else measure.budget_of(fleet, with_kernel(fleet, spent))


def check(budget: Budget | None) -> Budget:
    """What holds for every budget."""
    assert budget is not None
    assert budget.seconds > 0 and np.isfinite(budget.seconds) and budget.ranks >= 1
    assert sum(part.seconds for part in budget.parts) == pytest.approx(budget.seconds, rel=1e-6)
    assert [part.seconds for part in budget.parts] == sorted((part.seconds for part in budget.parts), reverse=True)
    assert len({part.kind for part in budget.parts}) == len(budget.parts)
    for part in budget.parts:
        assert part.seconds > 0 and budget.share(part.seconds) <= 1
        assert all(0 < item.seconds <= part.seconds for item in part.items)
        assert sum(item.seconds for item in part.items) <= part.seconds * (1 + 1e-6)
        assert all(item.what or item.function is not None for item in (*part.items, *part.meanwhile))
    for one in budget.by_rank:
        assert sum(seconds for _, seconds in one.parts) == pytest.approx(one.seconds, rel=1e-6)
        assert all(seconds > 0 for _, seconds in one.parts)
    if budget.by_rank:
        assert np.mean([one.seconds for one in budget.by_rank]) == pytest.approx(budget.seconds, rel=1e-6)
    percents = [int(said.split(" %")[0].split()[-1]) for said in line_of(budget).split(": ", 1)[1].split("), ")]
    assert all(0 <= each <= 100 for each in percents)
    return budget


def seconds_of(budget: Budget) -> dict[Kind, float]:
    return {part.kind: part.seconds for part in budget.parts}


def forged(fleet: Fleet, factor: float, beta: float) -> Fleet:
    """The same with impossible times in its patterns."""
    table = fleet.patterns
    return replace(fleet, patterns=replace(table, per_step_s=table.per_step_s * factor, beta=table.beta * beta))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(1, 6), st.integers(1, 2), st.integers(1, 24), st.floats(0, 0.3), st.integers(0, 9), st.floats(0, 0.2),
    st.sampled_from([0.01, 1.0, 30.0]), st.booleans(),
)  # fmt: skip
def test_every_fleet_adds_up(
    ranks: int, hosts: int, steps: int, noise: float, seed: int, more: float, factor: float, stepless: bool
) -> None:
    job = builders.hogged(ranks - 1, more, ranks=ranks, hosts=min(hosts, ranks), steps=steps, noise=noise, seed=seed)
    fleet = forged(gather(build(job)), factor, factor)
    if stepless:
        nothing = np.full_like(fleet.steps.seconds, np.nan)
        fleet = replace(fleet, steps=replace(fleet.steps, seconds=nothing, wait_s=nothing))
    budget = check(budget_of(fleet))
    assert budget.of_window == stepless and budget.ranks == ranks


def test_the_budget_of_known_steps_is_known() -> None:
    # GIVEN steps of 0.24 s of which all times are known, on four ranks of which one works 0.08 s more
    job = builders.slow_python(3, 0.08, ranks=4, noise=0.0, spread=0.0, stalls=0.0)
    budget = check(budget_of(gather(build(job))))
    found = seconds_of(budget)
    step_s = sum(work.seconds for work in builders.STEP) + 0.08 + job.transfer_s

    assert budget.seconds == pytest.approx(step_s, rel=1e-3)
    assert found[Kind.WAITING] == pytest.approx(0.75 * 0.08, rel=0.01)  # three of four wait
    assert found[Kind.EXCHANGE] == pytest.approx(job.transfer_s, rel=0.01)
    assert found[Kind.FILES] == pytest.approx(0.006, rel=0.01)
    assert found[Kind.QUEUE] == pytest.approx(0.004, rel=0.01)
    assert found[Kind.ASLEEP] == pytest.approx(0.080, rel=0.01)
    assert found[Kind.PYTHON] == pytest.approx(0.054 + 0.08 / 4, rel=0.05)  # as 99 samples a second tell it
    assert found[Kind.LIBRARIES] == pytest.approx(0.056, rel=0.1)
    python = next(part for part in budget.parts if part.kind is Kind.PYTHON)
    assert python.items[0].function is not None and python.items[0].function.name == "augment"
    rank_3 = dict(budget.by_rank[3].parts)
    assert rank_3.get(Kind.WAITING, 0.0) == pytest.approx(0.0, abs=1e-6)
    assert line_of(budget).startswith(f"step {step_s:.3f} s: ") and "train.py:56 augment" in line_of(budget)


def test_each_kind_of_wait_has_its_place() -> None:
    user = builders.ROOT[-1]
    works = {
        Kind.INPUT: Work("sync", "poll", 0, 1100, LOADER, caller="_try_get_data"),
        Kind.COMPILING: Work("python", "compile_fx", 0, 9, f"{builders.TORCH}/_inductor/compile_fx.py"),
        Kind.GC: Work("python", "gc", 0, 50, detail="gc", caller="tokenize"),
        Kind.LOCKS: Work("sync", "futex", 0, 30, caller="Shard.locked"),
        Kind.MEMORY: Work("io", "page fault", 0, 50, caller="tokenize"),
        Kind.STOPPED: Work("sched", "stopped", 0, 50, detail="job control", caller="tokenize"),
        Kind.GPU: Work("gpu", "kernels", 0),
        Kind.SYSTEM: Work("python", "tokenize", 0, 50, native="kernel"),
    }
    job = Job(ranks=1, noise=0.0, spread=0.0, stalls=0.0, extra={0: [(work, 0.05) for work in works.values()]})
    found = seconds_of(check(budget_of(gather(build(job)))))
    for kind in works:
        assert found[kind] == pytest.approx(0.05, rel=0.15), kind  # running time is sampled
    assert Kind.WAITING not in found and user.name == "train"


@pytest.mark.parametrize(
    ("for_what", "faults", "word"),
    [
        ("page fault", 1e6, "new pages"),
        ("page fault", 10.0, "interrupts"),
        ("munmap", 10.0, "munmap"),
        ("write", 1e6, "write"),
    ],
)
def test_the_kernels_part_of_a_function_is_told_apart_with_what_it_was_for(
    for_what: str, faults: float, word: str
) -> None:
    work = Work("python", "fill", 0, 60, native="kernel", kernel=(0.75, for_what))
    job = Job(ranks=2, noise=0.0, spread=0.0, stalls=0.0, extra={rank: [(work, 0.08)] for rank in range(2)})
    job.counters = [{"rank": rank, "name": "memory.minor_faults", "value": faults} for rank in range(2)]
    budget = check(budget_of(gather(build(job))))
    (part,) = [part for part in budget.parts if part.kind is Kind.SYSTEM]
    assert part.seconds == pytest.approx(0.06, rel=0.15)
    assert part.items[0].what == word and part.items[0].function is not None and part.items[0].function.name == "fill"
    python = next(part for part in budget.parts if part.kind is Kind.PYTHON)
    (rest,) = [item for item in python.items if item.function is not None and item.function.name == "fill"]
    assert rest.seconds == pytest.approx(0.02, rel=0.15)


def test_the_time_on_the_gpu_is_told_by_kernel_and_place() -> None:
    kernels = Work("gpu", "kernels", 0, 0, file="", frames=())
    job = Job(ranks=2, noise=0.0, spread=0.0, stalls=0.0, extra={rank: [(kernels, 0.2)] for rank in range(2)})
    functions = [("gemm<float>", "forward", 18, 0.6), ("gemm<float>", "backward", 30, 0.3), ("adam", "step", 40, 0.1)]
    windows = [builders.with_gpu_functions(window, functions) for window in build(job)]
    budget = check(budget_of(gather(windows)))
    (part,) = [part for part in budget.parts if part.kind is Kind.GPU]
    assert part.seconds == pytest.approx(0.2, rel=0.01)
    told = [(item.what, item.function.name if item.function else "", item.seconds) for item in part.items]
    assert [each[:2] for each in told] == [
        ("gemm<float> (by launches)", "forward"), ("gemm<float> (by launches)", "backward"), ("adam (by launches)", "step"),
    ]  # fmt: skip
    assert [each[2] for each in told] == pytest.approx([0.12, 0.06, 0.02], rel=0.02)
    assert "train.py:18 forward: gemm<float> (by launches)" in line_of(budget)


def test_who_ran_instead_is_named_with_its_part_of_the_queue() -> None:
    budget = check(budget_of(gather(build(builders.hogged(3, 0.08)))))
    queue = next(part for part in budget.parts if part.kind is Kind.QUEUE)
    assert queue.items[0].what == "behind compress-logs (2 processes)"
    assert [item.what for item in queue.items[1:]] == ["behind other ranks of the job"]


def test_what_nobody_timed_is_told_as_that() -> None:
    fleet = gather(build(Job(noise=0.0, spread=0.0, stalls=0.0)))
    table = fleet.patterns
    seen = table.name.codes != table.name.code("augment")
    fleet = replace(fleet, patterns=replace(table, per_step_s=np.where(seen, table.per_step_s, 0.0)))
    budget = check(budget_of(fleet))
    assert seconds_of(budget)[Kind.UNKNOWN] == pytest.approx(0.04, rel=0.2)
    assert "% not timed" in line_of(budget)


def test_the_json_has_the_budget_with_functions() -> None:
    found = json.loads(to_json(diagnose(build(builders.slow_python(3, 0.08)))))["budget"]
    assert found["of"] == "step" and found["ranks"] == 8 and len(found["by_rank"]) == 8
    assert sum(part["share"] for part in found["parts"]) == pytest.approx(1, abs=1e-3)
    assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(found["seconds"], abs=1e-5)
    functions = [item["function"] for part in found["parts"] for item in part["items"] if item["function"]]
    assert {"kind": "python", "name": "augment", "file": builders.TRAIN, "line": 56} in functions


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_whole_percents_add_up(values: list[float]) -> None:
    found = whole_percents(values)
    assert sum(found) == (100 if sum(values) > 0 else 0)
    assert all(
        abs(each - 100 * value / sum(values)) < 1 for each, value in zip(found, values, strict=True) if sum(values) > 0
    )


@pytest.fixture(scope="module")
def recorded() -> Iterator[list[tuple[str, list[Path]]]]:
    """Every second case of some archives of the corpus, with the folders of its windows."""
    with opened([HOME / f"{name}{SUFFIX}" for name in SAMPLE]) as corpus:
        yield [(case.key, corpus.windows(case)) for case in corpus.cases[::2]]


def test_budgets_of_recorded_windows_add_up(recorded: list[tuple[str, list[Path]]]) -> None:
    assert len(recorded) >= 60
    for key, places in recorded:
        budget = budget_of(gather([read_window(place) for place in places]))
        if budget is None:
            continue
        try:
            check(budget)
        except AssertionError as error:
            raise AssertionError(key) from error
