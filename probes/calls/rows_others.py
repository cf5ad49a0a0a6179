"""Rows of the runtimes of other accelerators: HIP (AMD), ACL (Ascend). Not tried on hardware by us.

Their copy directions are numbered as CUDA's (hipMemcpyKind, aclrtMemcpyKind). Argument positions:
HIP runtime API reference 6.x, AscendCL acl_rt.h.
"""

from __future__ import annotations

from typing import Any

from rankscope.probes.calls.row import GPU_WAIT, LAUNCH, MEMORY, CallRow

_BRIEF_NS = 20_000


def _hip(symbol: str, role: str, argument: int = 0, **more: Any) -> CallRow:
    """Build the row of a HIP (AMD) function. `argument`: position of the recorded one, 0: none; `more`: other fields."""
    return CallRow("libamdhip64.so", symbol, symbol, role, argument, whole=True, family="hip", **more)


def _ascend(symbol: str, role: str, argument: int = 0, **more: Any) -> CallRow:
    """Build the row of an Ascend function. `argument`: position of the recorded one, 0: none; `more`: other fields."""
    return CallRow("libascendcl.so", symbol, symbol, role, argument, whole=True, family="ascend", **more)


OTHER_ACCELERATOR_ROWS: tuple[CallRow, ...] = (
    _hip("hipStreamSynchronize", GPU_WAIT, object=1),
    _hip("hipDeviceSynchronize", GPU_WAIT),
    _hip("hipEventSynchronize", GPU_WAIT, object=1),
    _hip("hipMemcpy", MEMORY, 3, direction=4, shortest_ns=_BRIEF_NS),
    _hip("hipMemcpyAsync", MEMORY, 3, direction=4, object=5, shortest_ns=_BRIEF_NS),
    _hip("hipMemcpyWithStream", MEMORY, 3, direction=4, object=5, shortest_ns=_BRIEF_NS),
    _hip("hipLaunchKernel", LAUNCH),
    _hip("hipModuleLaunchKernel", LAUNCH),
    _hip("hipGraphLaunch", LAUNCH),
    _ascend("aclrtSynchronizeStream", GPU_WAIT, object=1),
    _ascend("aclrtSynchronizeDevice", GPU_WAIT),
    _ascend("aclrtSynchronizeEvent", GPU_WAIT, object=1),
    _ascend("aclrtMemcpy", MEMORY, 4, direction=5, shortest_ns=_BRIEF_NS),
    _ascend("aclrtMemcpyAsync", MEMORY, 4, direction=5, object=6, shortest_ns=_BRIEF_NS),
)
