"""Decode the arguments of collective calls: datatypes, operations, peers, bytes. Pure.

NCCL and RCCL: ncclDataType_t, ncclRedOp_t of nccl.h 2.28. HCCL: HcclDataType, HcclReduceOp of
hccl_types.h. MPI: MPICH and its derivatives encode the size of a basic datatype in its handle
(0x4c00SSii, mpi.h); Open MPI's datatypes are pointers, so the size is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.probes.calls.row import OPERATION_SHIFT, PEER_SHIFT, CallRow

_NCCL_TYPES = (
    ("int8", 1), ("uint8", 1), ("int32", 4), ("uint32", 4), ("int64", 8), ("uint64", 8), ("float16", 2), ("float32", 4),
    ("float64", 8), ("bfloat16", 2), ("float8e4m3", 1), ("float8e5m2", 1),
)  # fmt: skip
_HCCL_TYPES = (
    ("int8", 1), ("int16", 2), ("int32", 4), ("float16", 2), ("float32", 4), ("int64", 8), ("uint64", 8), ("uint8", 1),
    ("uint16", 2), ("uint32", 4), ("float64", 8), ("bfloat16", 2), ("int128", 16), ("", 0), ("hifloat8", 1),
    ("float8e4m3", 1), ("float8e5m2", 1), ("float8e8m0", 1),
)  # fmt: skip
_TYPES = {"nccl": _NCCL_TYPES, "hccl": _HCCL_TYPES}
_OPERATIONS = {"nccl": ("sum", "prod", "max", "min", "avg"), "hccl": ("sum", "prod", "max", "min")}
_MPICH_BASIC = 0x4C000000
_MOST_BYTES = (1 << 62) - 1  # per call: a caller may pass any count, and columns have 64 bits

# Calls whose count is that of one rank's share: every rank moves one share.
_COUNT_IS_A_SHARE = frozenset({"allgather", "reduce_scatter", "alltoall", "gather", "scatter"})


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A decoded collective call. `bytes` of this rank's argument, None where the datatype's size is
    unknown.
    """

    name: str
    bytes: int | None
    datatype: str
    operation: str  # '' where the function has none
    peer: int | None  # the other rank of a send or receive, the root of a broadcast
    communicator: int  # the handle: the same number for all calls of one communicator in one process


def collective_call(row: CallRow, arg: int, aux: int, communicator: int) -> CollectiveCall:
    """Decode the raw numbers of a CALL event of the roles enqueue, collective or wait.

    `arg`: the count of elements; `aux`: datatype, operation and peer in one number (row.py).
    """
    name, size = _datatype(row, aux)
    operations = _OPERATIONS.get(row.family, ())
    operation = ""
    if row.operation:
        number = (aux >> OPERATION_SHIFT) & 0xFF
        operation = operations[number] if number < len(operations) else "custom"
    return CollectiveCall(
        name=row.name,
        bytes=call_bytes(row, arg, aux) if size or not row.argument else None,
        datatype=name,
        operation=operation,
        peer=(aux >> PEER_SHIFT) & 0xFFFF if row.peer else None,
        communicator=communicator,
    )


def call_bytes(row: CallRow, arg: int, aux: int) -> int:
    """Return count × datatype size in bytes, at most `_MOST_BYTES`; 0 where either is unknown.

    Also 0 for counts below 1. `arg`: the count; `aux`: its low byte is the datatype (MPI: all of it).
    """
    if not row.argument or arg <= 0:
        return 0
    return min(arg * _datatype(row, aux)[1], _MOST_BYTES)


def wire_bytes(row: CallRow, arg: int, aux: int, ranks: int) -> float:
    """Return the bytes that one rank of a ring of `ranks` sends for this call.

    allreduce 2(n-1)/n · B; allgather, reduce_scatter, alltoall with B the share of one rank: (n-1)
    · B; others: B (NCCL tests, doc/PERFORMANCE.md).
    """
    size = call_bytes(row, arg, aux)
    if ranks < 2:
        return 0.0
    if row.name == "allreduce":
        return 2.0 * (ranks - 1) / ranks * size
    if row.name in _COUNT_IS_A_SHARE:
        return float(ranks - 1) * size
    return float(size)


def _datatype(row: CallRow, aux: int) -> tuple[str, int]:
    """Decode the datatype in `aux`: (name, bytes of one element); ('', 0) where it is unknown.

    All basic datatypes of MPICH are named 'basic'.
    """
    if row.family == "mpi":
        is_basic = aux & 0xFFFF0000 == _MPICH_BASIC
        return ("basic", (aux >> 8) & 0xFF) if is_basic else ("", 0)
    types = _TYPES.get(row.family, ())
    number = aux & 0xFF
    return types[number] if row.datatype and number < len(types) else ("", 0)
