"""Measure patterns from a thread's timeline: for each function (β, μ, σ) with count, tails, seconds per step.

Definitions, for a function f on one thread in a window of W seconds with steps 1…n:

total   T_f = Σ durations of its activities. Waits are measured to the microsecond. Running time is exact
        as a whole (between switch-in and switch-out) and divided by samples: T_f = T_cpu · N_f / N, unbiased whatever
        the length of the function, with a relative error of 1/√N_f.
β       T_f / W for the training thread (its timeline is the critical path where no GPU is seen), 0 for other threads
μ, σ    of the utilisation of f's resource. For CPU, per step k: u_k = cpu_fk / (cpu_fk + ready_fk), the share of its
        running time it was given; μ = Σ cpu / Σ (cpu + ready), σ = standard deviation of u_k. A sleeping function: 0.
p50…    over activities: for running functions, runs of consecutive samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import timeline
from rankscope.observer.thread.activities import Activities
from rankscope.observer.thread.functions import FunctionKey
from rankscope.observer.thread.running import add_running
from rankscope.observer.thread.samples import Samples, Words
from rankscope.observer.thread.timeline import Absences, Timeline
from rankscope.observer.thread.waits import add_waits
from rankscope.probes.base.arrays import Floats

_THIRD_LEAST = 5  # steps
MIN_SHARE = 0.0005  # stacks below this share of the window are grouped by their leaf only


@dataclass(frozen=True, slots=True)
class MeasuredPattern:
    """One row of the pattern table, without rank and thread."""

    function: FunctionKey
    beta: float
    mu: float | None
    sigma: float | None
    count: int
    total_s: float
    p50_s: float
    p99_s: float
    max_s: float
    per_step_s: float | None
    per_step_sd_s: float | None
    bytes: int
    native: str = ""
    native_share: float | None = None
    kernel_share: float | None = None
    kernel_for: str = ""
    growth_s: float | None = None


def measure_thread(
    window_s: float,
    line: Timeline,
    absences: Absences,
    samples: Samples,
    words: Words,
    steps: FoundSteps,
    *,
    hz: float,
    throttled_s: float = 0.0,
    on_critical_path: bool = True,
) -> tuple[MeasuredPattern, ...]:
    """Measure all patterns of one thread, largest first. `throttled_s`: seconds that the CPU quota
    throttled the rank.
    """
    found = activities_of(line, absences, samples, words, steps, hz=hz, throttled_s=throttled_s)
    return measure(window_s, found, steps, on_critical_path=on_critical_path)


def activities_of(
    line: Timeline, absences: Absences, samples: Samples, words: Words, steps: FoundSteps, *, hz: float, throttled_s: float
) -> dict[FunctionKey, Activities]:  # fmt: skip
    """Group one thread's activities by function with its whole stack: waits, and running time divided by samples."""
    found: dict[FunctionKey, Activities] = {}
    add_waits(found, line, absences, samples, words, steps, hz, throttled_s)
    cpu_s = float(line.seconds[line.kind == timeline.CPU].sum())
    add_running(found, line, samples, words, steps, cpu_s, hz)
    return found


def measure(
    window_s: float, activities: Mapping[FunctionKey, Activities], steps: FoundSteps, *, on_critical_path: bool = True
) -> tuple[MeasuredPattern, ...]:
    """Measure the patterns of these activities, largest first."""
    found = _merge_small(activities, window_s * MIN_SHARE)
    utilisations = _cpu_utilisations(found, steps.count)
    measured = [
        _measure(function, activities, steps.count, window_s if on_critical_path else None, utilisations)
        for function, activities in found.items()
    ]
    return tuple(sorted(measured, key=lambda pattern: -pattern.total_s))


def _merge_small(whole: Mapping[FunctionKey, Activities], least_s: float) -> dict[FunctionKey, Activities]:
    """Merge functions with less than `least_s` seconds over their callers: they lose their stacks."""
    found: dict[FunctionKey, Activities] = {}
    for function, activities in whole.items():
        small = function.stack and activities.total_s < least_s
        found.setdefault(function.without_stack() if small else function, Activities()).take(activities)
    return found


_Leaf = tuple[str, str, int]


def _cpu_utilisations(found: Mapping[FunctionKey, Activities], count: int) -> dict[_Leaf, tuple[float, float]]:
    """Compute μ and σ of the CPU for each Python function that ran, over all callers.

    One function at a time, to limit memory: all functions in all steps would be too many numbers.
    """
    cpu: dict[_Leaf, list[Activities]] = {}
    ready: dict[_Leaf, list[Activities]] = {}
    for function, activities in found.items():
        if function.kind == "python" and not function.detail:
            cpu.setdefault((function.name, function.file, function.line), []).append(activities)
        elif function.kind == "sched" and function.name == "ready":
            ready.setdefault((function.caller, function.file, function.line), []).append(activities)
    return {
        leaf: _cpu_utilisation(_together_s(mine, count), _together_s(ready.get(leaf, ()), count))
        for leaf, mine in cpu.items()
    }


def _together_s(activities: Sequence[Activities], count: int) -> Floats:
    """Sum the seconds of these activities in each of `count` steps; the last is the total, also outside steps."""
    together = np.zeros(count + 1)
    for each in activities:
        together[:-1] += each.per_step(count)
        together[-1] += each.total_s
    return together


def _cpu_utilisation(ran: Floats, waited: Floats) -> tuple[float, float]:
    """Return μ and σ of the CPU: the share of the time ready to run in which it ran, over all and over steps.

    `ran`, `waited`: seconds in each step, the total last. (1.0, 0.0) where both are 0.
    """
    mu = float(ran[-1] / (ran[-1] + waited[-1])) if ran[-1] + waited[-1] > 0 else 1.0
    both = ran[:-1] + waited[:-1]
    shares = ran[:-1][both > 0] / both[both > 0]
    return mu, float(shares.std()) if len(shares) else 0.0


def _measure(
    function: FunctionKey,
    activities: Activities,
    count: int,
    critical_window_s: float | None,
    utilisations: Mapping[_Leaf, tuple[float, float]],
) -> MeasuredPattern:
    """Compute the row of one function.

    `count`: number of steps. `critical_window_s`: length of the window if the thread is on the
    critical path, else None (β is 0). `utilisations`: μ and σ of the CPU by Python function.
    """
    durations = np.concatenate(activities.durations)
    total = float(durations.sum())
    per_step = activities.per_step(count) if count else None
    p50_s, p99_s = np.quantile(durations, (0.5, 0.99)).tolist()  # at once: a call of it takes longer than what it finds
    mu = sigma = None
    if function.kind == "python":
        mu, sigma = 0.0, 0.0
        if function.detail == "gc":
            mu = 1.0
        elif not function.detail:
            mu, sigma = utilisations[function.name, function.file, function.line]
    samples = activities.native.total()
    ((native, in_native),) = activities.native.most_common(1) or [("", 0)]
    return MeasuredPattern(
        function,
        beta=total / critical_window_s if critical_window_s else 0.0,
        mu=mu,
        sigma=sigma,
        count=len(durations),
        total_s=total,
        p50_s=p50_s,
        p99_s=p99_s,
        max_s=float(durations.max()),
        per_step_s=float(per_step.mean()) if per_step is not None else None,
        per_step_sd_s=float(per_step.std()) if per_step is not None else None,
        bytes=activities.bytes,
        native=native,
        native_share=in_native / samples if samples else None,
        kernel_share=activities.kernel.total() / samples if samples else None,
        growth_s=_growth_s(per_step) if per_step is not None else None,
        kernel_for=activities.kernel.most_common(1)[0][0] if activities.kernel else "",
    )


def _growth_s(per_step: Floats) -> float | None:
    """Return the mean seconds per step in the last third of the steps less that in the first; None below 15 steps."""
    third = len(per_step) // 3
    return float(per_step[-third:].mean() - per_step[:third].mean()) if third >= _THIRD_LEAST else None
