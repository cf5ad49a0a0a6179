"""GPU data of a window: a series of samples, and the growth of counters.

In: rows and readings from sampler.py. Out: GpuSamples, GpuGrowth, GpuRecording. Pure.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rankscope.probes.base.arrays import Floats, Ints
from rankscope.probes.gpu.gpm import GpmSample, readings_of
from rankscope.probes.gpu.model import THROTTLE_BITS, Gpu, pci_address
from rankscope.probes.sampling.growth import cumulative, total_growth

# Sources of kernel_active and sm_active.
GPM, POWER, UTILISATION, NOTHING = "gpm", "power", "utilisation", ""
# An idle GPU draws less than this share of its default power limit: an upper bound for the power
# proxy's floor.
REST_POWER_SHARE = 0.35


@dataclass(frozen=True, slots=True, eq=False)
class GpuSamples:
    """One GPU's series. Every column has one value per sample; NaN where the GPU does not report
    it.

    `time_ns` is CLOCK_MONOTONIC at the end of the interval of `interval_ns`; averages hold for that
    interval, clocks, temperature and power are instantaneous at its end (power: the driver's own
    average where it has no instant one). `source` says what the activity columns mean:

    - "gpm" (Hopper and later): kernel_active is the share of the interval in which any kernel ran,
    sm_active the mean share of SMs with a warp, tensor_active the share of cycles in which the
    tensor pipe worked, dram_active the share of the memory's peak rate that was used.
    - "power" (A100 and older: no GPM): kernel_active is NVML's utilisation rate, the share of the
    driver's last sample period (1/6 s to 1 s, so a little late) in which any kernel ran;
    dram_active is its memory utilisation, the share of that period in which memory was read or
    written (not the rate); sm_active is a proxy, kernel_active · clip((P − P_rest) / (P_default −
    P_rest), 0, 1) with P the power now, P_rest the least power of the series (at most 0.35 ·
    P_default) and P_default the default power limit: waiting inside a collective kernel draws
    little, computing much. It separates the two on one GPU, but does not compare GPUs.
    tensor_active is NaN.
    - "utilisation": as "power" but the GPU reports no power; sm_active is NaN.
    - "": no activity at all.

    Rates in bytes per second: pcie from GPM, else from its byte counters; nvlink likewise, all
    links together. `throttle_reasons` is NVML's bit mask, −1 where unknown (model.THROTTLE_BITS).
    """

    index: int
    uuid: str
    bus: str
    name: str
    source: str
    time_ns: Ints
    interval_ns: Ints
    kernel_active: Floats
    sm_active: Floats
    tensor_active: Floats
    dram_active: Floats
    pcie_tx_hz: Floats
    pcie_rx_hz: Floats
    nvlink_tx_hz: Floats
    nvlink_rx_hz: Floats
    sm_clock_hz: Floats
    memory_clock_hz: Floats
    power_w: Floats
    temperature_c: Floats
    throttle_reasons: Ints


@dataclass(frozen=True, slots=True)
class Xid:
    """A critical error that the driver reported. `time_ns` (CLOCK_MONOTONIC) is when it was
    fetched, up to 1 s late.
    """

    number: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process that had a context on the GPU.

    `memory_bytes` is the most it used; `active` its mean share of SM time, 0..1, None where not
    reported; `seen` the number of readings with it.
    """

    pid: int
    memory_bytes: int | None
    active: float | None
    seen: int


@dataclass(frozen=True, slots=True)
class LinkGrowth:
    """State and error growth of one NVLink.

    `active` in the last reading; `down`: not active in at least one of them (never true where no
    link of the GPU ever was: it is not wired); `fell`: active at first, later not. Errors are
    growth, None where not counted.
    """

    link: int
    active: bool
    down: bool
    fell: bool
    crc: int | None
    replay: int | None
    recovery: int | None

    @property
    def errors(self) -> int | None:
        """Sum of the CRC, replay and recovery errors; None where none of them is counted."""
        known = [count for count in (self.crc, self.replay, self.recovery) if count is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class GpuGrowth:
    """Growth of one GPU's counters from `first` to `last`, in `seconds`; None where it does not
    count them.

    The readings between the two are taken into account: a counter that wraps or is reset in between
    loses at most the growth of one interval (sampling/growth.py). `first` and `last` are the first
    and the last complete reading, None where there was none; `latest` the last reading of any kind:
    only what can change within a window (GpuReader.moving). `lost`: the GPU fell off the bus, seen
    at `lost_ns` (CLOCK_MONOTONIC, 0 if not); counts until then remain.
    """

    index: int
    uuid: str
    bus: str
    name: str
    seconds: float
    first: Gpu | None
    last: Gpu | None
    latest: Gpu | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    rows_remapped: int | None = None
    retired_pages: int | None = None
    pcie_replays: int | None = None
    pcie_tx_bytes: int | None = None
    pcie_rx_bytes: int | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None
    links: tuple[LinkGrowth, ...] = ()
    xids: tuple[Xid, ...] = ()
    earlier_xids: tuple[Xid, ...] = ()  # received before the sampling began
    processes: tuple[ProcessUse, ...] = ()
    memory_temperature_c: float | None = None
    lost: bool = False
    lost_ns: int = 0

    @property
    def links_down(self) -> int | None:
        """Number of links that were down; None where there are no links, 0 where none was ever up (see `dark`)."""
        return sum(link.down for link in self.links) if self.links else None

    @property
    def dark(self) -> bool:
        """Tell whether no link was up in the whole window.

        Either this GPU has no NVLink connected, or it lost all; comparing with other GPUs of the
        host decides.
        """
        return bool(self.links) and not any(link.active or link.down for link in self.links)

    @property
    def nvlink_errors(self) -> int | None:
        """Sum the CRC, replay and recovery errors of all links; None where none counts them."""
        known = [link.errors for link in self.links if link.errors is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class GpuRecording:
    """GPU data of a window. `missing` says what could not be recorded, and why; `cpu_s` is the CPU
    time of sampling.
    """

    samples: tuple[GpuSamples, ...] = ()
    growth: tuple[GpuGrowth, ...] = ()
    driver_version: str = ""
    cpu_s: float = 0.0
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ThrottleTime:
    """Seconds in which a GPU reported one reason for a lowered clock, of the `seconds` that were
    sampled.
    """

    reason: str
    throttled_s: float
    seconds: float


def throttle_times(samples: GpuSamples) -> tuple[ThrottleTime, ...]:
    """Sum, for each throttle reason, the intervals at whose end its bit was set; empty where not reported."""
    known = samples.throttle_reasons >= 0
    if not known.any():
        return ()
    seconds = float(samples.interval_ns[known].sum()) / 1e9
    return tuple(
        ThrottleTime(
            reason, float(samples.interval_ns[known & (samples.throttle_reasons & bit != 0)].sum()) / 1e9, seconds
        )
        for reason, bit in THROTTLE_BITS.items()
    )


def power_proxy(kernel_active: Floats, power_w: Floats, default_w: float | None) -> Floats:
    """Estimate SM activity from power: kernel_active · clip((P − P_rest) / (P_default − P_rest), 0, 1).

    `default_w`: P_default, the default power limit; all NaN without it or without any power. See
    GpuSamples for P_rest.
    """
    finite = power_w[np.isfinite(power_w)]
    if not default_w or default_w <= 0 or finite.size == 0:
        return np.full(len(power_w), np.nan)
    rest = min(float(finite.min()), REST_POWER_SHARE * default_w)
    return kernel_active * np.clip((power_w - rest) / (default_w - rest), 0.0, 1.0)


_GPM_NAMES = (
    "kernel_active", "sm_active", "tensor_active", "dram_active", "pcie_tx_hz", "pcie_rx_hz", "nvlink_tx_hz", "nvlink_rx_hz",
)  # fmt: skip
_GPM_COLUMNS = operator.attrgetter(*_GPM_NAMES)


class Row(NamedTuple):
    """One raw sample: the GPM sample, or the utilisation rates where there is no GPM."""

    time_ns: int
    interval_ns: int
    gpm: GpmSample | None
    kernel_active: float
    dram_active: float
    sm_clock_hz: float
    memory_clock_hz: float
    power_w: float
    reasons: float


def samples_of(index: int, rows: Sequence[Row], readings: Sequence[tuple[int, Gpu]]) -> GpuSamples:
    """Build the columns of one GPU from its rows and (time in ns, reading) pairs; see GpuSamples for fallbacks.

    Rows whose metrics were never computed (the last ones of a GPU whose driver hung) are left out, unless no
    other rows remain.
    """
    rows = [row for row in rows if row.gpm is None or row.gpm.metrics] or rows
    first = readings[0][1] if readings else Gpu(index)
    times = np.array([row.time_ns for row in rows], np.int64)
    measured, power = _gpm_columns(rows), _column(rows, "power_w")
    kernel, sm, dram = measured["kernel_active"], measured["sm_active"], measured["dram_active"]
    source = GPM
    if not (np.isfinite(kernel).any() or np.isfinite(sm).any()):
        kernel, dram = _column(rows, "kernel_active"), _column(rows, "dram_active")
        sm, source = _without_gpm(kernel, sm, power, first)
    links = {
        f"{link}_{way}_hz": _or_counted(measured[f"{link}_{way}_hz"], times, readings, f"{link}_{way}_bytes")
        for link in ("pcie", "nvlink")
        for way in ("tx", "rx")
    }
    reasons = _column(rows, "reasons")
    return GpuSamples(
        index=index,
        uuid=first.uuid or "",
        bus=pci_address(first.bus),
        name=first.name or "",
        source=source,
        time_ns=times,
        interval_ns=np.array([row.interval_ns for row in rows], np.int64),
        kernel_active=kernel,
        sm_active=sm,
        tensor_active=measured["tensor_active"],
        dram_active=dram,
        sm_clock_hz=_column(rows, "sm_clock_hz"),
        memory_clock_hz=_column(rows, "memory_clock_hz"),
        power_w=power,
        temperature_c=_latest_before(times, readings, "temperature_c"),
        throttle_reasons=np.where(np.isfinite(reasons), reasons, -1).astype(np.int64),
        **links,
    )


def _column(rows: Sequence[Row], name: str) -> Floats:
    """Return the field `name` of every row, as an array."""
    return np.array([getattr(row, name) for row in rows], np.float64)


def _gpm_columns(rows: Sequence[Row]) -> dict[str, Floats]:
    """Parse the GPM metrics of the rows into columns by name; NaN for rows that have none."""
    table = np.full((len(_GPM_NAMES), len(rows)), np.nan)
    told = {place: row.gpm for place, row in enumerate(rows) if row.gpm is not None and row.gpm.metrics}
    if told:
        table[:, list(told)] = np.transpose([_GPM_COLUMNS(one) for one in readings_of(list(told.values()))])
    return dict(zip(_GPM_NAMES, table, strict=True))


def growth_of(
    index: int,
    readings: Sequence[tuple[int, Gpu]],
    xids: tuple[Xid, ...],
    lost_ns: int,
    earlier_xids: tuple[Xid, ...] = (),
) -> GpuGrowth:
    """Compute the growth of a GPU's counters over (time in ns, reading) pairs in order; a reset adds 0.

    `lost_ns`: when the GPU was lost (CLOCK_MONOTONIC), 0 if it was not.
    """
    gpus = [gpu for _, gpu in readings]
    # Only complete readings have the bus or, where that is unsupported, the name.
    complete = [gpu for gpu in gpus if gpu.bus is not None or gpu.name is not None]
    first = complete[0] if complete else None

    def grown(name: str) -> int | None:
        return total_growth([getattr(gpu, name) for gpu in gpus])

    remapped = [total for total in (grown("remap_corrected"), grown("remap_uncorrected")) if total is not None]
    hottest = [gpu.memory_temperature_c for gpu in gpus if gpu.memory_temperature_c is not None]
    return GpuGrowth(
        index=index,
        uuid=(first.uuid if first is not None else None) or "",
        bus=pci_address(first.bus) if first is not None else "",
        name=(first.name if first is not None else None) or "",
        seconds=(readings[-1][0] - readings[0][0]) / 1e9 if readings else 0.0,
        first=first,
        last=complete[-1] if complete else None,
        latest=gpus[-1] if gpus else None,
        ecc_corrected=grown("ecc_corrected"),
        ecc_uncorrected=grown("ecc_uncorrected"),
        rows_remapped=sum(remapped) if remapped else None,
        retired_pages=grown("retired_pages"),
        pcie_replays=grown("pcie_replays"),
        pcie_tx_bytes=grown("pcie_tx_bytes"),
        pcie_rx_bytes=grown("pcie_rx_bytes"),
        nvlink_tx_bytes=grown("nvlink_tx_bytes"),
        nvlink_rx_bytes=grown("nvlink_rx_bytes"),
        links=_links(gpus),
        xids=xids,
        earlier_xids=earlier_xids,
        processes=_processes(gpus),
        memory_temperature_c=float(max(hottest)) if hottest else None,
        lost=lost_ns > 0,
        lost_ns=lost_ns,
    )


def _links(gpus: Sequence[Gpu]) -> tuple[LinkGrowth, ...]:
    """Compute the state and error growth of each NVLink over readings in order; sorted by link number."""
    # A reader returns the same object as long as nothing changes; the last is added, for growth
    # needs two.
    told = [gpu.links for gpu in gpus]
    changed = [place for place, links in enumerate(told[:-1]) if place == 0 or links is not told[place - 1]]
    seen = [{link.link: link for link in told[place]} for place in (*changed, *range(len(told))[-1:])]
    wired = any(link.active for one in seen for link in one.values())
    result = []
    for number in sorted({link for one in seen for link in one}):
        history = [one[number] for one in seen if number in one]
        states = [link.active for link in history]
        result.append(
            LinkGrowth(
                number,
                states[-1],
                wired and not all(states),
                states[0] and not all(states),
                *(total_growth([getattr(link, kind) for link in history]) for kind in ("crc", "replay", "recovery")),
            )
        )
    return tuple(result)


def _processes(gpus: Sequence[Gpu]) -> tuple[ProcessUse, ...]:
    """Summarize each process over the readings: most memory, mean SM share, number of readings; by pid.

    The first reading, which also covers time before the window, does not count for the share. A
    process without a share had 0 if the driver reports any, else all shares are None.
    """
    told = any(process.sm_percent is not None for gpu in gpus for process in gpu.processes)
    found: dict[int, list[tuple[int | None, float]]] = {}
    counted = {id(gpu) for gpu in (gpus[1:] if len(gpus) > 1 else gpus)}
    for gpu in gpus:
        for process in gpu.processes:
            share = (process.sm_percent or 0.0) / 100 if id(gpu) in counted else math.nan
            found.setdefault(process.pid, []).append((process.memory_bytes, share))
    result = []
    for pid, uses in sorted(found.items()):
        memory = [held for held, _ in uses if held is not None]
        shares = [share for _, share in uses if not math.isnan(share)]
        active = sum(shares) / len(shares) if told and shares else None
        result.append(ProcessUse(pid, max(memory) if memory else None, active, len(uses)))
    return tuple(result)


def _latest_before(times: Ints, readings: Sequence[tuple[int, Gpu]], name: str) -> Floats:
    """Return, at each of `times`, field `name` of the latest reading before it; NaN without any.

    Times before the first reading get its value. Times in ns.
    """
    known = [(time_ns, float(value)) for time_ns, gpu in readings if (value := getattr(gpu, name)) is not None]
    if not known:
        return np.full(len(times), np.nan)
    values = np.array([value for _, value in known])
    place = np.searchsorted(np.array([time_ns for time_ns, _ in known], np.int64), times, side="right") - 1
    return values[np.clip(place, 0, None)]


def _without_gpm(kernel: Floats, sm: Floats, power: Floats, gpu: Gpu) -> tuple[Floats, str]:
    """Estimate SM activity from kernel activity and power; return it with its source.

    Source: POWER; UTILISATION where power is unknown (all NaN); NOTHING where `kernel` is unknown, and
    then `sm` as given.
    """
    if not np.isfinite(kernel).any():
        return sm, NOTHING
    proxy = power_proxy(kernel, power, gpu.power_default_w)
    return proxy, POWER if np.isfinite(proxy).any() else UTILISATION


def _or_counted(measured: Floats, times: Ints, readings: Sequence[tuple[int, Gpu]], name: str) -> Floats:
    """Return the `measured` rate or, where GPM has none, the rate of the byte counter `name`, in bytes/s.

    The latter is growth per second between the two readings around each sample: a mean over about a
    second.
    """
    if np.isfinite(measured).any():
        return measured
    known = [(time_ns, int(value)) for time_ns, gpu in readings if (value := getattr(gpu, name)) is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return measured
    at = np.array([time_ns for time_ns, _ in known], np.int64)
    total = np.array(cumulative([value for _, value in known]), np.float64)
    rates = np.diff(total) / np.maximum(np.diff(at), 1) * 1e9
    return rates[np.clip(np.searchsorted(at, times, side="left") - 1, 0, len(rates) - 1)]
