"""The raw numbers of library calls become words and bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.probes.calls import collectives, copies
from rankscope.probes.calls.row import LAUNCH, ROLES, CallRow
from rankscope.probes.calls.rows_cuda import runtime_launch_rows
from rankscope.probes.calls.table import CALL_TABLE

ROWS = {row.symbol: row for row in CALL_TABLE}


@pytest.mark.parametrize(
    ("symbol", "count", "aux", "expected_bytes", "datatype", "operation", "peer"),
    [
        ("ncclAllReduce", 1009, 7, 4036, "float32", "sum", None),
        ("ncclAllReduce", 1009, 9 | 4 << 8, 2018, "bfloat16", "avg", None),
        ("ncclReduceScatter", 31, 8 | 2 << 8, 248, "float64", "max", None),
        ("ncclAllGather", 31, 6, 62, "float16", "", None),
        ("ncclSend", 17, 1 | 13 << 16, 17, "uint8", "", 13),
        ("ncclBroadcast", 19, 4 | 3 << 16, 152, "int64", "", 3),
        ("HcclAllReduce", 23, 4 | 1 << 8, 92, "float32", "prod", None),
        ("MPI_Allreduce", 29, 0x4C00080B, 232, "basic", "", None),  # MPICH's MPI_DOUBLE
    ],
)
def test_a_call_is_put_into_words(
    symbol: str, count: int, aux: int, expected_bytes: int, datatype: str, operation: str, peer: int | None
) -> None:
    call = collectives.collective_call(ROWS[symbol], count, aux, 0xABC)
    assert (call.bytes, call.datatype, call.operation, call.peer) == (expected_bytes, datatype, operation, peer)
    assert (call.name, call.communicator) == (ROWS[symbol].name, 0xABC)


def test_bytes_are_unknown_where_the_datatype_is_a_pointer_or_new() -> None:
    assert collectives.collective_call(ROWS["MPI_Allreduce"], 29, 0x7F3A1540, 1).bytes is None
    assert collectives.collective_call(ROWS["ncclAllReduce"], 29, 99, 1).bytes is None
    assert collectives.collective_call(ROWS["ncclAllReduce"], 29, 7 | 77 << 8, 1).operation == "custom"


def test_of_a_count_that_nobody_can_send_the_bytes_still_fit_a_column() -> None:
    assert collectives.call_bytes(ROWS["MPI_Allreduce"], (1 << 63) - 1, 0x4C00FF0B) == (1 << 62) - 1


def test_a_barrier_moves_nothing() -> None:
    assert collectives.collective_call(ROWS["MPI_Barrier"], 0, 0, 1).bytes == 0


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [("ncclAllReduce", 2 * 7 / 8 * 4036), ("ncclAllGather", 7 * 4036), ("ncclSend", 4036), ("ncclBroadcast", 4036)],
)
def test_what_a_ring_sends(symbol: str, expected: float) -> None:
    assert collectives.wire_bytes(ROWS[symbol], 1009, 7, 8) == pytest.approx(expected)
    assert collectives.wire_bytes(ROWS[symbol], 1009, 7, 1) == 0


@given(
    st.sampled_from(CALL_TABLE), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
)
def test_no_number_from_a_target_breaks_the_words(row: CallRow, arg: int, aux: int, thing: int) -> None:
    call = collectives.collective_call(row, arg, aux, thing)
    assert call.bytes is None or 0 <= call.bytes < 1 << 62
    assert collectives.wire_bytes(row, arg, aux, 8) >= 0
    assert copies.direction(aux) in copies.DIRECTIONS


def test_copy_directions() -> None:
    assert [copies.direction(aux) for aux in (0, 1, 2, 3, 4, 77)] == [
        "host to host", "host to device", "device to host", "device to device", "copy", "copy",
    ]  # fmt: skip


def test_every_row_is_well_formed() -> None:
    names = [(row.libraries, name) for row in CALL_TABLE for name in (row.names if row.whole else (row.symbol,))]
    assert len(names) == len(set(names))
    assert len(CALL_TABLE) < 256
    for row in CALL_TABLE:
        assert row.role in ROLES and row.family
        assert row.role != LAUNCH or row.argument <= 2  # a place of the kernel, as rs_launch_site knows it
        assert not (row.direction and row.towards)
        assert not row.handle or not row.datatype


def test_launches_of_the_runtime_are_told_from_those_of_the_driver() -> None:
    runtime = runtime_launch_rows(CALL_TABLE)
    assert {CALL_TABLE[index].symbol for index in runtime} >= {"cudaLaunchKernel", "cudaGraphLaunch", "hipLaunchKernel"}
    assert "cuLaunchKernel" not in {CALL_TABLE[index].symbol for index in runtime}
