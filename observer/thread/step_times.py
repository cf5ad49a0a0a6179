"""Sum the classes of a timeline over each step, for the table `steps`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import timeline
from rankscope.observer.thread.timeline import Timeline
from rankscope.probes.base.arrays import Floats


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations by class per complete step, each an array of n steps, in seconds."""

    start_s: Floats
    seconds: Floats
    own_s: Floats
    wait_s: Floats
    io_s: Floats
    sched_s: Floats
    sync_s: Floats


def step_times(line: Timeline, steps: FoundSteps) -> StepTimes:
    """Sum the classes of DESIGN.md over each complete step."""
    at = steps.index((line.start_s + line.end_s) / 2)
    inside = at >= 0

    def total(*kinds: int) -> Floats:
        """Return the seconds of each step in these classes together."""
        chosen = inside & np.isin(line.kind, kinds)
        sums: Floats = np.bincount(at[chosen], line.seconds[chosen], minlength=steps.count)[: steps.count].astype(
            np.float64
        )
        return sums

    seconds = np.diff(steps.edge_s) if steps.count else np.empty(0)
    # Where GPU activity is seen, a wait for the GPU counts as own time while the GPU is idle: then
    # no other rank is waited for.
    wait = total(timeline.COLLECTIVE, *((timeline.GPU_WAIT,) if line.share is None else ()))
    return StepTimes(
        steps.edge_s[:-1], seconds, np.maximum(seconds - wait, 0), wait,
        total(timeline.IO), total(timeline.SCHED), total(timeline.SYNC),
    )  # fmt: skip
