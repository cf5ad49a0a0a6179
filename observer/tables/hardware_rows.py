"""Build rows of the table `counters` for GPUs, NVLinks, PCI links and network ports. Pure.

In: a HardwareReading. Out: rows with the names of schema.COUNTER_NAMES. A row belongs to the rank
that uses the device (−1: several ranks', or all of the host's); unreported values have no row.
Devices that the job does not use are left out where it is known which ones it uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rankscope.observer.census.owners import Foreign
from rankscope.observer.tables.reading import HardwareReading
from rankscope.observer.thread import resource_use
from rankscope.observer.thread.resource_use import Use
from rankscope.observer.window.rows import CounterRow
from rankscope.probes.base.arrays import Floats, Ints
from rankscope.probes.gpu.series import GPM, GpuGrowth, GpuSamples, throttle_times
from rankscope.probes.gpu.xid import LoggedXid
from rankscope.probes.pci.sampler import PcieGrowth
from rankscope.probes.pci.tree import BRIDGE
from rankscope.probes.ports.model import ERROR_NAMES, ETHERNET, PortGrowth, PortRecording

_BUSY = 0.1
_MEGA = 1e6
# Transfer rates of one lane and direction in bytes/s by GT/s, after line coding (PCI Express Base Specification).
_LANE_HZ = {2.5: 0.25e9, 5.0: 0.5e9, 8.0: 0.985e9, 16.0: 1.969e9, 32.0: 3.938e9, 64.0: 7.563e9}
_GENERATION_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
# A pause of so many seconds in a burst lies between two collectives, not within one: the steps of a
# ring are shorter.
_PAUSE_S = 0.02
_IDLE_SHARE = 0.005


def level(
    scope: str, instance: str, rank: int, name: str, unit: str, values: Any, limit: float | None = None
) -> Iterator[CounterRow]:
    """Yield a gauge row: mean, least and greatest of the values, without NaN; none if there are no
    values.
    """
    known = np.asarray(values, dtype=np.float64).reshape(-1)
    known = known[np.isfinite(known)]
    if len(known):
        yield CounterRow(
            scope,
            instance,
            rank=rank,
            name=name,
            unit=unit,
            kind="gauge",
            value=float(known.mean()),
            minimum=float(known.min()),
            maximum=float(known.max()),
            limit=limit if limit and limit > 0 else None,
        )


def counter_rows(
    reading: HardwareReading,
    others: frozenset[int],
    ports_of_others: frozenset[str],
    numbers: Mapping[int, int],
    computing: Mapping[int, float],
    copying_hz: Mapping[int, float],
) -> list[CounterRow]:
    """Build all hardware rows of one job.

    `others`: GPUs of other jobs' ranks, left out, as are `ports_of_others`. `numbers`: pid of a
    rank -> its number. By GPU index: `computing`, the level of SM activity while computing, and
    `copying_hz`, the rate of the copies of the GPU's rank, bytes/s.
    """
    ranks = {growth.index: numbers.get(reading.owners.gpu_pid(growth.index) or 0, -1) for growth in reading.gpus.growth}
    ports = {
        port.growth.name: numbers.get(reading.owners.port_pid(port.growth.name) or 0, -1) for port in reading.nics.ports
    }
    rows = _gpu_rows(reading, others, ranks, computing, copying_hz)
    for foreign in reading.owners.foreign:
        rows += _foreign(foreign, ranks.get(foreign.gpu, -1))
    for port in reading.nics.ports:
        name, rank = port.growth.name, ports[port.growth.name]
        known = bool(reading.owners.ports) and port.growth.first.kind != ETHERNET
        if name not in ports_of_others and (rank >= 0 or not known):
            rows += _port(port, rank)
    return rows + _pci_rows(reading, others, ranks, ports)


def _gpu_rows(
    reading: HardwareReading,
    others: frozenset[int],
    ranks: Mapping[int, int],
    computing: Mapping[int, float],
    copying_hz: Mapping[int, float],
) -> list[CounterRow]:
    """Build rows of the job's GPUs with their links; of GPUs that no rank uses only if lost or with an error.

    By GPU index: `others` are left out; `ranks`: rank, -1 for none; `computing`, `copying_hz` as in
    counter_rows.
    """
    rows: list[CounterRow] = []
    samples = {one.index: one for one in reading.gpus.samples}
    # GPUs of one product are wired alike: where others have their links, one without any has lost
    # them.
    connected = {growth.name for growth in reading.gpus.growth if growth.links and not growth.dark}
    for growth in reading.gpus.growth:
        rank, series = ranks[growth.index], samples.get(growth.index)
        earlier = _earlier_xids(growth, reading.earlier_xids)
        if growth.index in others or (rank < 0 and not (growth.lost or growth.xids or earlier)):
            continue
        rows += _gpu(growth, series, rank, computing.get(growth.index))
        of_gpu = partial(CounterRow, "gpu", f"gpu{growth.index}", rank=rank, unit="events", kind="gauge")
        rows += [of_gpu(name=f"gpu.earlier_xid.{number}", value=count) for number, count in sorted(earlier.items())]
        rows += _nvlink(growth, series, rank, growth.name in connected)
        rows += _gpu_link(growth, series, rank, copying_hz.get(growth.index))
    return rows


def _pci_rows(
    reading: HardwareReading, others: frozenset[int], ranks: Mapping[int, int], ports: Mapping[str, int]
) -> list[CounterRow]:
    """Build rows of PCI links with the job's GPUs, ports or a disk below; without known owners, all
    but others' GPUs.

    `ranks` by GPU, `ports`: rank by port.
    """
    rows: list[CounterRow] = []
    buses = {growth.bus: ranks[growth.index] for growth in reading.gpus.growth if growth.bus}
    theirs = {growth.bus for growth in reading.gpus.growth if growth.index in others}
    disks = {one.address for one in reading.links.devices if one.kind == "nvme"}
    users = {one.address: _users(one, buses, ports) for one in reading.links.devices}
    for device in reading.links.devices:
        below = device.below if device.kind == BRIDGE else (device.address,)
        using = {rank for address in below for rank in users.get(address, ())}
        unknown = not reading.owners.gpus and not theirs.issuperset(below)
        if using or unknown or disks.intersection(below):
            rows += _pci_link(device.address, next(iter(using)) if len(using) == 1 else -1, device)
    return rows


def _users(device: PcieGrowth, buses: Mapping[str, int], owners: Mapping[str, int]) -> set[int]:
    """Return the ranks that use a PCI device: as a GPU (`buses`: address -> rank) or NIC (`owners`: port -> rank)."""
    return ({buses.get(device.address, -1)} | {owners.get(name, -1) for name in device.ports}) - {-1}


def _foreign(process: Foreign, rank: int) -> Iterator[CounterRow]:
    """Yield rows of what a process of another job takes of this rank's GPU."""
    for name, unit, value in (
        ("gpu.foreign_memory_bytes", "bytes", process.memory_bytes),
        ("gpu.foreign_active", "share", process.active),
    ):
        for row in level("gpu", f"gpu{process.gpu}", rank, name, unit, _number(value)):
            yield replace(row, comm=process.comm, pid=process.pid)


def _number(value: float | None) -> float:
    """Convert to float; NaN for None."""
    return float("nan") if value is None else float(value)


def _gpu(growth: GpuGrowth, series: GpuSamples | None, rank: int, computing: float | None) -> Iterator[CounterRow]:
    """Yield the rows of one GPU, without its links: sampled levels, SM activity while computing, health.

    `computing`: that activity (0..1), None if unknown.
    """
    name = f"gpu{growth.index}"
    if series is not None and len(series.time_ns):
        yield from _gpu_levels(growth, series, rank)
    if computing is not None:
        yield from level("gpu", name, rank, "gpu.sm_active_computing", "share", computing)
    yield from _gpu_health(growth, rank)


def _gpu_levels(growth: GpuGrowth, series: GpuSamples, rank: int) -> Iterator[CounterRow]:
    """Yield rows of clocks while busy, their limiting reasons, power, temperature, activity."""
    name, last = f"gpu{growth.index}", growth.last or growth.first
    busy = np.nan_to_num(series.kernel_active) > _BUSY
    busy = busy if busy.any() else np.ones(len(busy), dtype=bool)
    sm_limit = _number(last.sm_clock_max_mhz if last else None) * _MEGA
    memory_limit = _number(last.memory_clock_max_mhz if last else None) * _MEGA
    yield from level("gpu", name, rank, "gpu.sm_clock_hz", "Hz", series.sm_clock_hz[busy], sm_limit)
    yield from level("gpu", name, rank, "gpu.memory_clock_hz", "Hz", series.memory_clock_hz[busy], memory_limit)
    for reason in throttle_times(series):
        yield CounterRow("gpu", name, rank=rank, name=f"gpu.throttle.{reason.reason}_s", value=reason.throttled_s)
    yield from level("gpu", name, rank, "gpu.power_w", "W", series.power_w, last.power_limit_w if last else None)
    slowdown_c = _number(last.slowdown_c if last else None)
    yield from level("gpu", name, rank, "gpu.temperature_c", "celsius", series.temperature_c, slowdown_c)
    activities = {"kernel": series.kernel_active, "tensor": series.tensor_active, "dram": series.dram_active}
    if series.source == GPM:  # elsewhere it is estimated from power
        activities["sm"] = series.sm_active
    for what, values in activities.items():
        yield from level("gpu", name, rank, f"gpu.{what}_active", "share", values)


def _gpu_health(growth: GpuGrowth, rank: int) -> Iterator[CounterRow]:
    """Yield rows of power cap, pending repairs, memory errors, Xids, and whether it fell off the
    bus.
    """
    name, last = f"gpu{growth.index}", growth.last or growth.first
    of_gpu = partial(CounterRow, "gpu", name, rank=rank)
    if last is not None:
        yield from level("gpu", name, rank, "gpu.power_cap_w", "W", _number(last.power_limit_w), last.power_default_w)
        for what, flag in (("remap_pending", last.remap_pending), ("remap_failed", last.remap_failed)):
            yield from level("gpu", name, rank, f"gpu.{what}", "flag", _number(flag))
        yield from level("gpu", name, rank, "gpu.recovery_action", "number", _number(last.recovery_action))
    yield from level("gpu", name, rank, "gpu.memory_temperature_c", "celsius", _number(growth.memory_temperature_c))
    for what in ("ecc_corrected", "ecc_uncorrected", "rows_remapped", "retired_pages"):
        grown = getattr(growth, what)
        if grown is not None:
            yield of_gpu(name=f"gpu.{what}", unit="events", value=grown)
    for number, count in sorted(Counter(xid.number for xid in growth.xids).items()):
        yield of_gpu(name=f"gpu.xid.{number}", unit="events", value=count)
    if growth.lost:
        yield of_gpu(name="gpu.lost", unit="flag", kind="gauge", value=1.0)


def _earlier_xids(growth: GpuGrowth, logged: Iterable[LoggedXid]) -> dict[int, int]:
    """Count earlier Xids by number: from the kernel's log or from NVML while the probes were
    loaded, the larger count.
    """
    in_log = Counter(xid.number for xid in logged if growth.bus and growth.bus.startswith(xid.bus))
    return dict(in_log | Counter(xid.number for xid in growth.earlier_xids))


def _nvlink(growth: GpuGrowth, series: GpuSamples | None, rank: int, connected: bool) -> Iterator[CounterRow]:
    """Yield rows of a GPU's NVLinks: links down, errors, bytes moved, rate and use in bursts.

    `connected`: other GPUs of this product have links, so if this one never had one up, all count
    as down.
    """
    name = f"gpu{growth.index}"
    if growth.links_down is not None:
        down = len(growth.links) if growth.dark and connected else growth.links_down
        yield from level("nvlink", name, rank, "nvlink.links_down", "links", down, len(growth.links))
    if growth.nvlink_errors is not None:
        yield CounterRow("nvlink", name, rank=rank, name="nvlink.errors", unit="events", value=growth.nvlink_errors)
    for direction in ("tx", "rx"):
        moved = _moved(getattr(growth, f"nvlink_{direction}_bytes"), series, f"nvlink_{direction}_hz")
        if moved is not None and growth.links:
            yield CounterRow("nvlink", name, rank=rank, name=f"nvlink.{direction}_bytes", unit="bytes", value=moved)
    use, limit = nvlink_use(growth, series)
    if use is not None:
        yield from level("nvlink", name, rank, "nvlink.burst_hz", "bytes/s", use.moving * limit, limit)
        yield from level("nvlink", name, rank, "nvlink.collective_mu", "share", use.mu)
        yield from level("nvlink", name, rank, "nvlink.collective_sigma", "share", use.sigma)


def nvlink_use(growth: GpuGrowth, series: GpuSamples | None) -> tuple[Use | None, float]:
    """Measure the use of a GPU's NVLinks in the window (busier direction, share of the limit); and the limit, bytes/s.

    None if nothing moved; (None, 0.0) without samples or limit. The measure is one summary (μ, σ)
    over sample intervals, which are coarser than a collective.
    """
    seen = growth.last or growth.first
    limit = _number(seen.link_speed_mbps if seen else None) * _MEGA * max(len(growth.links), 1)
    if series is None or not len(series.time_ns) or not limit > 0:
        return None, 0.0
    rates = np.fmax(series.nvlink_tx_hz, series.nvlink_rx_hz) / limit
    return resource_use.measure([(rates, series.interval_ns / 1e9)], idle=_IDLE_SHARE), limit


def pcie_limit_hz(growth: GpuGrowth) -> float:
    """Return the limit of the GPU's PCIe link in one direction, bytes/s; 0 unknown."""
    seen = growth.last or growth.first
    if seen is None or not seen.pcie_gen_max or not seen.pcie_width_max:
        return 0.0
    return _LANE_HZ.get(_GENERATION_GTS.get(seen.pcie_gen_max, 0.0), 0.0) * seen.pcie_width_max


def _gpu_link(
    growth: GpuGrowth, series: GpuSamples | None, rank: int, copying_hz: float | None
) -> Iterator[CounterRow]:
    """Yield rows of a GPU's PCIe link: replays, bytes moved, rate of copies; none if its PCI address is unknown.

    `copying_hz`: rate of its rank's copies, bytes/s; None if unknown.
    """
    if not growth.bus:
        return
    if growth.pcie_replays is not None:
        yield CounterRow("pcie", growth.bus, rank=rank, name="pcie.replays", unit="events", value=growth.pcie_replays)
    for direction in ("rx", "tx"):
        moved = _moved(getattr(growth, f"pcie_{direction}_bytes"), series, f"pcie_{direction}_hz")
        if moved is not None:
            yield CounterRow("pcie", growth.bus, rank=rank, name=f"pcie.{direction}_bytes", unit="bytes", value=moved)
    if copying_hz:
        yield from level("pcie", growth.bus, rank, "pcie.burst_hz", "bytes/s", copying_hz, pcie_limit_hz(growth))


def _moved(counted: int | None, series: GpuSamples | None, rate: str) -> float | None:
    """Return bytes moved: as `counted` by the GPU, else Σ rate · interval; None if neither is known.

    `rate`: name of the column of `series` with bytes/s.
    """
    if counted is not None:
        return float(counted)
    if series is None or not np.isfinite(getattr(series, rate)).any():
        return None
    return float(np.nansum(getattr(series, rate) * series.interval_ns / 1e9))


def _pci_link(address: str, rank: int, device: PcieGrowth) -> Iterator[CounterRow]:
    """Yield rows of the link of a PCI device: speed, width and errors, as far as they were read."""
    if device.speed_gts is not None:
        yield from level("pcie", address, rank, "pcie.speed_gts", "GT/s", device.speed_gts, device.speed_limit_gts)
    if device.width is not None:
        widths = [device.width, device.width_least if device.width_least is not None else device.width]
        for one in level("pcie", address, rank, "pcie.width", "lanes", widths, device.width_limit):
            yield replace(one, value=float(device.width))
    for what in ("correctable", "nonfatal", "fatal"):
        grown = getattr(device, what)
        if grown is not None:
            yield CounterRow("pcie", address, rank=rank, name=f"pcie.aer_{what}", unit="events", value=grown)


def _port(port: PortRecording, rank: int) -> Iterator[CounterRow]:
    """Yield rows of a network port: state, bytes (not for Ethernet), errors, rate and use in its bursts."""
    growth = port.growth
    name, speed = growth.name, growth.speed_hz
    yield from _port_state(growth, rank)
    of_port = partial(CounterRow, "nic", name, rank=rank)
    if growth.first.kind != ETHERNET:  # gauges.py reads those of interfaces, in each network namespace
        for direction in ("tx", "rx"):
            grown = getattr(growth, f"{direction}_bytes")
            if grown is not None:
                yield of_port(name=f"nic.{direction}_bytes", unit="bytes", value=grown, limit=speed or None)
    for what in ERROR_NAMES:
        grown = getattr(growth.errors, what)
        if grown is not None:
            yield of_port(name=f"nic.{what}", unit="events", value=grown)
    use = port_use(port)
    if use is not None:
        yield from level("nic", name, rank, "nic.burst_hz", "bytes/s", use.moving * speed, speed)
        yield from level("nic", name, rank, "nic.collective_mu", "share", use.mu)
        yield from level("nic", name, rank, "nic.collective_sigma", "share", use.sigma)


def _port_state(growth: PortGrowth, rank: int) -> Iterator[CounterRow]:
    """Yield rows of a port's speed and width against their limits, and the share of readings in
    which it was up.
    """
    name, speed = growth.name, growth.speed_hz
    most = max(growth.first.speed_hz, growth.last.speed_hz)
    of_port = partial(CounterRow, "nic", name, rank=rank, kind="gauge")
    if speed > 0:
        yield of_port(
            name="nic.speed_hz", unit="bytes/s", value=speed, minimum=speed, maximum=max(most, speed),
            limit=growth.first.speed_limit_hz or most or None,
        )  # fmt: skip
    if growth.width is not None:
        yield from level("nic", name, rank, "nic.width", "lanes", growth.width, growth.first.width_limit)
    if growth.first.up is not None:
        yield of_port(
            name="nic.state", unit="flag", value=1 - growth.down_readings / max(growth.readings, 1),
            minimum=0.0 if growth.down_readings else 1.0, maximum=1.0 if growth.down_readings < growth.readings else 0.0,
        )  # fmt: skip


def port_use(port: PortRecording) -> Use | None:
    """Measure the use of a port over its bursts: each stretch between pauses is an execution.

    None without bursts, bytes or a speed.
    """
    speed = port.growth.speed_hz or port.growth.first.speed_hz
    pieces = []
    for burst in port.bursts:
        kept = _spaced(burst.time_ns)
        if len(kept) < 2 or speed <= 0:
            continue
        length = np.diff(burst.time_ns[kept]) / 1e9
        moved = max((np.diff(burst.tx_bytes[kept]), np.diff(burst.rx_bytes[kept])), key=lambda one: float(one.sum()))
        use: Floats = np.minimum(moved / length / speed, 1.0)
        pause = max(round(_PAUSE_S / float(np.median(length))), 1)
        pieces += [(use[part], length[part]) for part in resource_use.executions(use, pause, _IDLE_SHARE)]
    return resource_use.measure(pieces, idle=_IDLE_SHARE)


def _spaced(time_ns: Ints) -> list[int]:
    """Return the indices of readings at least three quarters of the usual interval apart; empty for fewer than two.

    A late reading is followed by others too soon, and a card that updates its counters once a
    millisecond would seem to have moved a millisecond's bytes in between.
    """
    if len(time_ns) < 2:
        return []
    least = 0.75 * float(np.median(np.diff(time_ns)))
    kept = [0]
    for at in range(1, len(time_ns)):
        if time_ns[at] - time_ns[kept[-1]] >= max(least, 1.0):
            kept.append(at)
    return kept
