"""The GPU lab as scripts/lab runs it: its faults, its jobs, its table of effects."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence

from labkit.cases import Bench, Case, Result
from labkit.gpu.faults import ALL
from labkit.gpu.launch import PER_HOST, RANKS, GpuJob, GpuPlan
from labkit.gpu.step_times import GpuPace
from labkit.launch import Plan

# In one seed of this many the job waits for its GPU only in each SYNC_EVERY-th step, and queues work ahead in between.
ASYNCHRONOUS_SEED = 3
SYNC_EVERY = 3
WANTED = 0.95
CASES_PER_JOB = 10
_COLUMNS = {"host": (5, 4), "copy": (5, 5), "gpu": (5, 5), "peers": (6, 4), "exch": (5, 5)}


def plan_of(case: Case) -> GpuPlan:
    """Eight ranks on two hosts unless the fault wants fewer; by the seed, how often the job waits for its GPU."""
    # Slow Python that runs while kernels are queued delays nobody. It would be no fault, so it is no case.
    hidden = case.fault == "python-slow"
    rare = case.seed % ASYNCHRONOUS_SEED == 0 and not hidden
    lone = random.Random(f"plan {case.fault} {case.seed}").randrange(RANKS)
    plan = GpuPlan(ranks=RANKS, hosts=RANKS // PER_HOST, lone=lone, sync_every=SYNC_EVERY if rare else 1)
    wanted = ALL[case.fault].plan(plan, case.dose, random.Random(f"plan {case.fault} {case.seed}"))
    assert isinstance(wanted, GpuPlan)
    return wanted


def _start(plan: Plan, seed: int) -> GpuJob:
    assert isinstance(plan, GpuPlan)
    return GpuJob(plan, seed)


def effect_table(results: Sequence[Result]) -> Iterator[str]:
    """What each fault did to the job, by the job's own clock and CUDA events (means, ms)."""
    pairs = "".join(f"{name:>{wide}}{'→':>{narrow}}" for name, (wide, narrow) in _COLUMNS.items())
    yield f"{'fault':<14}{'seed':>4}{'step':>5}{'→':>5} |{pairs}"
    for result in results:
        before, after, truth = result.before, result.after, result.truth
        start = f"{result.case.fault:<14}{result.case.seed:>4}"
        if not isinstance(before, GpuPace) or truth is None:
            yield f"{start}  {result.said.splitlines()[0]}"
            continue
        line = f"{start}{before.step_s * 1e3:>5.0f}"
        if not isinstance(after, GpuPace):
            yield f"{line}  no step ends any more"
            continue
        line += f"{after.step_s * 1e3:>5.0f} |"
        victims = truth.ranks or (0,)
        peers = [rank for rank in range(len(before.host_s)) if rank not in victims] or victims
        figures = (
            (before.host_s, after.host_s, victims),
            (before.copy_s, after.copy_s, victims),
            (before.compute_s, after.compute_s, victims),
            (before.compute_s, after.compute_s, peers),
            (before.exchange_s, after.exchange_s, peers),
        )
        for (old, new, ranks), (wide, narrow) in zip(figures, _COLUMNS.values(), strict=True):
            line += f"{_mean_ms(old, ranks):>{wide}.0f}{_mean_ms(new, ranks):>{narrow}.0f}"
        yield line
    yield ""
    yield "host, copy, gpu: the victim's Python with an idle GPU, its copy, its forward and backward kernels;"
    yield "peers, exch: the kernels of the others, and how long the gradients' exchange keeps them waiting."


def _mean_ms(seconds: Sequence[float], ranks: Sequence[int]) -> float:
    return 1e3 * statistics.fmean(seconds[rank] for rank in ranks)


GPU = Bench(ALL, plan_of, _start, WANTED, effect_table, CASES_PER_JOB, kept_in="gpu")
