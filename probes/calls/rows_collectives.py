"""Rows of the collective libraries of accelerators (NCCL, RCCL, HCCL) and of MPI.

Argument positions are those of the C prototypes: NCCL src/nccl.h.in, RCCL the same, HCCL hccl.h, MPI-4.1 appendix A.
NCCL may be linked into libtorch_cuda.so itself, which then exports its functions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rankscope.probes.calls.row import COLLECTIVE, ENQUEUE, GROUP, WAIT, CallRow

_NCCL_HOMES = (
    "libnccl-",
    "librccl.so",
    "libtorch_cuda.so",
    "libtorch_hip.so",
)  # libnccl-HASH.so.2, as auditwheel names it


def _nccl(symbol: str, name: str, count: int, datatype: int, communicator: int, **more: Any) -> CallRow:
    """Build the row of a NCCL or RCCL collective, reported as `name`.

    `count`, `datatype`, `communicator`: positions of these arguments, 0 for none; `more`: other fields.
    """
    return CallRow(
        "libnccl.so", symbol, name, ENQUEUE, count, whole=True, elsewhere=_NCCL_HOMES, family="nccl",
        datatype=datatype, object=communicator, **more,
    )  # fmt: skip


def _nccl_group(symbol: str) -> CallRow:
    """Build the row of a NCCL or RCCL function that ends a group of collectives."""
    return CallRow("libnccl.so", symbol, "group", GROUP, whole=True, elsewhere=_NCCL_HOMES, family="nccl")


def _hccl(symbol: str, name: str, count: int, datatype: int, communicator: int, **more: Any) -> CallRow:
    """Build the row of a HCCL (Ascend) collective, reported as `name`.

    `count`, `datatype`, `communicator`: positions of these arguments, 0 for none; `more`: other fields.
    """
    return CallRow(
        "libhccl.so", symbol, name, ENQUEUE, count, whole=True, family="hccl",
        datatype=datatype, object=communicator, **more,
    )  # fmt: skip


def _mpi(
    symbol: str, name: str, count: int, datatype: int, communicator: int, role: str = COLLECTIVE, large: bool = False
) -> tuple[CallRow, ...]:
    """Build the rows of an MPI function: with int counts, and, if it has it, with large counts (MPI-4).

    mpi4py prefers the latter where available (symbol `…_c`); it exists where there is a datatype argument, or
    `large` says so. `count`, `datatype`, `communicator`: positions of these arguments, 0 for none.
    """
    narrow = CallRow(
        "libmpi.so", symbol, name, role, count, whole=True, elsewhere=("libmpich.so", "libmpi_cray.so"), family="mpi",
        handle=datatype, object=communicator, int_count=True,
    )  # fmt: skip
    return (narrow, replace(narrow, symbol=f"{symbol}_c", int_count=False)) if datatype or large else (narrow,)


_NCCL_ROWS = (
    _nccl("ncclAllReduce", "allreduce", 3, 4, 6, operation=5),
    _nccl("ncclReduceScatter", "reduce_scatter", 3, 4, 6, operation=5),
    _nccl("ncclAllGather", "allgather", 3, 4, 5),
    _nccl("ncclBroadcast", "broadcast", 3, 4, 6, peer=5),
    _nccl("ncclBcast", "broadcast", 2, 3, 5, peer=4),
    _nccl("ncclReduce", "reduce", 3, 4, 7, operation=5, peer=6),
    _nccl("ncclSend", "send", 2, 3, 5, peer=4),
    _nccl("ncclRecv", "recv", 2, 3, 5, peer=4),
    _nccl("ncclAlltoAll", "alltoall", 3, 4, 5),  # NCCL 2.28
    _nccl("ncclAllToAll", "alltoall", 3, 4, 5),  # RCCL
    _nccl("ncclAllToAllv", "alltoallv", 0, 7, 8),  # RCCL
    _nccl("ncclGather", "gather", 3, 4, 6, peer=5),
    _nccl("ncclScatter", "scatter", 3, 4, 6, peer=5),
    # ncclGroupStart only increments a counter: the work, and any waiting, is in ncclGroupEnd.
    _nccl_group("ncclGroupEnd"),
)
_HCCL_ROWS = (
    _hccl("HcclAllReduce", "allreduce", 3, 4, 6, operation=5),
    _hccl("HcclReduceScatter", "reduce_scatter", 3, 4, 6, operation=5),
    _hccl("HcclAllGather", "allgather", 3, 4, 5),
    _hccl("HcclBroadcast", "broadcast", 2, 3, 5, peer=4),
    _hccl("HcclReduce", "reduce", 3, 4, 7, operation=5, peer=6),
    _hccl("HcclScatter", "scatter", 3, 4, 6, peer=5),
    _hccl("HcclSend", "send", 2, 3, 5, peer=4),
    _hccl("HcclRecv", "recv", 2, 3, 5, peer=4),
    _hccl("HcclAlltoAll", "alltoall", 2, 3, 7),
    _hccl("HcclAlltoAllV", "alltoallv", 0, 4, 9),
    _hccl("HcclBarrier", "barrier", 0, 0, 1),
)
# The datatype is a handle in MPICH, which encodes the size, and a pointer in Open MPI, which does
# not (collectives.py). PMPI_ names are the same functions for tools, at the same addresses or
# called by these. A blocking call may spin (Open MPI and MPICH both do): its time is waiting all
# the same.
_MPI_ROWS = (
    *_mpi("MPI_Allreduce", "allreduce", 3, 4, 6),
    *_mpi("MPI_Reduce_scatter_block", "reduce_scatter", 3, 4, 6),
    *_mpi("MPI_Reduce_scatter", "reduce_scatter", 0, 4, 6),
    *_mpi("MPI_Allgather", "allgather", 2, 3, 7),
    *_mpi("MPI_Allgatherv", "allgatherv", 2, 3, 8),
    *_mpi("MPI_Bcast", "broadcast", 2, 3, 5),
    *_mpi("MPI_Reduce", "reduce", 3, 4, 7),
    *_mpi("MPI_Gather", "gather", 2, 3, 8),
    *_mpi("MPI_Gatherv", "gatherv", 2, 3, 9),
    *_mpi("MPI_Scatter", "scatter", 2, 3, 8),
    *_mpi("MPI_Scatterv", "scatterv", 0, 4, 9),
    *_mpi("MPI_Alltoall", "alltoall", 2, 3, 7),
    *_mpi("MPI_Alltoallv", "alltoallv", 0, 4, 9),
    *_mpi("MPI_Alltoallw", "alltoallw", 0, 0, 9, large=True),
    *_mpi("MPI_Neighbor_allgather", "neighbor_allgather", 2, 3, 7),
    *_mpi("MPI_Neighbor_allgatherv", "neighbor_allgatherv", 2, 3, 8),
    *_mpi("MPI_Neighbor_alltoall", "neighbor_alltoall", 2, 3, 7),
    *_mpi("MPI_Neighbor_alltoallv", "neighbor_alltoallv", 0, 4, 9),
    *_mpi("MPI_Scan", "scan", 3, 4, 6),
    *_mpi("MPI_Exscan", "exscan", 3, 4, 6),
    *_mpi("MPI_Barrier", "barrier", 0, 0, 1),
    *_mpi("MPI_Send", "send", 2, 3, 6, WAIT),
    *_mpi("MPI_Ssend", "send", 2, 3, 6, WAIT),
    *_mpi("MPI_Recv", "recv", 2, 3, 6, WAIT),
    *_mpi("MPI_Sendrecv", "sendrecv", 2, 3, 11, WAIT),
    *_mpi("MPI_Sendrecv_replace", "sendrecv", 2, 3, 8, WAIT),
    *_mpi("MPI_Probe", "probe", 0, 0, 3, WAIT),
    *_mpi("MPI_Mprobe", "probe", 0, 0, 3, WAIT),
    *_mpi("MPI_Wait", "wait", 0, 0, 0, WAIT),
    *_mpi("MPI_Waitall", "wait", 0, 0, 0, WAIT),
    *_mpi("MPI_Waitany", "wait", 0, 0, 0, WAIT),
    *_mpi("MPI_Waitsome", "wait", 0, 0, 0, WAIT),
    *_mpi("MPI_Win_fence", "fence", 0, 0, 0, WAIT),
)

COLLECTIVE_ROWS: tuple[CallRow, ...] = (*_NCCL_ROWS, *_HCCL_ROWS, *_MPI_ROWS)
