"""GPM: the performance monitors of Hopper and later GPUs, averaged between two samples of the driver.

In: pynvml and a device handle. Out: GpmReading. Needs no CUPTI, clashes with no profiler, and costs the job nothing: the
counters run anyway. Two samples per GPU take turns, so that each reading is the mean since the one before.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import time
from typing import Any, NamedTuple

import numpy as np

_MIB = float(1 << 20)
# nvml.h, NVML_GPM_METRIC_*: percentages, then MiB per second.
METRICS = {
    "kernel_active": (1, 0.01), "sm_active": (2, 0.01), "tensor_active": (5, 0.01), "dram_active": (10, 0.01),
    "pcie_tx_hz": (20, _MIB), "pcie_rx_hz": (21, _MIB), "nvlink_rx_hz": (60, _MIB), "nvlink_tx_hz": (61, _MIB),
    "sm_occupancy": (3, 0.01),
}  # fmt: skip
_VERSION = 1
_METRIC = np.dtype([("id", "<u4"), ("error", "<u4"), ("value", "<f8"), ("info", "V24")])
_NO_ERRORS = bytes(4 * len(METRICS))


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
        self._library, self._handle = library, handle
        self._samples = [library.nvmlGpmSampleAlloc() for _ in range(2)]
        # One request for each order of the two samples: nothing is built anew at a reading.
        self._requests = [_Request(library, *self._samples[::-1]), _Request(library, *self._samples)]
        self._latest = 0
        self._since_ns = 0

    def read(self) -> GpmReading | None:
        """The means since the last call; None on the first one. Raises what the library raises (the GPU is lost, say)."""
        now = time.monotonic_ns()
        self._library.nvmlGpmSampleGet(self._handle, self._samples[1 - self._latest])
        self._latest = 1 - self._latest
        before, self._since_ns = self._since_ns, now
        if not before:
            return None
        request = self._requests[self._latest]
        self._library.nvmlGpmMetricsGet(request.structure)
        return GpmReading(now, now - before, *request.answer())

    def close(self) -> None:
        """Frees the samples. Never raises."""
        for sample in self._samples:
            with contextlib.suppress(Exception):
                self._library.nvmlGpmSampleFree(sample)
        self._samples = []


class _Request:
    """Asks for the means from one sample to another."""

    def __init__(self, library: Any, before: Any, after: Any) -> None:
        self.structure = library.c_nvmlGpmMetricsGet_t()
        self.structure.version = _VERSION
        self.structure.numMetrics = len(METRICS)
        self.structure.sample1, self.structure.sample2 = before, after
        rows = np.frombuffer(self.structure, _METRIC, len(METRICS), type(self.structure).metrics.offset)
        rows["id"] = [number for number, _ in METRICS.values()]
        self._errors, self._values = rows["error"], rows["value"]
        self._factors = np.array([factor for _, factor in METRICS.values()])

    def answer(self) -> list[float]:
        values = self._values * self._factors
        if self._errors.tobytes() != _NO_ERRORS:
            values[self._errors != 0] = math.nan
        found: list[float] = values.tolist()
        return found


def open_gpm(library: Any, handle: Any) -> Gpm | None:
    """The GPU's monitors; None where it, its driver or the library has none (A100 and older, MIG). Never raises."""
    try:
        if not library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        return Gpm(library, handle)
    except (Exception, ctypes.ArgumentError):
        return None
