"""GPM: performance monitors of Hopper and later GPUs, as means between two samples of the driver.

In: pynvml and a device handle. Out: GpmSample while sampling, GpmReading afterwards (parsing all at
once costs a tenth). Needs no CUPTI, clashes with no profiler, and costs the job nothing: the
counters run anyway. Samples lie in a ring, and their metrics are computed several at a time: one by
one, each would find the caches cold and cost ten times as much.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rankscope.probes.gpu.nvml_calls import prepared

_MIB = float(1 << 20)
# nvml.h, NVML_GPM_METRIC_*: percentages, then MiB per second.
METRICS = {
    "kernel_active": (1, 0.01), "sm_active": (2, 0.01), "tensor_active": (5, 0.01), "dram_active": (10, 0.01),
    "pcie_tx_hz": (20, _MIB), "pcie_rx_hz": (21, _MIB), "nvlink_rx_hz": (60, _MIB), "nvlink_tx_hz": (61, _MIB),
    "sm_occupancy": (3, 0.01),
}  # fmt: skip
_VERSION = 1
_METRIC = np.dtype([("id", "<u4"), ("error", "<u4"), ("value", "<f8"), ("info", "V24")])
_FACTORS = np.array([factor for _, factor in METRICS.values()])


@dataclass(slots=True)
class GpmSample:
    """A sample of the `interval_ns` that ended at `time_ns` (CLOCK_MONOTONIC).

    `metrics`: raw bytes of the driver's metrics, empty until computed.
    """

    time_ns: int
    interval_ns: int
    metrics: bytes = b""


class GpmReading(NamedTuple):
    """Means over the `interval_ns` that ended at `time_ns` (CLOCK_MONOTONIC).

    Shares 0..1, rates in bytes per second; NaN where the GPU does not measure it. sm_active is the
    share of SMs with a warp, averaged; sm_occupancy the share of warps.
    """

    time_ns: int
    interval_ns: int
    kernel_active: float
    sm_active: float
    tensor_active: float
    dram_active: float
    pcie_tx_hz: float
    pcie_rx_hz: float
    nvlink_rx_hz: float
    nvlink_tx_hz: float
    sm_occupancy: float


class Gpm:
    """The monitors of one GPU. Made by `open_gpm`; `close` frees its samples."""

    def __init__(self, library: Any, handle: Any, together: int = 5) -> None:
        """Create the ring; metrics are computed for `together` samples at once.

        Raises the library's errors, and AttributeError where it is too old for GPM.
        """
        self._library = library
        self._ring = [library.nvmlGpmSampleAlloc() for _ in range(together + 1)]
        # Calls are prepared once, so that a reading builds nothing.
        self._take = [prepared(library, "nvmlGpmSampleGet", handle, sample) for sample in self._ring]
        self._request = library.c_nvmlGpmMetricsGet_t()
        self._request.version, self._request.numMetrics = _VERSION, len(METRICS)
        metrics = type(self._request).metrics.offset
        rows = np.frombuffer(self._request, _METRIC, len(METRICS), metrics)
        rows["id"] = [number for number, _ in METRICS.values()]
        self._answer = memoryview(self._request).cast("B")[metrics : metrics + rows.nbytes]
        self._ask = prepared(library, "nvmlGpmMetricsGet", ctypes.byref(self._request))
        self._waiting: list[tuple[int, GpmSample]] = []
        self._place = 0
        self._since_ns = 0

    def sample(self) -> GpmSample | None:
        """Take a sample of the time since the last call; None on the first one.

        Its metrics are computed later, several at a time or by `fill`. Raises the library's errors (the
        GPU is lost, say).
        """
        now = time.monotonic_ns()
        place = (self._place + 1) % len(self._ring)
        self._take[place]()
        self._place, before, self._since_ns = place, self._since_ns, now
        if not before:
            return None
        sample = GpmSample(now, now - before)
        self._waiting.append((place, sample))
        if len(self._waiting) == len(self._ring) - 1:
            self.fill()
        return sample

    def fill(self) -> None:
        """Compute the metrics of the samples that have none yet.

        Raises the library's errors; the metrics of those samples remain empty.
        """
        waiting, self._waiting = self._waiting, []
        for place, sample in waiting:
            self._request.sample1, self._request.sample2 = self._ring[place - 1], self._ring[place]
            self._ask()
            sample.metrics = self._answer.tobytes()

    def close(self) -> None:
        """Free the samples. Never raises."""
        for sample in self._ring:
            with contextlib.suppress(Exception):
                self._library.nvmlGpmSampleFree(sample)
        self._ring, self._waiting = [], []


def readings_of(samples: Sequence[GpmSample]) -> list[GpmReading]:
    """Parse samples into readings, in their order; NaN where a metric has an error.

    All samples must have their metrics (see `Gpm.fill`); else ValueError.
    """
    rows = np.frombuffer(b"".join(sample.metrics for sample in samples), _METRIC).reshape(len(samples), len(METRICS))
    values = np.where(rows["error"] == 0, rows["value"] * _FACTORS, np.nan).tolist()
    return [GpmReading(sample.time_ns, sample.interval_ns, *row) for sample, row in zip(samples, values, strict=True)]


def open_gpm(library: Any, handle: Any) -> Gpm | None:
    """Open the GPU's monitors; None where it, its driver or the library has none (A100 and older, MIG).

    Never raises.
    """
    try:
        if not library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        return Gpm(library, handle)
    except (Exception, ctypes.ArgumentError):
        return None
