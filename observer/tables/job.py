"""Assign the hardware's reading to the ranks of one job: their GPU shares, rows and devices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rankscope.observer.gpu import levels as gpu_levels
from rankscope.observer.gpu.levels import Levels, Series
from rankscope.observer.gpu.rows import GpuView
from rankscope.observer.tables import driver_spin, hardware_rows
from rankscope.observer.tables.rank import RankWindow
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.tables.reading import HardwareReading
from rankscope.observer.thread import device_calls
from rankscope.observer.thread.resource_use import Use
from rankscope.observer.window.rows import CounterRow
from rankscope.probes.bpf import ring
from rankscope.probes.calls.launches import LaunchCount
from rankscope.probes.calls.row import ENQUEUE, CallRow
from rankscope.probes.calls.rows_cuda import runtime_launch_rows
from rankscope.probes.gpu.series import GPM, POWER, GpuSamples


@dataclass(frozen=True, slots=True)
class JobGpus:
    """The GPUs of one job on this host. `numbers`: pid → rank."""

    reading: HardwareReading
    numbers: Mapping[int, int]
    levels: Levels | None = None
    computing: Mapping[int, float] = field(default_factory=dict)  # by GPU
    notes: tuple[str, ...] = ()


def series_of(samples: GpuSamples, start_ns: int, window_s: float, clock_hz: float = np.nan) -> Series:
    """Convert one GPU's samples to seconds since the window's start. `clock_hz`: its peers' clock,
    NaN if unknown.
    """
    end = (samples.time_ns - start_ns) / 1e9
    start = end - samples.interval_ns / 1e9
    kept = (end > 0) & (start < window_s) & (samples.interval_ns > 0)
    unknown = np.full(len(end), np.nan)
    scale = np.where(samples.sm_clock_hz > 0, clock_hz / samples.sm_clock_hz, 1.0)
    by_power = samples.sm_active * np.where(np.isfinite(scale), scale, 1.0)
    columns = (
        start, end, samples.kernel_active, samples.sm_active if samples.source == GPM else unknown, samples.tensor_active,
        by_power if samples.source == POWER else unknown, samples.pcie_rx_hz, samples.pcie_tx_hz,
    )  # fmt: skip
    return Series(*(np.asarray(column, dtype=np.float64)[kept] for column in columns))


def _usual_clock_hz(samples: Iterable[GpuSamples]) -> float:
    """Return the median over GPUs of the median clock while busy; NaN where unknown."""
    clocks = [one.sm_clock_hz[np.nan_to_num(one.kernel_active) > 0.5] for one in samples]
    medians = [float(np.median(one[np.isfinite(one)])) for one in clocks if np.isfinite(one).any()]
    return float(np.median(medians)) if medians else np.nan


def with_gpus(
    raws: Mapping[int, RawProcess],
    numbers: Mapping[int, int],
    world_size: int,
    reading: HardwareReading,
    table: Sequence[CallRow],
) -> tuple[dict[int, RawProcess], JobGpus]:
    """Add the GPUs' time to the processes; `raws` by pid of the rank, `reading` of this job's
    owners.

    Where the activity of no GPU can be split, all remain without; where that of some cannot, those
    ranks' steps are not measured, because own time by two methods cannot be compared.
    """
    found = dict(raws)
    mine = {pid: reading.owners.gpus[pid] for pid in raws if reading.owners.gpus.get(pid)}
    by_rank = _series_by_rank(raws, mine, reading.gpus.samples)
    spin = {pid: any(driver_spin.spun_s(raws[pid], tid) for tid in raws[pid].python_tids) for pid in by_rank}
    for pid, one in by_rank.items():
        if any(spin.values()) and not spin[pid]:
            continue  # all ranks of a job wait for their GPUs in the same way
        found[pid] = replace(raws[pid], collective_tail_s=gpu_levels.collective_tail_s(one, raws[pid].window_s))
    if not by_rank:
        return found, JobGpus(reading, numbers)
    moved = {pid: device_calls.moved_bytes(raws[pid].events, table, world_size) for pid in raws}
    levels = gpu_levels.find_levels([by_rank[pid] for pid in sorted(by_rank)], world_size != 1 or any(moved.values()))
    notes = [levels.note] if levels.note else []
    if not levels.measure:
        return found, JobGpus(reading, numbers, levels, notes=tuple(notes))
    growth = {one.index: one for one in reading.gpus.growth}
    computing = {}
    for at, pid in enumerate(sorted(by_rank)):
        level = levels.own[at] if levels.own else levels.computing
        shares = gpu_levels.find_shares(by_rank[pid], levels, level)
        if not np.isfinite(shares.compute).any():
            continue
        use, resource = _link_use(reading, pid, mine[pid])
        limit = max((hardware_rows.pcie_limit_hz(growth[index]) for index in mine[pid] if index in growth), default=0.0)
        found[pid] = replace(found[pid], gpu=GpuView(shares, moved[pid], limit, use, resource))
        computing.update({index: level for index in mine[pid] if levels.measure == "sm" and np.isfinite(level)})
    for pid in [pid for pid in raws if found[pid].gpu is None]:
        notes.append(f"rank {numbers[pid]}: its GPU is not visible, so its steps cannot be compared")
        found[pid] = replace(found[pid], gpu=GpuView.unseen(moved[pid]))
    return found, JobGpus(reading, numbers, levels, computing, tuple(notes))


def _series_by_rank(
    raws: Mapping[int, RawProcess], mine: Mapping[int, Sequence[int]], sampled: Iterable[GpuSamples]
) -> dict[int, Series]:
    """Combine the samples of each rank's GPUs (`mine`) in the window, by pid; ranks without data
    are left out.
    """
    samples = {one.index: one for one in sampled if len(one.time_ns)}
    clock_hz = _usual_clock_hz(samples[at] for indices in mine.values() for at in indices if at in samples)
    found = {}
    for pid, indices in mine.items():
        raw = raws[pid]
        series = [series_of(samples[at], raw.start_ns, raw.window_s, clock_hz) for at in indices if at in samples]
        series = [one for one in series if len(one.start_s)]
        if series:
            found[pid] = gpu_levels.combine(series)
    return found


def _link_use(reading: HardwareReading, pid: int, gpus: Sequence[int]) -> tuple[Use | None, str]:
    """Measure how the rank's collectives use their link, and name its kind, 'nic' or 'nvlink'.

    The first of its network ports that moves bytes, else the first of its GPUs whose NVLinks do;
    (None, 'nic') if none does. `gpus`: their indices.
    """
    ports = {port.growth.name: port for port in reading.nics.ports}
    for name in reading.owners.ports.get(pid, ()):
        use = hardware_rows.port_use(ports[name]) if name in ports else None
        if use is not None:
            return use, "nic"
    samples = {one.index: one for one in reading.gpus.samples}
    for one in reading.gpus.growth:
        if one.index in gpus:
            use, _ = hardware_rows.nvlink_use(one, samples.get(one.index))
            if use is not None:
                return use, "nvlink"
    return None, "nic"


def devices(reading: HardwareReading, pid: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a rank's GPUs and of the ports nearest to them."""
    return tuple(f"gpu{index}" for index in reading.owners.gpus.get(pid, ())), tuple(reading.owners.ports.get(pid, ()))


def device_ids(reading: HardwareReading, pid: int) -> str:
    """Return the permanent ids of a rank's GPUs, joined by ','; '' where one has none."""
    uuids = {growth.index: growth.uuid for growth in reading.gpus.growth}
    found = [uuids.get(index, "") for index in reading.owners.gpus.get(pid, ())]
    return ",".join(found) if all(found) else ""


def counter_rows(
    job: JobGpus, whole: HardwareReading, rows: Mapping[int, RankWindow], raws: Mapping[int, RawProcess], table: Sequence[CallRow],
    before: LaunchCount | None = None, after: LaunchCount | None = None,
) -> list[CounterRow]:  # fmt: skip
    """Build rows of the hardware's counters and of each rank's GPU time.

    `whole`: the reading of all jobs; `rows`, `raws`: by pid of the rank; `before`, `after`:
    launches counted at the window's begin and end, None if they were not.
    """
    others = frozenset(at for pid, found in whole.owners.gpus.items() if pid not in job.numbers for at in found)
    others -= {at for pid, found in whole.owners.gpus.items() if pid in job.numbers for at in found}
    ports = frozenset(name for pid, found in whole.owners.ports.items() if pid not in job.numbers for name in found)
    ports -= {name for found in job.reading.owners.ports.values() for name in found}
    copying = {}
    for pid, found in rows.items():
        moved = [(one.bytes, one.total_s) for one in found.training if one.function.kind == "memory" and one.bytes]
        seconds = sum(spent for _, spent in moved)
        if seconds > 0:
            copying.update(
                dict.fromkeys(job.reading.owners.gpus.get(pid, ()), sum(size for size, _ in moved) / seconds)
            )
    result = hardware_rows.counter_rows(job.reading, others, ports, job.numbers, job.computing, copying)
    for pid, found in rows.items():
        result += _rank_rows(job.numbers[pid], found, raws[pid], table)
        hz = after.rate_hz(before, pid, runtime_launch_rows(table)) if before and after else None
        if hz:
            result.append(
                CounterRow(
                    "rank", rank=job.numbers[pid], name="gpu.launches", unit="events", value=hz * raws[pid].window_s
                )
            )
    return result


def _rank_rows(rank: int, rows: RankWindow, raw: RawProcess, table: Sequence[CallRow]) -> list[CounterRow]:
    """Build a rank's GPU rows: seconds waited for it, collectives launched, seconds computing, in collectives, idle.

    What was not measured has no row.
    """
    calls = raw.events[raw.events["type"] == ring.CALL]
    mine = calls[calls["tid"] == rows.training_thread]
    waited = device_calls.wait_s(mine[np.argsort(mine["ts_ns"], kind="stable")], table)
    launched = int(device_calls.of_roles(calls, table, ENQUEUE).sum()) if len(calls) else 0
    found = []
    if waited or raw.gpu is not None:
        found.append(CounterRow("rank", rank=rank, name="gpu.wait_s", value=waited))
    if launched:
        found.append(CounterRow("rank", rank=rank, name="nccl.launched", unit="events", value=launched))
    if rows.gpu is not None and raw.gpu is not None and raw.gpu.seen:
        seconds = {"compute": rows.gpu.compute_s, "collective": rows.gpu.collective_s}
        found += [
            CounterRow("rank", rank=rank, name=f"gpu.{name}_s", value=float(values.sum()))
            for name, values in seconds.items()
        ]
        idle = raw.gpu.shares.idle * (raw.gpu.shares.end_s - raw.gpu.shares.start_s)
        found.append(CounterRow("rank", rank=rank, name="gpu.idle_s", value=float(np.nansum(idle))))
    return found
