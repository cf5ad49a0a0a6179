"""GPU series over a host's timeline: who computes, who waits, whose Python keeps its GPU idle."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_jobs import OPTIMIZER_S, SM_COLLECTIVE, SM_COMPUTING, TRANSFER_S, Rank, host_line, job, series_of, shares_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.observer.gpu import overlay
from rankscope.observer.gpu import rows as gpu_rows
from rankscope.observer.gpu.levels import Series, Shares, collective_tail_s, combine, find_levels, find_shares
from rankscope.observer.gpu.rows import GpuView
from rankscope.observer.thread import patterns, timeline
from rankscope.observer.thread.functions import FunctionKey
from rankscope.observer.thread.patterns import MeasuredPattern
from rankscope.observer.thread.step_times import StepTimes, step_times

WINDOW_S = 19.0
PCIE_HZ = 64e9


def measured(
    rank: Rank, shares: Shares, window_s: float = WINDOW_S
) -> tuple[dict[tuple[str, str], MeasuredPattern], StepTimes]:
    line, absences, samples, labels, steps = host_line(rank, window_s, shares)
    line, labels, time = gpu_rows.lay_over(line, labels, shares)
    host = patterns.measure_thread(window_s, line, absences, samples, labels, steps, hz=99)
    moved = {
        FunctionKey("collective", "allreduce", detail="nccl"): 3,
        FunctionKey("collective", "allgather", detail="nccl"): 1,
    }
    view = GpuView(shares, moved, PCIE_HZ)
    rows, times = gpu_rows.add_gpu(host, step_times(line, steps), line, time, view, steps, window_s)
    return {(row.function.kind, row.function.name): row for row in rows}, times


def of_job(
    python_s: list[float], compute_s: list[float], noise: float = 0.02, gpm: bool = True
) -> list[tuple[dict[tuple[str, str], MeasuredPattern], StepTimes]]:
    ranks = job(python_s, compute_s, WINDOW_S)
    series = [series_of(rank, WINDOW_S, noise, gpm, seed=at, phase_s=0.013 * at) for at, rank in enumerate(ranks)]
    return [measured(rank, shares) for rank, shares in zip(ranks, shares_of(series), strict=True)]


def means(found: list[tuple[dict[tuple[str, str], MeasuredPattern], StepTimes]]) -> tuple[list[float], list[float]]:
    return [float(np.mean(times.own_s)) for _, times in found], [float(np.mean(times.wait_s)) for _, times in found]


@pytest.mark.parametrize("seconds", [0.3, 0.7])
def test_one_slow_gpu_of_seven_computes_longer_and_waits_least(seconds: float) -> None:
    compute = [seconds] * 7
    compute[4] *= 1.3
    found = of_job([0.03] * 7, compute)
    own, wait = means(found)
    for rank in range(7):
        assert own[rank] == pytest.approx(compute[rank] + 0.03 + OPTIMIZER_S, rel=0.04), rank
    assert wait[4] == pytest.approx(TRANSFER_S, abs=0.02)
    assert wait[3] == pytest.approx(TRANSFER_S + 0.3 * seconds, abs=0.03)
    kernels = [rows["gpu", "kernels"].per_step_s for rows, _ in found]
    assert kernels[4] == pytest.approx(1.3 * seconds + OPTIMIZER_S, rel=0.04)
    assert kernels[0] == pytest.approx(seconds + OPTIMIZER_S, rel=0.04)


def test_slow_python_on_one_rank_shows_as_its_function_and_nobody_elses() -> None:
    python = [0.05] * 7
    python[2] = 0.25
    found = of_job(python, [0.4] * 7)
    own, wait = means(found)
    assert own[2] == pytest.approx(0.25 + 0.4 + OPTIMIZER_S, rel=0.04)
    assert own[0] == pytest.approx(0.05 + 0.4 + OPTIMIZER_S, rel=0.04)
    assert wait[2] < 0.5 * wait[0]
    assert found[2][0]["python", "prepare"].per_step_s == pytest.approx(0.25, rel=0.06)
    assert found[0][0]["python", "prepare"].per_step_s == pytest.approx(0.05, rel=0.2)
    assert ("memory", "host to device") not in found[2][0]


def test_python_beside_a_busy_gpu_costs_nothing() -> None:
    """The host runs for 10 ms after the first kernel began in every step: that time is not credited to it."""
    rows, _ = of_job([0.1] * 3, [0.3] * 3, noise=0.0)[0]
    assert rows["python", "prepare"].per_step_s == pytest.approx(0.1, abs=0.004)


def test_own_and_wait_make_up_the_step_and_all_rows_together_the_window() -> None:
    for rows, times in of_job([0.05, 0.09, 0.05], [0.3, 0.3, 0.5]):
        assert times.own_s + times.wait_s == pytest.approx(times.seconds)
        assert sum(row.beta for row in rows.values()) == pytest.approx(1.0, abs=0.002)


def test_collectives_share_their_time_by_bytes() -> None:
    rows, times = of_job([0.05] * 3, [0.3, 0.3, 0.45])[0]
    reduced, gathered = rows["collective", "allreduce"], rows["collective", "allgather"]
    assert reduced.per_step_s == pytest.approx(3 * gathered.per_step_s)
    assert reduced.per_step_s + gathered.per_step_s == pytest.approx(float(np.mean(times.wait_s)), rel=1e-6)
    assert (reduced.bytes, gathered.bytes) == (3, 1)


def test_without_gpm_power_tells_computing_from_waiting() -> None:
    compute = [0.4] * 7
    compute[4] = 0.6
    own, wait = means(of_job([0.05] * 7, compute, gpm=False))
    assert own[4] - own[0] == pytest.approx(0.2, rel=0.25)
    assert int(np.argmin(wait)) == 4


def test_power_that_follows_within_a_second_still_tells_who_waits_least_and_makes_up_no_difference() -> None:
    for slow in (1.0, 1.5):
        ranks = job([0.05] * 7, [0.4 * slow if rank == 4 else 0.4 for rank in range(7)], WINDOW_S)
        series = [series_of(rank, WINDOW_S, 0.02, gpm=False, seed=at, smooth_s=1.0) for at, rank in enumerate(ranks)]
        own, wait = means([measured(rank, shares) for rank, shares in zip(ranks, shares_of(series), strict=True)])
        excess = own[4] - float(np.median(own))
        if slow == 1.0:
            assert max(own) - min(own) < 0.02
        else:
            assert excess > 0.08
            assert int(np.argmin(wait)) == 4


def test_levels_are_those_of_the_kernels() -> None:
    ranks = job([0.03] * 5, [0.3, 0.3, 0.3, 0.3, 0.4], WINDOW_S)
    levels = find_levels([series_of(rank, WINDOW_S, 0.01, seed=at) for at, rank in enumerate(ranks)])
    assert levels.computing == pytest.approx(SM_COMPUTING, rel=0.08)
    assert levels.collective == pytest.approx(SM_COLLECTIVE, abs=0.05)


def test_kernels_beside_a_collective_do_not_raise_the_level_of_computing() -> None:
    """Overlap shows 1.0 for half of the time; computing alone, 0.9, must still count as all computing."""
    edges = np.arange(0, 20.0, 0.1)
    kind = np.arange(len(edges) - 1) % 5
    sm = np.choose(kind, [1.0, 1.0, 0.9, 0.9, 0.12])
    ones, none = np.ones(len(sm)), np.zeros(len(sm))
    one = Series(edges[:-1], edges[1:], ones, sm, none * np.nan, none * np.nan, none, none)
    shares = find_shares(one, find_levels([one]))
    assert shares.compute[kind == 2] == pytest.approx(np.ones(int((kind == 2).sum())), abs=0.01)
    assert shares.compute[kind == 4] == pytest.approx(np.zeros(int((kind == 4).sum())), abs=0.01)


def test_levels_that_cannot_be_told_apart_leave_the_hosts_timeline_alone() -> None:
    rank = job([0.05], [0.3], WINDOW_S)[0]
    series = series_of(rank, WINDOW_S)
    flat = replace(
        series,
        sm_active=series.kernel_active * 0.3,
        tensor_active=np.full(len(series.start_s), np.nan),
        power_active=np.full(len(series.start_s), np.nan),
    )
    levels = find_levels([flat])
    assert levels.measure == "" and "CPU side only" in levels.note
    assert np.isnan(find_shares(flat, levels).compute).all()
    line, _, _, _, steps = host_line(rank, WINDOW_S, None)
    times = step_times(line, steps)
    assert float(np.mean(times.own_s)) == pytest.approx(0.05 + 0.01, rel=0.05)  # what the host does outside its waits


def test_a_gpu_that_runs_no_collectives_is_computing_whenever_it_is_busy() -> None:
    series = series_of(job([0.05], [0.3], WINDOW_S)[0], WINDOW_S)
    shares = find_shares(series, find_levels([series], collectives=False))
    assert shares.compute == pytest.approx(series.kernel_active)
    assert shares.collective == pytest.approx(np.zeros(len(series.start_s)))


def test_nothing_at_all_from_any_gpu_is_a_note() -> None:
    series = series_of(job([0.05], [0.3], WINDOW_S)[0], WINDOW_S)
    unknown = np.full(len(series.start_s), np.nan)
    silent = replace(series, kernel_active=unknown, sm_active=unknown, tensor_active=unknown, power_active=unknown)
    assert "no GPU says" in find_levels([silent]).note
    assert "no GPU says" in find_levels([]).note


def test_steps_after_a_gpu_was_lost_are_not_measured_and_those_before_are() -> None:
    ranks = job([0.05] * 3, [0.3] * 3, WINDOW_S)
    series = [series_of(rank, WINDOW_S, 0.01) for rank in ranks]
    kept = int(np.searchsorted(series[1].end_s, 9.0))
    series[1] = Series(*(getattr(series[1], name)[:kept] for name in Series.__slots__))
    found = [measured(rank, shares) for rank, shares in zip(ranks, shares_of(series), strict=True)]
    _, times = found[1]
    ends = times.start_s + times.seconds
    assert np.isfinite(times.own_s[ends < 9.0]).all()
    assert np.isnan(times.own_s[times.start_s > 9.0]).all()
    assert float(np.nanmean(times.own_s)) == pytest.approx(0.05 + 0.3 + OPTIMIZER_S, rel=0.05)


def test_single_samples_that_are_not_numbers_are_bridged() -> None:
    ranks = job([0.05] * 3, [0.3] * 3, WINDOW_S)
    series = [series_of(rank, WINDOW_S, 0.01) for rank in ranks]
    holes = series[0].sm_active.copy()
    holes[::13] = np.nan
    series[0] = replace(series[0], sm_active=holes)
    _, times = measured(ranks[0], shares_of(series)[0])
    assert np.isfinite(times.own_s).all()
    assert float(np.mean(times.own_s)) == pytest.approx(0.05 + 0.3 + OPTIMIZER_S, rel=0.07)


def test_data_that_moves_while_the_gpu_is_idle_and_its_host_waits_is_a_copy() -> None:
    # The host hands over and waits at once; 0.1 s of what would be Python is a copy in the GPU's own queue.
    slow = job([0.12], [0.3], WINDOW_S)[0]
    copying = replace(slow, waits=[(start - 0.1, end) for start, end in slow.waits])
    series = series_of(slow, WINDOW_S)
    idle = 1 - series.kernel_active
    moving = replace(series, pcie_rx_hz=idle * 40e9)
    shares = find_shares(moving, find_levels([moving]))
    rows, times = measured(copying, shares)
    copy = rows["memory", "host to device"]
    assert copy.per_step_s == pytest.approx(0.1, rel=0.15)
    assert copy.bytes > 0 and copy.mu == pytest.approx(40 / 64, rel=0.25)
    assert float(np.mean(times.own_s)) == pytest.approx(0.12 + 0.3 + OPTIMIZER_S, rel=0.04)


def test_the_gpus_of_one_rank_are_seen_as_one() -> None:
    series = series_of(job([0.05], [0.3], WINDOW_S)[0], WINDOW_S)
    both = combine(
        [series, replace(series, kernel_active=np.zeros(len(series.start_s)), sm_active=np.zeros(len(series.start_s)))]
    )
    assert both.kernel_active == pytest.approx(series.kernel_active)
    assert both.sm_active == pytest.approx(series.sm_active)


def test_a_gpu_that_sits_in_a_collective_at_the_end_has_done_so_since_it_last_computed() -> None:
    edges = np.arange(0, 20.05, 0.1)
    busy, nothing, unknown = edges[:-1] < 12, np.zeros(len(edges) - 1), np.full(len(edges) - 1, np.nan)
    kernel, sm = np.where(busy, 0.8, 1.0), np.where(busy, 0.7, 0.12)
    stuck = Series(edges[:-1], edges[1:], kernel, sm, unknown, unknown, nothing, nothing)
    assert collective_tail_s(stuck, 20.0) == pytest.approx(8.0, abs=0.11)
    assert collective_tail_s(replace(stuck, kernel_active=np.where(busy, 0.8, 0.0)), 20.0) == 0.0
    assert collective_tail_s(replace(stuck, sm_active=0.9 * kernel), 20.0) == 0.0
    assert collective_tail_s(replace(stuck, sm_active=unknown), 20.0) == 0.0
    by_power = replace(stuck, sm_active=unknown, power_active=np.where(busy, 0.7, 0.1))
    assert collective_tail_s(by_power, 20.0) == pytest.approx(8.0, abs=0.11)
    assert find_levels([replace(stuck, sm_active=0.12 * kernel)]).measure == "", "a hang shows one level only"


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=7, max_size=97), st.integers(0, 1000))
@settings(max_examples=53, deadline=None)
def test_every_instant_is_given_away_once_whatever_the_gpu_says(values: list[tuple[float, float]], seed: int) -> None:
    kernel = np.array([one for one, _ in values])
    sm = kernel * np.array([two for _, two in values])
    edges = np.arange(len(values) + 1) * 0.1
    nothing = np.zeros(len(values))
    series = Series(edges[:-1], edges[1:], kernel, sm, nothing, nothing * np.nan, nothing, nothing)
    levels = find_levels([series])
    if not levels.measure:
        return
    rank = job([0.05], [0.3], edges[-1], seed=seed)[0]
    line, _, _, _, _ = host_line(rank, float(edges[-1]), find_shares(series, levels))
    line, time = overlay.overlay(line, find_shares(series, levels))
    assert line.share is not None and (line.share >= 0).all() and (line.share <= 1 + 1e-9).all()
    parts = line.seconds + time.compute_s + time.collective_s + time.unknown_s
    assert parts == pytest.approx(line.lengths)
    assert float(line.seconds.sum()) == pytest.approx(float(((1 - kernel) * 0.1).sum()), abs=1e-6)
    assert set(np.unique(line.kind)) <= {timeline.CPU, timeline.GPU_WAIT, timeline.COPY}
