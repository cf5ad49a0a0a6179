"""All ranks are held by equal CPU quotas: nobody is odd, and the kernel's counters tell it without a baseline."""

from __future__ import annotations

from typing import Any

import builders
import numpy as np
import pytest
from builders import Job, build

from rankscope.diagnose.infer.model.replay import scattered_s
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict

RANKS = 5


def limited(seconds: float, who: range = range(RANKS), counted: bool = True, **more: Any) -> Job:
    """A job in which the quotas of `who` take `seconds` from each of their steps."""
    job = Job(ranks=RANKS, steps=37, extra={rank: [(builders.THROTTLED, seconds)] for rank in who}, **more)
    job.ranks_columns = {rank: {"cpus": "0-7"} for rank in range(RANKS)}  # one for each
    if counted:
        job.counters += [
            {"scope": "cgroup", "rank": rank, "instance": f"/pod/rank{rank}", "name": "cpu.throttled_s", "limit": 0.5,
             "value": seconds * job.steps if rank in who else 0.0}
            for rank in range(RANKS)
        ]  # fmt: skip
    return job


def verdict_on(job: Job, baseline: Job | None = None) -> Verdict:
    return diagnose(build(job), build(baseline) if baseline is not None else ())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("seconds", [0.03, 0.11])
def test_the_quotas_of_all_are_named_with_what_they_cost(seconds: float, seed: int) -> None:
    (suspect,) = verdict_on(limited(seconds, seed=seed)).suspects
    assert (suspect.component, suspect.cause, suspect.ranks) == ("cpu", "quota", tuple(range(RANKS)))
    assert suspect.lost_seconds_per_step == pytest.approx(seconds, rel=0.2)


def test_with_a_baseline_it_is_the_quotas_and_not_the_code() -> None:
    (suspect,) = verdict_on(limited(0.07), Job(ranks=RANKS, steps=37)).suspects
    assert (suspect.cause, suspect.ranks) == ("quota", tuple(range(RANKS)))


def test_quotas_that_cost_a_twentieth_of_a_step_are_nobodys_problem() -> None:
    verdict = verdict_on(limited(0.005))
    assert (verdict.status, verdict.suspects) == ("healthy", ())


def test_time_in_the_run_queue_that_no_kernel_counted_as_throttled_is_no_quota() -> None:
    assert verdict_on(limited(0.07, counted=False)).suspects == ()


def test_one_rank_that_runs_into_its_quota_is_named_alone() -> None:
    (suspect,) = verdict_on(limited(0.07, range(2, 3))).suspects
    assert (suspect.cause, suspect.ranks) == ("quota", (2,))


def test_who_needs_most_under_equal_quotas_is_not_named_alone() -> None:
    job = limited(0.03)
    job.extra[2] = [(builders.THROTTLED, 0.07)]
    next(each for each in job.counters if each["rank"] == 2)["value"] = 0.07 * job.steps
    first = verdict_on(job).suspects[0]
    assert (first.cause, first.ranks) == ("quota", tuple(range(RANKS)))


def test_a_slow_function_is_named_beside_quotas_of_all() -> None:
    job = limited(0.03)
    job.extra[3] = [*job.extra[3], (builders.BUSY, 0.06)]
    first = verdict_on(job).suspects[0]
    assert (first.component, first.ranks) == ("python", (3,))


def test_ranks_that_quotas_keep_apart_would_stand_behind_each_other_without_them() -> None:
    """As four ranks on two cores did in six programs: held at different moments, each found a CPU free."""
    alone, crowded = limited(0.25, noise=0.02), limited(0.25, noise=0.02)
    crowded.ranks_columns = {rank: {"cpus": "0-3"} for rank in range(RANKS)}
    (with_enough,), (with_few,) = verdict_on(alone).suspects, verdict_on(crowded).suspects
    running_s = sum(work.seconds for work in builders.STEP if work.kind == "python" and work.detail != "sleep")
    behind_s = running_s * (RANKS - 4) / 4 - sum(work.seconds for work in builders.STEP if work.kind == "sched")
    less_s = with_enough.lost_seconds_per_step - with_few.lost_seconds_per_step
    assert behind_s > 0.02 and less_s == pytest.approx(behind_s, rel=0.25)


def test_who_is_held_at_moments_of_its_own_is_waited_for_in_a_collective_of_its_own() -> None:
    # Two ranks, held in one piece: half of the times in the same one of two collectives.
    taken = np.array([[0.05] * 10, [0.03] * 10])
    assert scattered_s(taken, 1) == 0.0
    assert scattered_s(taken, 2) == pytest.approx(0.03 / 2)
    assert scattered_s(taken, 1000) == pytest.approx(0.03, rel=0.01)
    assert scattered_s(taken[:1], 4) == 0.0 and scattered_s(np.zeros((0, 0)), 4) == 0.0
