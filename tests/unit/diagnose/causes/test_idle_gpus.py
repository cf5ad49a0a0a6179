"""A GPU that idles because its host launches kernel by kernel, or waits for it inside the step."""

from __future__ import annotations

from typing import Any

import pytest
from builders import TRAIN, Job, Work, build, with_gpu_functions, with_gpu_waits

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict

STEPS = 100
LAUNCHES = Work("python", "run_layers", 0, 20)
KERNELS = Work("gpu", "kernels", 0, 0, file="", frames=())
PLACES = [("gemm<float>", "run_layers", 20, 0.8), ("norm", "run_layers", 20, 0.2)]


def verdict_of(
    launching_s: float,
    ranks: int = 4,
    waits: float = 1,
    waiting_s: float = 0.0,
    idle_s: float = 1.0,
    place: str = "run_layers",
    **more: Any,
) -> Verdict:
    """A job on GPUs whose hosts launch for so long in each step while the GPUs idle."""
    works = [(LAUNCHES, launching_s), (KERNELS, 0.1)]
    job = Job(ranks=ranks, steps=STEPS, extra=dict.fromkeys(range(ranks), works), **more)
    job.counters = [{"rank": rank, "name": "gpu.idle_s", "value": idle_s * STEPS} for rank in range(ranks)]
    job.counters += [{"rank": rank, "name": "gpu.launches", "value": 3000.0 * STEPS} for rank in range(ranks)]
    functions = [(kernel, place, line, share) for kernel, _, line, share in PLACES]
    windows = [with_gpu_waits(with_gpu_functions(one, functions), "item", 30, waits, waiting_s) for one in build(job)]
    return diagnose(windows)


def only(verdict: Verdict) -> Suspect:
    assert verdict.status == "inefficient", (verdict.status, verdict.suspects, verdict.notes)
    (suspect,) = verdict.suspects
    assert suspect.waste and suspect.function is not None
    return suspect


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_host_that_launches_one_by_one_and_never_waits_keeps_its_gpu_idle(ranks: int) -> None:
    suspect = only(verdict_of(0.12, ranks))
    assert (suspect.component, suspect.cause, suspect.scope) == ("gpu", "launch-bound", "all" if ranks > 1 else "rank")
    assert (suspect.function.name, suspect.function.file) == ("run_layers", TRAIN)  # type: ignore[union-attr]
    assert suspect.lost_seconds_per_step == pytest.approx(0.12, rel=0.15)
    assert ("kernels launched in each step, at least", 3000.0) in [(one.measure, one.value) for one in suspect.evidence]


def test_no_more_is_lost_than_the_gpu_idles() -> None:
    assert only(verdict_of(0.12, idle_s=0.06)).lost_seconds_per_step == pytest.approx(0.06, rel=0.15)


@pytest.mark.parametrize(("waits", "gained"), [(8, 7 / 8), (2, 1 / 2)])
def test_a_host_that_waits_inside_the_step_is_told_where(waits: int, gained: float) -> None:
    suspect = only(verdict_of(0.12, waits=waits, waiting_s=0.2))
    assert (suspect.component, suspect.cause) == ("gpu", "synchronised")
    assert suspect.function is not None and suspect.function.name == "item"
    assert suspect.lost_seconds_per_step == pytest.approx(0.12 * gained, rel=0.15)


def test_waits_that_hide_little_are_not_why_it_idles() -> None:
    assert only(verdict_of(0.12, waits=8, waiting_s=0.01)).cause == "launch-bound"


@pytest.mark.parametrize("how", [{"idle_s": 0.0}, {"place": "elsewhere"}, {"launching_s": 0.005}])
def test_without_idle_gpus_or_launches_there_computing_is_no_waste(how: dict[str, Any]) -> None:
    assert verdict_of(**{"launching_s": 0.12, **how}).status == "healthy"
