"""Rows of the CUDA runtime (libcudart) and of the CUDA driver (libcuda).

Wheels name the runtime libcudart.so.12 or, where it was vendored by auditwheel,
libcudart-HASH.so.12: hence the prefix without its suffix. Libraries with the runtime linked in are
seen only at the driver. A replayed CUDA graph is seen as cudaGraphLaunch alone: neither its copies
and kernels nor its collectives are called again. Argument positions: CUDA Runtime API and CUDA
Driver API reference, 12.x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankscope.probes.calls.copies import BY_ADDRESS, DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE
from rankscope.probes.calls.row import ALLOCATE, GPU_WAIT, LAUNCH, MEMORY, POLL, CallRow

RUNTIME, DRIVER = "libcudart", "libcuda.so"

# An asynchronous copy from pageable memory blocks; one that returns within 20 µs has not blocked (a
# call alone takes 2-10 µs).
_BRIEF_NS = 20_000
# Polls and allocations matter as sums; a long one means that something holds the driver's lock.
_LONG_NS = 1_000_000


def _runtime(symbol: str, role: str, argument: int = 0, **more: Any) -> CallRow:
    """Build the row of a CUDA runtime function. `argument`: the recorded one's position, 0: none; `more`: other fields."""
    return CallRow(RUNTIME, symbol, symbol, role, argument, whole=True, family="cuda", **more)


def _driver(symbol: str, role: str, argument: int = 0, **more: Any) -> CallRow:
    """Build the row of a CUDA driver function. `argument`: the recorded one's position, 0: none; `more`: other fields."""
    return CallRow(DRIVER, symbol, symbol, role, argument, whole=True, family="cuda", **more)


_RUNTIME_ROWS = (
    _runtime("cudaStreamSynchronize", GPU_WAIT, object=1),
    _runtime("cudaDeviceSynchronize", GPU_WAIT),
    _runtime("cudaEventSynchronize", GPU_WAIT, object=1),
    _runtime("cudaStreamQuery", POLL, object=1, shortest_ns=_LONG_NS),
    _runtime("cudaEventQuery", POLL, object=1, shortest_ns=_LONG_NS),
    _runtime("cudaMemcpy", MEMORY, 3, direction=4, shortest_ns=_BRIEF_NS),
    _runtime("cudaMemcpyAsync", MEMORY, 3, direction=4, object=5, shortest_ns=_BRIEF_NS),
    _runtime("cudaMemcpy2D", MEMORY, 5, second=6, direction=7, shortest_ns=_BRIEF_NS),
    _runtime("cudaMemcpy2DAsync", MEMORY, 5, second=6, direction=7, object=8, shortest_ns=_BRIEF_NS),
    _runtime("cudaMemcpyPeer", MEMORY, 5, towards=DEVICE_TO_DEVICE, shortest_ns=_BRIEF_NS),
    _runtime("cudaMemcpyPeerAsync", MEMORY, 5, towards=DEVICE_TO_DEVICE, object=6, shortest_ns=_BRIEF_NS),
    _runtime("cudaMalloc", ALLOCATE, 2, shortest_ns=_LONG_NS),
    _runtime("cudaFree", ALLOCATE, shortest_ns=_LONG_NS),
    _runtime("cudaHostAlloc", ALLOCATE, 2, shortest_ns=_LONG_NS),
    _runtime("cudaFreeHost", ALLOCATE, shortest_ns=_LONG_NS),
    _runtime("cudaLaunchKernel", LAUNCH, 1),
    _runtime("cudaLaunchKernelExC", LAUNCH, 2),
    _runtime("__cudaLaunchKernel", LAUNCH, 1),  # what CUDA 13 compiles of kernel<<<…>>>: of a handle, no function
    _runtime("cudaGraphLaunch", LAUNCH),
)
_DRIVER_ROWS = (
    _driver("cuStreamSynchronize", GPU_WAIT, object=1),
    _driver("cuCtxSynchronize", GPU_WAIT),
    _driver("cuEventSynchronize", GPU_WAIT, object=1),
    _driver("cuStreamQuery", POLL, object=1, shortest_ns=_LONG_NS),
    _driver("cuEventQuery", POLL, object=1, shortest_ns=_LONG_NS),
    _driver("cuMemcpy", MEMORY, 3, towards=BY_ADDRESS, shortest_ns=_BRIEF_NS),
    _driver("cuMemcpyAsync", MEMORY, 3, towards=BY_ADDRESS, object=4, shortest_ns=_BRIEF_NS),
    _driver("cuMemcpyHtoD", MEMORY, 3, towards=HOST_TO_DEVICE, shortest_ns=_BRIEF_NS),
    _driver("cuMemcpyHtoDAsync", MEMORY, 3, towards=HOST_TO_DEVICE, object=4, shortest_ns=_BRIEF_NS),
    _driver("cuMemcpyDtoH", MEMORY, 3, towards=DEVICE_TO_HOST, shortest_ns=_BRIEF_NS),
    _driver("cuMemcpyDtoHAsync", MEMORY, 3, towards=DEVICE_TO_HOST, object=4, shortest_ns=_BRIEF_NS),
    _driver("cuMemcpyDtoD", MEMORY, 3, towards=DEVICE_TO_DEVICE, shortest_ns=_BRIEF_NS),
    _driver("cuMemcpyDtoDAsync", MEMORY, 3, towards=DEVICE_TO_DEVICE, object=4, shortest_ns=_BRIEF_NS),
    _driver("cuMemcpyPeerAsync", MEMORY, 5, towards=DEVICE_TO_DEVICE, object=6, shortest_ns=_BRIEF_NS),
    _driver("cuMemAlloc", ALLOCATE, 2, shortest_ns=_LONG_NS),
    _driver("cuMemFree", ALLOCATE, shortest_ns=_LONG_NS),
    _driver("cuLaunchKernel", LAUNCH, 1),
    _driver("cuLaunchKernelEx", LAUNCH, 2),
    _driver("cuGraphLaunch", LAUNCH),
)

CUDA_ROWS: tuple[CallRow, ...] = (*_RUNTIME_ROWS, *_DRIVER_ROWS)


def runtime_launch_rows(table: Sequence[CallRow]) -> frozenset[int]:
    """Return the numbers of all launch rows but those of the CUDA driver.

    A launch by the CUDA runtime ends in a call of a driver row: both count the same kernel.
    """
    return frozenset(
        index for index, row in enumerate(table) if row.role == LAUNCH and not row.library.startswith(DRIVER)
    )
