"""The library functions whose calls are timed. A new library is a new row here, and nothing else.

`role` says what the time in the call means:
  collective  the operation itself runs in this call, on whichever thread: entering to leaving is the *stay*
  wait        the calling thread waits here for collectives that run elsewhere
  backward    a backward pass; a marker of the step
  gc          a garbage collection of the interpreter; its address is not found by name (unwinder/gc.py)
`symbol` is a prefix of the exported name: what follows it (argument types) changes between releases.
`argument` picks what is kept of the call: 0 nothing, n the n-th argument as an integer (a count of bytes or elements).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallRow:
    """One timed function."""

    library: str  # prefix of the file name that a process must map; '' where addresses come from elsewhere
    symbol: str
    name: str
    role: str
    argument: int = 0


def _gloo(name: str) -> CallRow:
    return CallRow("libtorch_cpu.so", f"_ZN4gloo{len(name)}{name}E", name, "collective")


CALL_TABLE: tuple[CallRow, ...] = (
    *(
        _gloo(name)
        for name in (
            "allreduce", "allgather", "allgatherv", "broadcast", "reduce", "barrier", "gather", "scatter", "alltoall", "alltoallv",
        )
    ),
    CallRow("libtorch_cpu.so", "_ZN4c10d4Work4waitE", "wait", "wait"),
    CallRow("libtorch_cpu.so", "_ZN4c10d16ProcessGroupGloo8SendWork4waitE", "send", "wait"),
    CallRow("libtorch_cpu.so", "_ZN4c10d16ProcessGroupGloo8RecvWork4waitE", "recv", "wait"),
    CallRow("libtorch_cpu.so", "_ZN4c10d7Reducer17finalize_backwardE", "finalize_backward", "wait"),
    CallRow("libtorch_cpu.so", "_ZN5torch8autograd6Engine7executeE", "backward", "backward"),
    CallRow("", "", "gc", "gc"),
)  # fmt: skip
