"""Build the rows of a rank's GPU time for the table `patterns`; copies by their traffic. Pure. See overlay.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rankscope.observer.gpu import overlay
from rankscope.observer.gpu.levels import Shares
from rankscope.observer.gpu.overlay import GpuTime, per_step
from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import timeline
from rankscope.observer.thread.functions import FunctionKey
from rankscope.observer.thread.patterns import MeasuredPattern
from rankscope.observer.thread.resource_use import Use
from rankscope.observer.thread.samples import Words
from rankscope.observer.thread.step_times import StepTimes
from rankscope.observer.thread.timeline import Timeline
from rankscope.observer.window.schema import KERNELS
from rankscope.probes.base.arrays import Floats, Ints

TO_DEVICE, TO_HOST = "host to device", "device to host"


@dataclass(frozen=True, slots=True)
class GpuView:
    """GPU data of one rank.

    `moved`: bytes of its collectives by operation; `pcie_limit_hz`: limit of its link, bytes/s, 0
    unknown; `use`: utilisation of the resource that its collectives run over.
    """

    shares: Shares
    moved: Mapping[FunctionKey, int] = field(default_factory=dict)
    pcie_limit_hz: float = 0.0
    use: Use | None = None
    resource: str = "nic"

    @classmethod
    def unseen(cls, moved: Mapping[FunctionKey, int]) -> GpuView:
        """Build the view of a rank whose GPU reports nothing, while its peers' do; `moved`: bytes by collective."""
        nothing = np.empty(0)
        return cls(Shares(*(nothing,) * 8), moved)

    @property
    def seen(self) -> bool:
        """Whether the GPU reported anything."""
        return len(self.shares.start_s) > 0


def lay_over(line: Timeline, labels: Words, shares: Shares) -> tuple[Timeline, Words, GpuTime]:
    """Lay the GPU's shares over a timeline; name waits that turn out to be copies, and count their bytes.

    `labels`: the timeline's names, to which a new scope is added for each wait and direction of copies.
    See overlay.overlay.
    """
    line, time = overlay.overlay(line, shares)
    functions, moved, index = list(labels.device), labels.device_bytes.tolist(), line.device.copy()
    new: dict[tuple[int, str], int] = {}
    counted: set[int] = set()
    at = overlay.interval_of(shares, (line.start_s + line.end_s) / 2)
    for segment in np.flatnonzero(line.kind == timeline.COPY):
        scope, interval = int(line.device[segment]), int(at[segment])
        if labels.device[scope].kind == "memory":
            continue
        rate = overlay.copied_hz(shares, interval)
        key = (scope, TO_DEVICE if rate >= 0 else TO_HOST)
        if key not in new:
            new[key] = len(functions)
            functions.append(FunctionKey("memory", key[1], detail=labels.device[scope].name, resource="pcie"))
            moved.append(0)
        index[segment] = new[key]
        if interval not in counted:
            counted.add(interval)
            moved[new[key]] += int(abs(rate) * (shares.end_s[interval] - shares.start_s[interval]))
    labels = replace(labels, device=functions, device_bytes=np.array(moved, dtype=np.int64))
    return replace(line, device=index), labels, time


def add_gpu(
    host: tuple[MeasuredPattern, ...],
    times: StepTimes,
    line: Timeline,
    time: GpuTime,
    view: GpuView,
    steps: FoundSteps,
    window_s: float,
) -> tuple[tuple[MeasuredPattern, ...], StepTimes]:
    """Add the GPU's rows and times to the host's; copies get μ = bytes / (seconds · link limit)."""
    limit_hz = view.pcie_limit_hz
    rows = [
        replace(row, mu=min(row.bytes / (row.total_s * limit_hz), 1.0))
        if row.function.kind == "memory" and row.bytes and row.total_s > 0 and limit_hz > 0
        else row
        for row in host
    ]
    rows += _gpu_patterns(line, time, view, steps, window_s)
    return tuple(rows), overlay.step_times(line, time, times, steps)


def _gpu_patterns(
    line: Timeline, time: GpuTime, view: GpuView, steps: FoundSteps, window_s: float
) -> tuple[MeasuredPattern, ...]:
    """Build rows of GPU time: `kernels`, and its collectives by operation, in proportion to their bytes.

    One activity of such a row is the time in one step. μ and σ of the kernels: of SM per kernel
    activity, over intervals that are at least 0.8 computing, weighted with the time computing. Those of
    collectives are the links' (hardware_rows.py).
    """
    at = steps.index((line.start_s + line.end_s) / 2)
    found = []
    use = _computing_use(view.shares)
    kernels = FunctionKey("gpu", KERNELS, resource="gpu")
    total = _pattern(kernels, time.compute_s, at, steps.count, window_s, 0, 1.0)
    if total is not None:
        found.append(replace(total, mu=use[0], sigma=use[1]) if use else total)
    whole = sum(view.moved.values())
    named = view.moved or {FunctionKey("collective", "collective", detail="gpu", resource="nic"): 0}
    for function, amount in named.items():
        part = amount / whole if whole else 1.0 / len(named)
        row = _pattern(
            replace(function, resource=view.resource), time.collective_s, at, steps.count, window_s, amount, part
        )
        if row is not None:
            found.append(replace(row, mu=view.use.mu, sigma=view.use.sigma) if view.use else row)
    return tuple(found)


def _pattern(
    function: FunctionKey, seconds: Floats, at: Ints, count: int, window_s: float, moved: int, part: float
) -> MeasuredPattern | None:
    """Build a row from the share `part` of the `seconds` in each segment; None if that is no time.

    `at`: the segment's step, -1 for none; `count`: number of steps; `moved`: bytes of the row.
    """
    total = float(seconds.sum()) * part
    if total <= 0:
        return None
    sums = per_step(seconds, at, count) * part
    outside = total - float(sums.sum())
    activities = np.append(sums, outside) if outside > 1e-6 * total or not count else sums
    activities = activities[activities > 0]
    return MeasuredPattern(
        function,
        beta=total / window_s,
        mu=None,
        sigma=None,
        count=len(activities),
        total_s=total,
        p50_s=float(np.quantile(activities, 0.5)),
        p99_s=float(np.quantile(activities, 0.99)),
        max_s=float(activities.max()),
        per_step_s=float(sums.mean()) if count else None,
        per_step_sd_s=float(sums.std()) if count else None,
        bytes=moved,
    )


def _computing_use(shares: Shares) -> tuple[float, float] | None:
    """Return mean and standard deviation of SM use by kernels, in intervals that mostly compute; None without any."""
    busy = shares.compute + shares.collective
    with np.errstate(invalid="ignore"):
        chosen = np.isfinite(shares.activity) & (busy >= 0.2) & (shares.compute >= 0.8 * busy)
    if not chosen.any():
        return None
    use = shares.activity[chosen]
    weight = (shares.compute * (shares.end_s - shares.start_s))[chosen]
    mu = float(np.average(use, weights=weight))
    return mu, float(np.sqrt(np.average((use - mu) ** 2, weights=weight)))
