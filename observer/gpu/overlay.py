"""Combine GPU shares with the training thread's timeline into the critical path of a rank. Pure.

The host enqueues and runs ahead, so mostly two things happen at once, and DESIGN.md defines which
one counts: gpu > memory > collective > python. Each segment of the host's timeline is cut at the
edges of the GPU's sample intervals; of a segment that lies in an interval with shares (c, n, idle)
of levels.py

    share    the part in which the GPU was idle: only this is on the critical path of the host
    compute  (1 − share) · c/(c + n) of it        collective  (1 − share) · n/(c + n) of it

Samples are means over 100 ms, a host's segments far shorter, so the idle part within an interval is
inferred. A thread that waits for its GPU proves it busy; when the wait ends the queue is empty, and
the GPU idles until the host feeds it. So the idle time of an interval is assigned

1. to host segments after the return from a wait for the GPU, soonest first; in an interval without such a return,
   oldest first, or newest first where the GPU is idler after the interval than before it;
2. the rest, to waits for the GPU: a copy where the PCIe traffic is enough for one, else the latency of the host.

Then   own(step) = compute + idle − idle inside a collective of the host       wait(step) =
collective + that A rank with slow Python: idle grows, its peers sit in collectives. A rank with a
slow GPU: compute grows. A step of which more than `MOST_UNKNOWN` is not covered by samples is not
measured (NaN).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rankscope.observer.gpu.levels import Shares
from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import timeline
from rankscope.observer.thread.step_times import StepTimes
from rankscope.observer.thread.timeline import Timeline
from rankscope.probes.base.arrays import Bools, Floats, Ints

MOST_UNKNOWN = 0.2
COPY_LEAST_HZ = 1e9  # slower than any copy between host and GPU that matters to a step


@dataclass(frozen=True, slots=True)
class GpuTime:
    """Seconds per segment of a timeline: computing, in collectives, unknown."""

    compute_s: Floats
    collective_s: Floats
    unknown_s: Floats


def overlay(line: Timeline, shares: Shares) -> tuple[Timeline, GpuTime]:
    """Set the timeline's `share`, and return the GPU's time per segment.

    The timeline must be cut at the intervals' edges. A wait for the GPU during whose idle part data
    moved becomes a copy.
    """
    length = line.lengths
    at = interval_of(shares, (line.start_s + line.end_s) / 2)
    idle = shares.idle[at]
    known = np.isfinite(idle) & (at >= 0)
    waiting = line.kind == timeline.GPU_WAIT
    since_return = _since_return(line, waiting)
    share, kind = np.zeros(len(length)), line.kind.copy()
    positions = np.flatnonzero(known)
    for mine in np.split(positions, np.flatnonzero(np.diff(at[positions])) + 1) if len(positions) else ():
        interval = int(at[mine[0]])
        left = float(shares.idle[interval] * length[mine].sum())
        host, held = mine[~waiting[mine]], mine[waiting[mine]]
        order = since_return[host]
        if len(host) and order.min() > 0 and _drains(shares, interval):
            order = -order
        host = host[np.argsort(order, kind="stable")]
        given = np.clip(left - (np.cumsum(length[host]) - length[host]), 0.0, length[host])
        share[host] = given / length[host]
        left -= float(given.sum())
        if left > 1e-9 and len(held):
            share[held] = min(left / float(length[held].sum()), 1.0)
            if abs(copied_hz(shares, interval)) * float(length[mine].sum()) >= COPY_LEAST_HZ * left:
                kind[held] = timeline.COPY
    busy = length * (1.0 - share)
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(known, shares.compute[at] / (shares.compute[at] + shares.collective[at]), 0.0)
    part = np.nan_to_num(part)
    any_busy = known & (idle < 1.0)
    return (
        replace(line, kind=kind, share=np.where(known, share, 0.0)),
        GpuTime(np.where(any_busy, busy * part, 0.0), np.where(any_busy, busy * (1 - part), 0.0), np.where(known, 0.0, length)),
    )  # fmt: skip


def interval_of(shares: Shares, times: Floats) -> Ints:
    """Return the index of the sample interval that contains each time, -1 for none."""
    at = np.searchsorted(shares.start_s, times, side="right") - 1
    return np.where((at >= 0) & (times < shares.end_s[np.maximum(at, 0)]), at, -1).astype(np.int64)


def _since_return(line: Timeline, waiting: Bools) -> Floats:
    """Return seconds since the thread last returned from a wait for the GPU; since the timeline's
    start before the first.
    """
    back = np.where(waiting, line.end_s, line.start_s[0] if len(line.start_s) else 0.0)
    return line.start_s - np.maximum.accumulate(back)


def _drains(shares: Shares, interval: int) -> bool:
    """Tell whether the GPU idles more in the sample interval after this one than in the one before it."""
    before = shares.idle[interval - 1] if interval > 0 else np.nan
    after = shares.idle[interval + 1] if interval + 1 < len(shares.idle) else np.nan
    return bool(np.nan_to_num(before) < np.nan_to_num(after))


def copied_hz(shares: Shares, interval: int) -> float:
    """Return the bytes/s that a copy can have moved, positive to the device.

    The difference of both directions, since network cards' traffic for a ring of GPUs is symmetric.
    """
    return float(np.nan_to_num(shares.pcie_rx_hz[interval]) - np.nan_to_num(shares.pcie_tx_hz[interval]))


def step_times(line: Timeline, time: GpuTime, times: StepTimes, steps: FoundSteps) -> StepTimes:
    """Add the GPU's time in collectives to the wait of each step in `times`, and subtract it from its own time.

    `times`: those of the host's credited timeline. Time without samples is taken to be like the rest of
    its step; a step with too much of it is NaN.
    """
    at = steps.index((line.start_s + line.end_s) / 2)
    unknown = per_step(time.unknown_s, at, steps.count)
    collective = per_step(time.collective_s, at, steps.count)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = times.seconds / (times.seconds - unknown)
    scale = np.where(unknown <= MOST_UNKNOWN * times.seconds, scale, np.nan)
    wait = np.minimum((times.wait_s + collective) * scale, times.seconds)
    return replace(times, wait_s=wait, own_s=times.seconds - wait)


def unmeasured(times: StepTimes) -> StepTimes:
    """Set the own time of all steps to NaN: this rank's GPU reports nothing, while its peers' do."""
    return replace(times, own_s=np.full(len(times.own_s), np.nan))


def per_step(seconds: Floats, at: Ints, count: int) -> Floats:
    """Sum seconds by step; segments outside (−1) are left out."""
    inside = at >= 0
    sums: Floats = np.bincount(at[inside], seconds[inside], minlength=count)[:count].astype(np.float64)
    return sums
