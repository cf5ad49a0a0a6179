"""The library functions whose calls are timed. A new library is a new row, here or in its family's file.

Fields and roles: row.py. A row's number is its index here: events and maps refer to it.
"""

from __future__ import annotations

from rankscope.probes.calls.row import BACKWARD, COLLECTIVE, GC, UPDATE, WAIT, CallRow
from rankscope.probes.calls.rows_collectives import COLLECTIVE_ROWS
from rankscope.probes.calls.rows_cpu import CPU_COLLECTIVE_ROWS
from rankscope.probes.calls.rows_cuda import CUDA_ROWS
from rankscope.probes.calls.rows_others import OTHER_ACCELERATOR_ROWS

__all__ = ["CALL_TABLE", "UPDATE", "CallRow"]


def _gloo(name: str) -> CallRow:
    """Build the row of a collective of gloo, a C++ function of that name in libtorch_cpu.so."""
    return CallRow("libtorch_cpu.so", f"_ZN4gloo{len(name)}{name}E", name, COLLECTIVE, family="gloo")


CALL_TABLE: tuple[CallRow, ...] = (
    *(
        _gloo(name)
        for name in (
            "allreduce", "allgather", "allgatherv", "broadcast", "reduce", "barrier", "gather", "scatter", "alltoall", "alltoallv",
        )
    ),
    CallRow(
        "libtorch_cpu.so", "_ZN4c10d4Work4waitE", "wait", WAIT, family="gloo",
        # where Work was a part of ProcessGroup, according to the source; not run
        formerly=("_ZN4c10d12ProcessGroup4Work4waitE",),
    ),
    CallRow("libtorch_cpu.so", "_ZN4c10d16ProcessGroupGloo8SendWork4waitE", "send", WAIT, family="gloo"),
    CallRow("libtorch_cpu.so", "_ZN4c10d16ProcessGroupGloo8RecvWork4waitE", "recv", WAIT, family="gloo"),
    CallRow("libtorch_cpu.so", "_ZN4c10d7Reducer17finalize_backwardE", UPDATE, WAIT, family="gloo"),
    CallRow("libtorch_cpu.so", "_ZN5torch8autograd6Engine7executeE", "backward", BACKWARD, family="torch"),
    CallRow("", "", "gc", GC, family="python"),
    *COLLECTIVE_ROWS,
    *CUDA_ROWS,
    *OTHER_ACCELERATOR_ROWS,
    *CPU_COLLECTIVE_ROWS,
)  # fmt: skip
