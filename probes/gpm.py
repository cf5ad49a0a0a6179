"""GPM: the performance monitors of Hopper and later GPUs, averaged between two samples of the driver.

In: pynvml and a device handle. Out: GpmSample while it is taken, GpmReading afterwards (all parsed at once costs a tenth). Needs
no CUPTI, clashes with no profiler, and costs the job nothing: the counters run anyway. Two samples per GPU take turns, so that
each reading is the mean since the one before.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from probes.nvml_calls import prepared

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


class GpmSample(NamedTuple):
    """What the driver said of the `interval_ns` that ended at `time_ns` (CLOCK_MONOTONIC): its metrics as they lie in memory."""

    time_ns: int
    interval_ns: int
    metrics: bytes


class GpmReading(NamedTuple):
    """Means over the `interval_ns` that ended at `time_ns` (CLOCK_MONOTONIC). Shares 0..1, rates in bytes per second; NaN
    where the GPU does not measure it. sm_active is the share of SMs with a warp, averaged; sm_occupancy the share of warps."""

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
    """The monitors of one GPU. Made by `open_gpm`; `close` gives the samples back."""

    def __init__(self, library: Any, handle: Any) -> None:
        """Raises what the library raises, and AttributeError where it is too old to know GPM."""
        self._library = library
        self._samples = [library.nvmlGpmSampleAlloc() for _ in range(2)]
        # For each order of the two samples: nothing is built anew at a reading.
        self._take = [prepared(library, "nvmlGpmSampleGet", handle, sample) for sample in self._samples]
        self._requests = [_request(library, *self._samples[::-1]), _request(library, *self._samples)]
        self._answer = [
            prepared(library, "nvmlGpmMetricsGet", ctypes.byref(structure)) for structure, _ in self._requests
        ]
        self._latest = 0
        self._since_ns = 0

    def sample(self) -> GpmSample | None:
        """The means since the last call; None on the first one. Raises what the library raises (the GPU is lost, say)."""
        now = time.monotonic_ns()
        latest = self._latest = 1 - self._latest
        self._take[latest]()
        before, self._since_ns = self._since_ns, now
        if not before:
            return None
        self._answer[latest]()
        return GpmSample(now, now - before, self._requests[latest][1].tobytes())

    def close(self) -> None:
        """Frees the samples. Never raises."""
        for sample in self._samples:
            with contextlib.suppress(Exception):
                self._library.nvmlGpmSampleFree(sample)
        self._samples = []


def _request(library: Any, before: Any, after: Any) -> tuple[Any, memoryview]:
    """Asks for the means from one sample to another; with where the answer will lie."""
    structure = library.c_nvmlGpmMetricsGet_t()
    structure.version = _VERSION
    structure.numMetrics = len(METRICS)
    structure.sample1, structure.sample2 = before, after
    offset = type(structure).metrics.offset
    np.frombuffer(structure, _METRIC, len(METRICS), offset)["id"] = [number for number, _ in METRICS.values()]
    return structure, memoryview(structure).cast("B")[offset : offset + len(METRICS) * _METRIC.itemsize]


def readings_of(samples: Sequence[GpmSample]) -> list[GpmReading]:
    """What the samples say, in their order."""
    rows = np.frombuffer(b"".join(sample.metrics for sample in samples), _METRIC).reshape(len(samples), len(METRICS))
    values = np.where(rows["error"] == 0, rows["value"] * _FACTORS, np.nan).tolist()
    return [GpmReading(sample.time_ns, sample.interval_ns, *row) for sample, row in zip(samples, values, strict=True)]


def open_gpm(library: Any, handle: Any) -> Gpm | None:
    """The GPU's monitors; None where it, its driver or the library has none (A100 and older, MIG). Never raises."""
    try:
        if not library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        return Gpm(library, handle)
    except (Exception, ctypes.ArgumentError):
        return None
