"""A made-up data-parallel job on GPUs with known answers: what each GPU does, what its host does, and NVML's view of it.

Each step of each rank: Python (its GPU idle), kernels, a collective that ends for all at once; the host enqueues in 10 ms and
waits for its GPU until the end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rankscope.observer.gpu.levels import Series, Shares, combine, find_levels, find_shares
from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import timeline
from rankscope.observer.thread.functions import FunctionKey, StackName
from rankscope.observer.thread.samples import Samples, Words
from rankscope.observer.thread.timeline import Absences, Scopes, Timeline

LAUNCH_S, TRANSFER_S, OPTIMIZER_S = 0.01, 0.06, 0.02
SM_COMPUTING, SM_COLLECTIVE, TENSOR = 0.9, 0.12, 0.6
INTERVAL_S = 0.1
PYTHON = StackName("prepare", "train.py", 20)
STACKS = {1: PYTHON}


@dataclass(frozen=True)
class Rank:
    """`states`: (until, state) of its GPU, state one of idle, compute, collective. `waits`: its host's waits for the GPU."""

    states: list[tuple[float, str]]
    waits: list[tuple[float, float]]
    edges: list[float]
    own_s: float
    collective_s: float


def job(
    python_s: list[float], compute_s: list[float], window_s: float, seed: int = 1, jitter: float = 0.02
) -> list[Rank]:
    rng = np.random.default_rng(seed)
    ranks = [Rank([], [], [0.0], 0.0, 0.0) for _ in python_s]
    now, steps = 0.0, 0
    while now < window_s + 2:
        works = [
            (python * rng.normal(1, jitter), compute * rng.normal(1, jitter))
            for python, compute in zip(python_s, compute_s, strict=True)
        ]
        end = now + max(python + compute for python, compute in works) + TRANSFER_S
        for rank, (python, compute) in zip(ranks, works, strict=True):
            rank.states.append((now + python, "idle"))
            rank.states.append((now + python + compute, "compute"))
            rank.states.append((end, "collective"))
            rank.states.append((end + OPTIMIZER_S, "compute"))
            rank.waits.append((now + python + LAUNCH_S, end + OPTIMIZER_S))
            rank.edges.append(end + OPTIMIZER_S)
        now, steps = end + OPTIMIZER_S, steps + 1
    return [
        replace(rank, own_s=python + compute + OPTIMIZER_S)
        for rank, python, compute in zip(ranks, python_s, compute_s, strict=True)
    ]


def series_of(
    rank: Rank,
    window_s: float,
    noise: float = 0.0,
    gpm: bool = True,
    seed: int = 0,
    phase_s: float = 0.03,
    smooth_s: float = 0.0,
) -> Series:
    """Exact means of every interval, with noise on top."""
    rng = np.random.default_rng(seed)
    edges = np.arange(phase_s - INTERVAL_S, window_s + INTERVAL_S, INTERVAL_S)
    until = np.array([0.0, *(time for time, _ in rank.states)])
    shares = {}
    for state in ("compute", "collective"):
        inside = np.array([one == state for _, one in rank.states])
        reached = np.concatenate(([0.0], np.cumsum(np.where(inside, np.diff(until), 0.0))))
        shares[state] = np.diff(np.interp(edges, until, reached)) / INTERVAL_S
    compute, collective = shares["compute"], shares["collective"]
    size = len(compute)
    sm = SM_COMPUTING * compute + SM_COLLECTIVE * collective
    power = (0.7 * compute + 0.1 * collective) * (1 + rng.normal(0, noise, size))
    if smooth_s > 0:  # as the driver averages it
        power = np.convolve(power, np.ones(round(smooth_s / INTERVAL_S)) * INTERVAL_S / smooth_s, "same")
    unknown = np.full(size, np.nan)
    return Series(
        edges[:-1],
        edges[1:],
        np.clip(compute + collective + rng.normal(0, noise, size), 0, 1),
        np.clip(sm + rng.normal(0, noise, size), 0, 1) if gpm else unknown,
        np.clip(TENSOR * compute + rng.normal(0, noise, size), 0, 1) if gpm else unknown,
        unknown if gpm else power,
        np.zeros(size),
        np.zeros(size),
    )


def shares_of(series: list[Series]) -> list[Shares]:
    levels = find_levels(series)
    return [
        find_shares(combine([one]), levels, levels.own[at] if levels.own else None) for at, one in enumerate(series)
    ]


def host_line(
    rank: Rank, window_s: float, shares: Shares | None
) -> tuple[Timeline, Absences, Samples, Words, FoundSteps]:
    """The host's timeline: running Python between its waits for the GPU, sampled at 99 Hz."""
    waits = [wait for wait in rank.waits if wait[0] < window_s]
    start, end = np.array([wait[0] for wait in waits]), np.minimum(np.array([wait[1] for wait in waits]), window_s)
    edges = np.array([edge for edge in rank.edges if edge <= window_s])
    steps = FoundSteps(edges, 1)
    nothing = np.empty(0)
    absences = Absences(nothing, nothing, nothing, *(np.empty(0, dtype=np.int64),) * 3, np.empty(0, dtype=np.uint64))
    line = timeline.build(
        window_s, absences, timeline.NO_SCOPES, timeline.NO_SCOPES, file_kinds=np.empty(0, dtype=np.int64),
        edges_s=edges if shares is None else np.concatenate((edges, shares.start_s, shares.end_s)),
        device=Scopes(start, end, np.arange(len(start))), device_kinds=np.full(len(start), timeline.GPU_WAIT),
    )  # fmt: skip
    at = np.arange(0.003, window_s, 1 / 99)
    waiting = np.array([any(a <= time < b for a, b in zip(start, end, strict=True)) for time in at])
    samples = Samples(at[~waiting], np.ones(int((~waiting).sum()), dtype=np.uint64))
    functions = [FunctionKey("sync", "gpu", detail="cudaStreamSynchronize")] * len(start)
    labels = Words(
        STACKS, [], [], np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64),
        device=functions, device_bytes=np.zeros(len(start), dtype=np.int64),
    )  # fmt: skip
    return line, absences, samples, labels, steps
