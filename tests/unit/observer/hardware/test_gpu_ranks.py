"""From the hardware's reading to the ranks of a job: who gets shares, who is left out of comparisons, and nothing for jobs without GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_jobs import job, series_of

from rankscope.observer.census.owners import Owners
from rankscope.observer.tables.job import counter_rows, with_gpus
from rankscope.observer.tables.rank import find_rank
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.tables.reading import HardwareReading
from rankscope.observer.thread.device_calls import device_calls, moved_bytes, wait_s
from rankscope.observer.thread.functions import StackName
from rankscope.observer.thread.timeline import COPY, GPU_WAIT
from rankscope.probes.bpf import ring
from rankscope.probes.bpf.ring import Events
from rankscope.probes.calls.table import CALL_TABLE
from rankscope.probes.gpu.series import GpuGrowth, GpuRecording, GpuSamples

WINDOW_S, START_NS = 13.0, 5_000_000_000
PIDS = (701, 702, 703)
ROWS = {row.symbol: index for index, row in enumerate(CALL_TABLE)}
BF16 = 9


def calls(pid: int, made: list[tuple[str, float, float, int, int]]) -> Events:
    """(symbol, start, end, argument, aux) as the probes deliver them."""
    events = np.zeros(len(made), ring.EVENT)
    for event, (symbol, start, end, argument, aux) in zip(events, made, strict=True):
        event["type"], event["tid"], event["tgid"], event["what"] = ring.CALL, pid, pid, ROWS[symbol]
        event["ts_ns"], event["dur_ns"] = START_NS + int(start * 1e9), int((end - start) * 1e9)
        event["arg"], event["aux"] = argument, aux
    return events


def raw(pid: int, waits: list[tuple[float, float]]) -> RawProcess:
    made = []
    for start, end in waits:
        if end < WINDOW_S:
            made += [
                ("ncclAllReduce", start - 0.002, start - 0.0019, 1000, BF16),
                ("cudaStreamSynchronize", start, end, 0, 0),
            ]
    return RawProcess(
        pid=pid, start_ns=START_NS, window_s=WINDOW_S, events=calls(pid, made), open_absences={}, open_calls=[],
        python_tids=frozenset({pid}), stacks={}, devices={}, throttled_s=0.0, hz=99.0,
    )  # fmt: skip


def recorded(seen: tuple[int, ...]) -> tuple[dict[int, RawProcess], HardwareReading]:
    """Three ranks, the second of which computes longer; samples of the GPUs in `seen`."""
    ranks = job([0.05] * 3, [0.3, 0.45, 0.3], WINDOW_S)
    samples = []
    for index in seen:
        series = series_of(ranks[index], WINDOW_S, 0.01, seed=index)
        unknown = np.full(len(series.start_s), np.nan)
        samples.append(
            GpuSamples(
                index, f"GPU-{index}", "", "H100", "gpm", (series.end_s * 1e9).astype(np.int64) + START_NS,
                np.full(len(series.start_s), 100_000_000), series.kernel_active, series.sm_active, series.tensor_active, unknown,
                series.pcie_tx_hz, series.pcie_rx_hz, unknown, unknown, unknown, unknown, unknown, unknown,
                np.full(len(series.start_s), -1),
            )
        )  # fmt: skip
    growth = tuple(GpuGrowth(index, f"GPU-{index}", "", "H100", 13.0, None, None) for index in range(3))
    owners = Owners({pid: (index,) for index, pid in enumerate(PIDS)})
    raws = {pid: raw(pid, rank.waits) for pid, rank in zip(PIDS, ranks, strict=True)}
    return raws, HardwareReading(GpuRecording(tuple(samples), growth), owners=owners)


def test_a_slow_gpu_is_found_from_samples_and_calls_alone() -> None:
    raws, reading = recorded((0, 1, 2))
    numbers = {pid: rank for rank, pid in enumerate(PIDS)}
    found, gpus = with_gpus(raws, numbers, 3, reading, CALL_TABLE)
    rows = {pid: find_rank(one, CALL_TABLE) for pid, one in found.items()}
    own = [float(np.mean(rows[pid].step_times.own_s)) for pid in PIDS]
    assert own == pytest.approx([0.37, 0.52, 0.37], rel=0.05)
    counters = {(row.rank, row.name): row.value for row in counter_rows(gpus, reading, rows, found, CALL_TABLE)}
    assert counters[1, "gpu.compute_s"] > 1.3 * counters[0, "gpu.compute_s"]
    assert counters[0, "gpu.collective_s"] > 1.5 * counters[1, "gpu.collective_s"]
    assert counters[0, "gpu.wait_s"] == pytest.approx(WINDOW_S, rel=0.2)
    assert counters[2, "nccl.launched"] == rows[703].steps.count + 1
    names = {pattern.function.name for pattern in rows[702].training}
    assert {"kernels", "allreduce"} <= names


def test_a_rank_whose_gpu_says_nothing_is_not_compared_with_those_that_do() -> None:
    raws, reading = recorded((0, 2))
    found, gpus = with_gpus(raws, {pid: rank for rank, pid in enumerate(PIDS)}, 3, reading, CALL_TABLE)
    assert "rank 1: its GPU is not visible, so its steps cannot be compared" in gpus.notes
    rows = {pid: find_rank(one, CALL_TABLE) for pid, one in found.items()}
    assert np.isnan(rows[702].step_times.own_s).all() and len(rows[702].step_times.own_s) > 20
    assert np.isfinite(rows[701].step_times.own_s).all()


def test_where_no_gpu_is_seen_a_wait_for_it_is_waiting() -> None:
    raws, _ = recorded(())
    found, gpus = with_gpus(raws, {pid: rank for rank, pid in enumerate(PIDS)}, 3, HardwareReading(), CALL_TABLE)
    assert found == raws and gpus.notes == ()
    times = find_rank(found[701], CALL_TABLE).step_times
    assert float(np.mean(times.own_s)) == pytest.approx(0.06, abs=0.03)
    assert times.own_s + times.wait_s == pytest.approx(times.seconds)


def test_a_wait_for_the_gpu_before_the_first_collective_of_a_step_is_for_kernels_of_the_ranks_own() -> None:
    """As on an H100 that tells nothing: small kernels, of which one rank runs more and waits for them before it goes on."""
    raws, _ = recorded(())
    alone = find_rank(raws[701], CALL_TABLE)
    extra = [("cudaDeviceSynchronize", edge + 0.005, edge + 0.055, 0, 0) for edge in alone.steps.edge_s.tolist()]
    events = np.concatenate((raws[701].events, calls(701, extra)))
    late = find_rank(replace(raws[701], events=events[np.argsort(events["ts_ns"])]), CALL_TABLE)
    assert late.steps.count == pytest.approx(alone.steps.count, abs=1)
    # It waits in time that was the host's own before.
    assert late.step_times.own_s == pytest.approx(alone.step_times.own_s[: late.steps.count], abs=0.002)
    (kernels,) = [one for one in late.training if one.function.kind == "gpu"]
    assert kernels.per_step_s == pytest.approx(0.05, rel=0.1)


def test_of_steps_without_a_collective_that_was_seen_no_wait_is_told_to_be_the_ranks_own() -> None:
    """Those in a CUDA graph are put on streams unseen."""
    raws, _ = recorded(())
    unseen = raws[701].events[raws[701].events["what"] != ROWS["ncclAllReduce"]]
    found = find_rank(replace(raws[701], events=unseen), CALL_TABLE)
    assert not [one for one in found.training if one.function.kind == "gpu"]


def test_a_copy_that_waits_for_kernels_first_is_a_wait() -> None:
    made = [("cudaMemcpy", 1.0, 1.1, 4 << 30, 1), ("cudaMemcpy", 2.0, 2.4, 4, 2), ("cudaFree", 3.0, 3.1, 0, 0)]
    found = device_calls(calls(701, made), CALL_TABLE, START_NS, WINDOW_S)
    assert found.kinds.tolist() == [COPY, GPU_WAIT, GPU_WAIT]
    assert [function.name for function in found.functions] == ["host to device", "gpu", "gpu memory"]
    assert found.bytes.tolist() == [4 << 30, 0, 0]


def test_waits_inside_waits_count_once_and_bytes_are_those_on_the_wire() -> None:
    made = [
        ("cudaStreamSynchronize", 1.0, 1.5, 0, 0), ("cuStreamSynchronize", 1.1, 1.4, 0, 0),
        ("cudaDeviceSynchronize", 2.0, 2.25, 0, 0), ("ncclAllReduce", 3.0, 3.1, 1000, BF16), ("ncclAllGather", 3.1, 3.2, 100, BF16),
    ]  # fmt: skip
    assert wait_s(calls(701, made), CALL_TABLE) == pytest.approx(0.75)
    moved = {function.name: amount for function, amount in moved_bytes(calls(701, made), CALL_TABLE, 5).items()}
    assert moved == {"allreduce": 2 * 4 * 2000 // 5, "allgather": 4 * 200}


def test_no_stack_is_looked_up_for_a_call_on_a_stream() -> None:
    """Its field holds a stream's address, which may equal the number of somebody's stack."""
    events = calls(701, [("cudaStreamSynchronize", 1.0, 1.5, 0, 0)])
    events["stack"] = 7
    stacks = {7: StackName("wrong", "wrong.py", 1)}
    rows = find_rank(
        RawProcess(701, START_NS, WINDOW_S, events, {}, [], frozenset({701}), stacks, {}, 0.0, 99.0), CALL_TABLE
    )
    assert not any(pattern.function.caller == "wrong" for pattern in rows.training)


def test_a_job_keeps_the_counters_of_its_gpu_where_another_has_it_too() -> None:
    raws, reading = recorded((0, 1, 2))
    growth = (replace(reading.gpus.growth[0], lost=True), *reading.gpus.growth[1:])
    reading = replace(reading, gpus=replace(reading.gpus, growth=growth))
    found, gpus = with_gpus(raws, {pid: rank for rank, pid in enumerate(PIDS)}, 3, reading, CALL_TABLE)
    whole = replace(reading, owners=Owners({**reading.owners.gpus, 900: (0, 7)}))
    rows = counter_rows(gpus, whole, {}, found, CALL_TABLE)
    assert [(row.rank, row.value) for row in rows if row.name == "gpu.lost"] == [(0, 1.0)]
