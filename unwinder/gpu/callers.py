"""Find which kernel a launch is for by the function that launches it. Pure.

What CUDA 13 compiles asks the runtime once for the handle of a kernel, `__cudaGetKernel(&handle, host
function)`, and launches `__cudaLaunchKernel(handle, …)`. Both calls are in one function. Mostly it is
written for one kernel; where compilers merged several into one, the handle that was loaded last
before the launch says which.

In: what the function refers to (x86.py), and the host functions of all kernels. Out: one of these.
"""

from __future__ import annotations

import numpy as np

from rankscope.probes.base.arrays import Bools, Ints
from rankscope.unwinder.gpu.x86 import References


def launched_kernel(found: References, kernels: Ints, at: int) -> int | None:
    """Return the host function of the kernel launched before byte `at` of a function; None if unclear.

    It is the only one that `found` refers to; of several, the one whose handle is loaded last before
    `at`. `kernels`: host functions, sorted.
    """
    places, constants = found.constants
    is_kernel = contained(kernels, constants)
    referred = np.unique(constants[is_kernel])
    if len(referred) < 2:
        return int(referred[0]) if len(referred) else None
    handles = np.intersect1d(constants, found.loads[1])
    loads = found.loads[1][(found.loads[0] < at) & contained(handles, found.loads[1])]
    if not len(loads):
        return None
    asked = places[constants == loads[-1]]
    calls = found.calls[0]
    for kernel_at, kernel in zip(places[is_kernel], constants[is_kernel], strict=True):
        if np.any(np.searchsorted(calls, asked) == np.searchsorted(calls, kernel_at)):
            return int(kernel)
    return None


def contained(wanted: Ints, values: Ints) -> Bools:
    """Return a mask of the values that are in `wanted`, which is sorted."""
    if not len(wanted):
        return np.zeros(len(values), dtype=bool)
    near = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
    found: Bools = wanted[near] == values
    return found
