"""Running activities: the running time of a timeline, divided among functions by samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import functions, timeline
from rankscope.observer.thread.activities import Activities
from rankscope.observer.thread.functions import NO_STACK, FunctionKey
from rankscope.observer.thread.samples import Samples, Words
from rankscope.observer.thread.syscalls import of_sample
from rankscope.observer.thread.timeline import Timeline
from rankscope.probes.base.arrays import Bools

_RUN_GAP = 2.5  # samples further apart than this many periods of running time are two activities


def add_running(
    found: dict[FunctionKey, Activities],
    line: Timeline,
    samples: Samples,
    words: Words,
    steps: FoundSteps,
    cpu_s: float,
    hz: float,
) -> None:
    """Divide `cpu_s` seconds of running among the sampled functions; runs of equal samples are
    activities.
    """
    if cpu_s <= 0 or not len(line.start_s):
        return
    at = np.searchsorted(line.start_s, samples.time_s, side="right") - 1
    running = (at >= 0) & (line.kind[np.maximum(at, 0)] == timeline.CPU)
    if line.share is not None:
        running &= line.share[np.maximum(at, 0)] > 0
    times, stacks = samples.time_s[running], samples.stack[running]
    if not len(times):
        found.setdefault(functions.python(NO_STACK), Activities()).add(np.array([cpu_s]), np.array([-1]))
        return
    shares = np.ones(len(times)) if line.share is None else line.share[at[running]]
    weight = cpu_s / float(shares.sum())
    distinct, which = np.unique(stacks, return_inverse=True)
    named = [functions.python(words.stack(int(identity))) for identity in distinct]
    numbers: dict[FunctionKey, int] = {}
    row_of_stack = np.array([numbers.setdefault(function, len(numbers)) for function in named])
    row_of_sample = row_of_stack[which]
    step = steps.index(times)
    new_run = np.ones(len(times), dtype=bool)
    new_run[1:] = (np.diff(row_of_sample) != 0) | (np.diff(times) > _RUN_GAP / hz) | (np.diff(step) != 0)
    run = np.cumsum(new_run) - 1
    lengths = np.bincount(run, shares) * weight
    first = np.flatnonzero(new_run)
    natives, kernel = _natives(samples, running, words)
    for function, number in numbers.items():
        mine = row_of_sample[first] == number
        activities = found.setdefault(function, Activities())
        activities.add(lengths[mine], step[first[mine]])
        activities.native.update(natives[row_of_sample == number].tolist())
        activities.kernel.update(filter(None, kernel[row_of_sample == number].tolist()))


def _natives(samples: Samples, running: Bools, words: Words) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.object_]]:
    """Return the native function of each running sample, '' if unknown, and what the kernel did
    for it, '' outside.
    """
    if samples.native is None:
        nothing = np.full(int(running.sum()), "", dtype=object)
        return nothing, nothing
    places, which = np.unique(samples.native[running], return_inverse=True)
    named = [(words.native.get(int(place), ""), of_sample(int(place))) for place in places] or [("", "")]
    found = np.array(named, dtype=object)[which]
    return found[:, 0], found[:, 1]
