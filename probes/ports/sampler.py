"""Sample the network ports of this host over a window: all counters slowly, and bursts of bytes at 1 kHz.

In: the ports of reader.py. Out: NicRecording. A burst shows how a transfer runs: a slow link is low
and flat, its peers' move at full rate and wait. It is taken while traffic flows: when one is due,
the bytes are read 10 times a second until they move. Cost: scripts/bench counters.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rankscope.probes.host.procfs import ROOT, reason
from rankscope.probes.ports.model import (
    ERROR_NAMES,
    NicRecording,
    Port,
    PortErrors,
    PortGrowth,
    PortRecording,
    PortSamples,
)
from rankscope.probes.ports.reader import PortReader, find_ports
from rankscope.probes.sampling.growth import cumulative, total_growth
from rankscope.probes.sampling.thread import Sampler, within

_LOOK_NS, _LOOK_FOR_NS = 100_000_000, 3_000_000_000
# Traffic worth a burst: this share of the port's speed, or so many bytes per second where the speed is unknown.
_MOVING_SHARE, _MOVING_HZ = 0.005, 5e6
# A card whose firmware is asked for each value (mlx5: tens of microseconds) is read less often in a
# burst: pause between rounds, in multiples of the duration of one round.
_BURST_REST = 8
_AGAIN = 2  # immediate repeats after a burst in which a busy port was silent
_FIRST_READ_S = 1.0
_ERRORS_EVERY = 5
MAX_BURSTS = 64

Raw = list[tuple[int, int, int]]
_RawReading = tuple[int, tuple[bytes, bytes]]


class _PortTrack:
    """One port and its readings."""

    def __init__(self, reader: PortReader) -> None:
        self.reader = reader
        self.readings: list[tuple[int, Port]] = []
        self.statistics: list[PortErrors] = []
        self.bursts: list[list[_RawReading]] = []
        self.looked: tuple[int, int] | None = None

    @property
    def moving_hz(self) -> float:
        """Bytes per second from which the port's traffic is worth a burst."""
        return self.readings[-1][1].speed_hz * _MOVING_SHARE or _MOVING_HZ

    def is_missed(self) -> bool:
        """Tell whether the port is busy over the window, but no byte moved in its last burst.

        Then its part of the collective was missed.
        """
        burst, (since_ns, first), (now_ns, last) = self.bursts[-1], self.readings[0], self.readings[-1]
        moved = max((last.tx_bytes or 0) - (first.tx_bytes or 0), (last.rx_bytes or 0) - (first.rx_bytes or 0))
        moves = moved / max(now_ns - since_ns, 1) * 1e9 > self.moving_hz
        return moves and len(burst) > 1 and burst[0][1] == burst[-1][1]

    def read(self, thorough: bool = False) -> None:
        """Append a reading of the port, with error counters every fifth time.

        `thorough`: with error counters in any case, and append the driver's own statistics.
        """
        # Errors are rare and their files many.
        port = self.reader.read(errors=thorough or len(self.readings) % _ERRORS_EVERY == 0)
        self.readings.append((time.monotonic_ns(), port))
        if thorough:
            self.statistics.append(self.reader.statistics())


class PortSampler(Sampler):
    """Samples all ports from `start` to `stop`.

    All counters at `series_hz`, and every `burst_every_s` (0: never) a burst of `burst_s` at
    `burst_hz`. A burst is doubled if a busy port was silent in it, and repeated at once if it still
    was. A port that does not answer at first is left out, with a note.
    """

    def __init__(
        self,
        series_hz: float = 1.0,
        burst_hz: float = 1000.0,
        burst_s: float = 0.1,
        burst_every_s: float = 8.0,
        root: Path = ROOT,
    ) -> None:
        super().__init__("port sampling")
        self._series_ns, self._burst_ns = int(1e9 / series_hz), int(1e9 / burst_hz)
        self._burst_for_ns, self._every_ns = int(burst_s * 1e9), int(burst_every_s * 1e9)
        self._root = root
        self._tracks: list[_PortTrack] = []
        self._series_due = self._burst_due = self._looking_until = self._bursting_until = 0
        self._bursting: list[tuple[str, tuple[int, int], Callable[[_RawReading], None]]] = []
        self._may_extend = False
        self._again = 0
        self._asked = threading.Event()

    def burst(self) -> None:
        """Take a burst now, whether or not bytes move. Returns at once."""
        self._asked.set()
        self._wake.set()

    def stop(self, timeout_s: float = 2.0) -> NicRecording:
        """Stop and return what was recorded. Never raises.

        A read that hangs longer than `timeout_s` is abandoned, with a note.
        """
        finished = self._finish(timeout_s)
        tracks = list(self._tracks)
        if not finished:
            self._last_readings(tracks, timeout_s)
        ports = tuple(_recording(track) for track in tracks if track.readings)
        return NicRecording(ports, self._cpu_s, tuple(self._missing))

    def _last_readings(self, tracks: list[_PortTrack], timeout_s: float) -> None:
        """Read the last counters of all ports but the one that hangs, within the time limit."""
        until = time.monotonic() + timeout_s
        for track in tracks:
            rest = until - time.monotonic()
            if rest <= 0:
                return
            if track.reader.name != self._doing:
                try:
                    within(min(rest, 0.3), functools.partial(track.read, thorough=True), "port-reading")
                except (OSError, TimeoutError) as error:
                    self._missing.append(f"{track.reader.name}: {reason(error)}")

    def _begin(self) -> None:
        """Find the ports and read each once; those that do not answer in 1 s are left out, with a note.

        Without any port sampling ends, with a note.
        """
        self._doing = "/sys/class/infiniband"
        for reader in find_ports(self._root):
            self._doing = reader.name
            track = _PortTrack(reader)
            try:
                within(_FIRST_READ_S, functools.partial(track.read, thorough=True), "port-reading")
            except (OSError, TimeoutError) as error:
                self._missing.append(f"{reader.name}: left out: {reason(error)}")
                continue
            self._tracks.append(track)
        now = time.monotonic_ns()
        self._series_due = now + self._series_ns
        self._burst_due = now + min(self._every_ns, 1_000_000_000) if self._every_ns else 0
        if not self._tracks:
            self._missing.append("network ports: no physical ones here")
            self._stopping.set()

    def _tick(self, due_ns: int) -> int:
        """Do what is due: a reading of all ports, a round of a burst, or a check whether bytes move.

        Times in ns of CLOCK_MONOTONIC: `due_ns` of this call; returns that of the next.
        """
        now = time.monotonic_ns()
        if now >= self._series_due:
            for track in self._tracks:
                self._doing = track.reader.name
                track.read()
            self._series_due = max(self._series_due + self._series_ns, now)
        if self._asked.is_set():
            self._asked.clear()
            self._open_burst(now)
        if self._bursting_until:
            return self._burst_tick(now, due_ns)
        if self._burst_due and now >= self._burst_due:
            return self._look(now)
        return min(self._series_due, self._burst_due or self._series_due)

    def _burst_tick(self, now: int, due_ns: int) -> int:
        """Read the bytes of all ports once for the running burst; end, extend or repeat it when its time is up.

        Times in ns of CLOCK_MONOTONIC: `now`, `due_ns` of this call; returns that of the next.
        """
        clock, read = time.monotonic_ns, os.pread
        for name, (tx, rx), append in self._bursting:
            self._doing = name
            try:
                append((clock(), (read(tx, 32, 0), read(rx, 32, 0))))
            except OSError:
                continue
        took_ns = clock() - now
        if now >= self._bursting_until and self._may_extend and any(track.is_missed() for track in self._tracks):
            self._may_extend = False
            self._bursting_until = now + self._burst_for_ns
        if now >= self._bursting_until:
            self._bursting_until = 0
            # It began at the end of a collective: repeat at once, at most `_AGAIN` times.
            self._again = (
                self._again + 1 if self._again < _AGAIN and any(track.is_missed() for track in self._tracks) else 0
            )
            self._burst_due = now + (0 if self._again else self._every_ns) if self._every_ns else 0
            return min(self._series_due, self._burst_due or self._series_due)
        return max(due_ns + self._burst_ns, now + _BURST_REST * took_ns)

    def _look(self, now: int) -> int:
        """Check whether bytes move on any port; if so start a burst.

        After 3 s without, wait for the next burst's turn. Returns when to be called next (ns).
        """
        self._looking_until = self._looking_until or now + _LOOK_FOR_NS
        moving = False
        for track in self._tracks:
            self._doing = track.reader.name
            total = sum(value or 0 for value in track.reader.sums())
            if track.looked is not None:
                rate = (total - track.looked[1]) / max(now - track.looked[0], 1) * 1e9
                moving |= rate > track.moving_hz
            track.looked = (now, total)
        if moving:
            self._open_burst(now)
            return now
        if now > self._looking_until:
            self._end_look(now + self._every_ns)
            return min(self._series_due, self._burst_due)
        return now + _LOOK_NS

    def _open_burst(self, now: int) -> None:
        """Start a burst of all ports, unless one runs or there were MAX_BURSTS; schedule the next one."""
        self._end_look(now + self._every_ns if self._every_ns else 0)
        if not self._bursting_until and self._tracks and len(self._tracks[0].bursts) < MAX_BURSTS:
            self._bursting_until = now + self._burst_for_ns
            self._bursting, self._may_extend = [], True
            for track in self._tracks:
                track.bursts.append([])
                if (files := track.reader.byte_files()) is not None:
                    self._bursting.append((track.reader.name, files, track.bursts[-1].append))

    def _end_look(self, due_ns: int) -> None:
        """Stop checking whether bytes move; the next burst is due at `due_ns` (0: never)."""
        self._looking_until, self._burst_due = 0, due_ns
        for track in self._tracks:
            track.looked = None

    def _end(self) -> None:
        """Read all ports thoroughly once more, and close them."""
        for track in self._tracks:
            self._doing = track.reader.name
            track.read(thorough=True)
            track.reader.close()


def _recording(track: _PortTrack) -> PortRecording:
    """Build the recording of one port: growth, slow series, and bursts of at least two readings."""
    readings, reader = list(track.readings), track.reader
    known: Raw = [
        (time_ns, port.tx_bytes, port.rx_bytes)
        for time_ns, port in readings
        if port.tx_bytes is not None and port.rx_bytes is not None
    ]
    return PortRecording(
        growth=growth_of(readings, list(track.statistics)),
        series=_samples(reader, known),
        bursts=tuple(_samples(reader, _parsed(reader, list(burst))) for burst in track.bursts if len(burst) > 1),
    )


def _parsed(reader: PortReader, burst: list[_RawReading]) -> Raw:
    """Parse a burst to (time in ns, sent bytes, received bytes); unusable readings are left out."""
    rows: Raw = []
    for time_ns, raw in burst:
        with contextlib.suppress(ValueError):
            rows.append((time_ns, *reader.parsed(raw)))
    return rows


def growth_of(readings: list[tuple[int, Port]], statistics: list[PortErrors]) -> PortGrowth:
    """Compute a port's counter growth over (time, port) readings, of which there is at least one.

    `statistics`: the driver's own counts at begin and end. They replace what sysfs lacks, and are
    added for InfiniBand devices, whose interfaces count other things.
    """
    ports = [port for _, port in readings]
    first, last = ports[0], ports[-1]
    errors: dict[str, int | None] = {}
    for name in ERROR_NAMES:
        own = total_growth([getattr(port.errors, name) for port in ports])
        more = total_growth([getattr(one, name) for one in statistics])
        errors[name] = own if more is None or (own is not None and not first.port) else more + (own or 0)
    up = [port for port in ports if port.up]
    speeds = [port.speed_hz for port in up if port.speed_hz > 0]
    widths = [port.width for port in up if port.width is not None]
    states = [port.up for port in ports]
    return PortGrowth(
        name=first.name,
        device=first.device,
        port=first.port,
        pci=first.pci,
        seconds=(readings[-1][0] - readings[0][0]) / 1e9,
        first=first,
        last=last,
        tx_bytes=total_growth([port.tx_bytes for port in ports]),
        rx_bytes=total_growth([port.rx_bytes for port in ports]),
        errors=PortErrors(**errors),
        speed_hz=min(speeds, default=0.0),
        width=min(widths, default=None),
        readings=len(ports),
        down_readings=sum(state is False for state in states),
        changes=sum(before != after for before, after in itertools.pairwise(states)),
    )


def _samples(reader: PortReader, raw: Raw) -> PortSamples:
    """Build a byte series from parsed rows (time in ns, sent bytes, received bytes), whose numbers may wrap or restart.

    The series never falls: each value is the one before plus the counter's growth since.
    """
    return PortSamples(
        reader.name,
        reader.device,
        reader.port,
        reader.pci,
        np.array([row[0] for row in raw], np.int64),
        np.array(cumulative([row[1] for row in raw]), np.int64),
        np.array(cumulative([row[2] for row in raw]), np.int64),
    )
