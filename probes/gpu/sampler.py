"""Sample the GPUs of this host over a window, on a thread, through NVML at chosen rates.

In: pynvml. Out: GpuRecording (series.py). At `activity_hz` (10 Hz): GPM, and every other time
(without GPM every time) SM clock, reasons for lowered clocks, power. At `status_hz` (0.5 Hz):
memory clock, temperatures, ECC, remapped rows, PCIe, NVLink states, errors and bytes, processes.
Everything at begin and end. README.md says how fast each value truly changes and what has been
verified. Cost: scripts/bench counters. Nothing is ever set.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from rankscope.probes.gpu.gpm import Gpm, GpmSample, open_gpm
from rankscope.probes.gpu.model import Gpu
from rankscope.probes.gpu.nvml import MAX_GPUS, open_library
from rankscope.probes.gpu.nvml_calls import number
from rankscope.probes.gpu.nvml_fields import (
    CLOCK_MEMORY,
    CLOCK_SM,
    FIELD_POWER_INSTANT,
    GpuReader,
    OneField,
    ask,
    is_lost,
    text,
)
from rankscope.probes.gpu.series import (
    GpuGrowth,
    GpuRecording,
    GpuSamples,
    LinkGrowth,
    ProcessUse,
    Row,
    ThrottleTime,
    Xid,
    growth_of,
    samples_of,
    throttle_times,
)
from rankscope.probes.gpu.xid import XidWatch
from rankscope.probes.sampling.thread import Sampler

__all__ = (
    "GpuGrowth", "GpuRecording", "GpuSampler", "GpuSamples", "LinkGrowth", "ProcessUse", "ThrottleTime", "Xid", "throttle_times",
)  # fmt: skip

Number = Callable[[], float]
_XIDS_HZ = 1.0


class _GpuTrack:
    """Samples of one GPU so far, and the prepared calls that read it."""

    def __init__(self, library: Any, index: int) -> None:
        self.index = index
        self.rows: list[Row] = []
        self.readings: list[tuple[int, Gpu]] = []
        self.xids: list[Xid] = []
        self.earlier_xids: list[Xid] = []
        self.lost_ns = 0
        self.failures = 0
        self.since_ns = 0
        self.reader: GpuReader | None = None
        self.gpm: Gpm | None = None
        try:
            self.reader = GpuReader(library, index)
            self.read_all()
            handle = self.reader.handle
            self.gpm = open_gpm(library, handle)
            clock = functools.partial(number, library, "nvmlDeviceGetClockInfo", ctypes.c_uint, handle)
            self.sm_clock = clock(ctypes.c_uint(CLOCK_SM)) or _unknown
            self.memory_clock = clock(ctypes.c_uint(CLOCK_MEMORY)) or _unknown
            self.memory_clock_hz = _number(self.memory_clock) * 1e6
            self.power = _power(library, handle)
            self.reasons = (
                number(library, "nvmlDeviceGetCurrentClocksEventReasons", ctypes.c_ulonglong, handle)
                or number(library, "nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong, handle)
                or _unknown
            )
            # A fallback: twice the calls, for what GPM has all of.
            self.rates = None if self.gpm else _rates(library, handle)
            # Clock, power, reasons: read less often where GPM measures activity and power is no
            # substitute for it.
            self.state_every = 2 if self.gpm else 1
            self.state = math.nan, math.nan, math.nan, math.nan
        except Exception as error:
            self.failed(error)

    @property
    def alive(self) -> bool:
        """Whether the GPU was opened and is not lost."""
        return self.reader is not None and not self.lost_ns

    def failed(self, error: Exception) -> None:
        """Record a failed call: as the time of the loss if the GPU is lost, else in the count of failures."""
        if is_lost(error):
            self.lost_ns = self.lost_ns or time.monotonic_ns()
            # the driver may still compute metrics of samples already taken
            with contextlib.suppress(Exception):
                if self.gpm is not None:
                    self.gpm.fill()
        else:
            self.failures += 1

    def read_all(self) -> None:
        """Append a full reading, with its time; compute the waiting GPM metrics first.

        Raises the library's errors.
        """
        if self.gpm is not None:
            self.gpm.fill()
        if self.reader is not None:
            self.readings.append((time.monotonic_ns(), self.reader.full()))

    def read_moving(self) -> None:
        """Append a reading of what can change within a window, with its time; read the memory clock too.

        Raises only errors that mean that the GPU is gone.
        """
        if self.reader is not None:
            self.readings.append((time.monotonic_ns(), self.reader.moving()))
            self.memory_clock_hz = _number(self.memory_clock) * 1e6

    def sample(self) -> None:
        """Append one row: activity since the last call, clocks, power, reasons for lowered clocks.

        The first call only begins the interval. Clocks, power and reasons are read every `state_every`
        rows, else repeated. Raises the library's errors.
        """
        reading: GpmSample | None = None
        kernel = dram = math.nan
        if self.gpm is not None:
            reading = self.gpm.sample()
            if reading is None:  # the first call: no interval yet
                return
            now, interval = reading.time_ns, reading.interval_ns
        else:
            now = time.monotonic_ns()
            since, self.since_ns = self.since_ns, now
            if not since:
                return
            interval = now - since
            if self.rates is not None:
                kernel, dram = self.rates()
        if len(self.rows) % self.state_every == 0:
            try:
                self.state = self.sm_clock() * 1e6, self.memory_clock_hz, self.power(), self.reasons()
            except Exception:  # one of them failed: read the others
                clock_hz = _number(self.sm_clock) * 1e6
                self.state = clock_hz, self.memory_clock_hz, _number(self.power), _number(self.reasons)
        self.rows.append(Row(now, interval, reading, kernel, dram, *self.state))


class GpuSampler(Sampler):
    """Samples all GPUs from `start` to `stop`; a host without driver or library only yields a note that says so."""

    # A sampler that hangs in the driver: another one would hang as well.
    _hanging: ClassVar[GpuSampler | None] = None

    def __init__(self, activity_hz: float = 10.0, status_hz: float = 0.5, library: Any = None) -> None:
        super().__init__("GPU sampling")
        self._period_ns = int(1e9 / activity_hz)
        self._status_every = max(1, round(activity_hz / status_hz))
        self._xids_every = max(1, round(activity_hz / _XIDS_HZ))
        self._library = library
        self._driver = ""
        self._tracks: list[_GpuTrack] = []
        self._watch: XidWatch | None = None
        self._ticks = 0
        self._open = False
        self._go = threading.Event()
        self._wanted = False

    def listen(self) -> None:
        """Open the library and receive Xids from now on; `start` samples. Returns at once.

        Does nothing but note it while an earlier sampler hangs in the driver.
        """
        before = GpuSampler._hanging
        if before is not None and before.stuck:
            self._missing.append(f"GPUs: an earlier call still hangs in {before._doing or 'the driver'}")
            return
        GpuSampler._hanging = None
        super().start()

    def start(self) -> None:
        """Start to sample. Returns at once."""
        self._wanted = True
        self._go.set()
        if not self._began and not self._missing:  # unless refused before
            self.listen()

    def stop(self, timeout_s: float = 2.0) -> GpuRecording:
        """Stop and return what was recorded. Never raises.

        A call that hangs longer than `timeout_s` is abandoned, with a note.
        """
        self._go.set()
        if not self._finish(timeout_s):
            GpuSampler._hanging = self
        tracks = list(self._tracks)
        missing = list(self._missing)
        for track in tracks:
            if track.failures and not track.readings:
                missing.append(f"gpu{track.index}: does not answer")
            if track.alive and track.readings and track.gpm is None:
                missing.append(f"gpu{track.index}: no GPM (needs Hopper or later): SM activity is a guess from power")
        return GpuRecording(
            samples=tuple(samples_of(track.index, list(track.rows), list(track.readings)) for track in tracks),
            growth=tuple(
                growth_of(
                    track.index, list(track.readings), tuple(track.xids), track.lost_ns, tuple(track.earlier_xids)
                )
                for track in tracks
            ),
            driver_version=self._driver,
            cpu_s=self._cpu_s,
            missing=tuple(missing),
        )

    def _begin(self) -> None:
        """Open the library, register for Xids, wait for `start` (or `stop`), then read every GPU once.

        Runs on the sampling thread. Ends it, with a note, where there is no library or driver.
        """
        self._doing = "NVML, initialising"
        library = open_library(self._library)
        if isinstance(library, str):
            self._missing.append(f"GPUs: {library}")
            self._stopping.set()
            return
        self._library, self._open = library, True
        self._driver = text(ask(library.nvmlSystemGetDriverVersion)) or ""
        self._doing = "NVML, events"
        indices = range(min(ask(library.nvmlDeviceGetCount) or 0, MAX_GPUS))
        found = {index: ask(library.nvmlDeviceGetHandleByIndex, index) for index in indices}
        handles = {index: handle for index, handle in found.items() if handle is not None}
        self._watch = XidWatch(library, handles)
        self._doing = ""
        self._go.wait()
        if not self._wanted:  # stopped before there was anything to sample
            return
        self._doing = "NVML, events"
        earlier = [(index, Xid(xid, time.monotonic_ns())) for index, xid in self._watch.poll()]
        for index in indices:
            self._doing = f"NVML, gpu{index}"
            self._tracks.append(_GpuTrack(library, index))
        for index, each in earlier:
            self._tracks[index].earlier_xids.append(each)
        silent = [f"gpu{index}" for index in handles if index not in self._watch.registered]
        if silent:
            self._missing.append(f"Xids of {', '.join(silent)}: this driver reports none")

    def _tick(self, due_ns: int) -> int:
        """Sample every GPU that is not lost; less often its slower values and the Xids.

        Times in ns of CLOCK_MONOTONIC: `due_ns` of this call; returns that of the next.
        """
        turn = self._ticks % self._status_every
        for track in self._tracks:
            if not track.alive:
                continue
            self._doing = f"NVML, gpu{track.index}"
            try:
                track.sample()
                # All in one turn: most of a turn's cost is cold caches.
                if self._ticks and turn == 0:
                    track.read_moving()
            except Exception as error:
                track.failed(error)
        if self._ticks % self._xids_every == 0:
            self._fetch_xids()
        self._ticks += 1
        return due_ns + self._period_ns

    def _end(self) -> None:
        """Read every GPU and the Xids for the last time, then close all. Nothing where no library was opened."""
        if not self._open:
            return
        for track in self._tracks:
            self._doing = f"NVML, gpu{track.index}"
            if track.alive:
                try:
                    track.sample()
                    track.read_all()
                except Exception as error:
                    track.failed(error)
        self._fetch_xids()
        self._doing = "NVML, closing"
        if self._watch is not None:
            self._watch.close()
        for track in self._tracks:
            if track.gpm is not None:
                track.gpm.close()
        with contextlib.suppress(Exception):
            self._library.nvmlShutdown()

    def _fetch_xids(self) -> None:
        """Append the Xids since the last call to their GPUs, with the present time."""
        self._doing = "NVML, events"
        now = time.monotonic_ns()
        for index, xid in self._watch.poll() if self._watch is not None and self._tracks else ():
            self._tracks[index].xids.append(Xid(xid, now))


def _unknown() -> float:
    """Return NaN, in place of a function that would read a value which this GPU does not report."""
    return math.nan


def _number(function: Number) -> float:
    """Call `function`; NaN where it fails. Raises only errors that mean that the GPU is gone."""
    try:
        return function()
    except Exception as error:
        if is_lost(error):
            raise
        return math.nan


def _power(library: Any, handle: Any) -> Number:
    """Return a function that reads watts: the instant value where supported, else the driver's average.

    The function returns NaN, or raises the library's error, where it cannot read.
    """
    instant = OneField(library, handle, FIELD_POWER_INSTANT)
    if math.isfinite(instant.read()):
        return lambda: instant.read() / 1e3
    average = number(library, "nvmlDeviceGetPowerUsage", ctypes.c_uint, handle)
    return _unknown if average is None else lambda: average() / 1e3


def _rates(library: Any, handle: Any) -> Callable[[], tuple[float, float]] | None:
    """Return a function that reads GPU and memory utilization (0 to 1); None where unsupported.

    GPU: share of time in which a kernel ran; memory: in which it was accessed. The function returns
    NaN for both where the read fails, and raises only if the GPU is lost.
    """

    def shares() -> tuple[float, float]:
        try:
            rates = library.nvmlDeviceGetUtilizationRates(handle)
            return float(rates.gpu) / 100, float(rates.memory) / 100
        except Exception as error:
            if is_lost(error):
                raise
            return math.nan, math.nan

    return shares if ask(library.nvmlDeviceGetUtilizationRates, handle) is not None else None
