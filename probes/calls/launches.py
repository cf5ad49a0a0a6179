"""Count kernel launches, which are too many to be timed, in samples within a budget.

A training process launches 1,000 to 50,000 kernels a second, and each probe hit costs it 1-2 µs. So
the entry probes are attached for a tenth of a second. Where the rate is within the budget they
stay, and every launch is counted; where it is not they are detached at once and attached again a
few times per window, and the rate is estimated from those samples.

One launch in sixteen is located while the probes are attached: a LAUNCH event in the ring says what was launched, from
which code, and from where in Python.

In: functions of launch rows. Out: launches and seconds of counting, per process. Everything runs on
a thread of its own, as the last close of a probe takes 20 ms (0.1 s per function before Linux 6.6).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rankscope.probes.bpf.module import Module
from rankscope.probes.calls.programs import enter_program
from rankscope.probes.elf.reader import FileBytes

SAMPLE_S = 0.1
REST_S = 6.0  # 3 samples in a window of 20 s
_LOOK_AGAIN_S = 0.25  # while attached: a rate may rise


@dataclass(frozen=True, slots=True)
class LaunchCount:
    """Launches counted so far. `seconds`: duration of counting; less than elapsed time where over
    budget.
    """

    seconds: float
    launches: Mapping[tuple[int, int], int]  # (tgid, row)

    def rate_hz(self, before: LaunchCount, tgid: int, runtime: frozenset[int]) -> float | None:
        """Return launches a second of a process since `before`, None where nothing was counted.

        A runtime call (rows `runtime`) ends in a driver call, and other libraries call the driver
        alone: the sum of either kind is a lower bound, and the greater one is returned.
        """
        seconds = self.seconds - before.seconds
        if seconds <= 0:
            return None
        sums = {True: 0, False: 0}
        for (process, row), count in self.launches.items():
            if process == tgid:
                sums[row in runtime] += count - before.launches.get((process, row), 0)
        return max(sums.values()) / seconds


@dataclass(frozen=True, slots=True)
class _LaunchPlace:
    """The functions of a launch row in one file, and what is needed to attach probes to them again."""

    row: int
    site: str  # the program that locates some of them
    library: FileBytes  # kept open for attaching again
    offsets: tuple[int, ...]


@dataclass(slots=True)
class LaunchMeter:
    """Counts launches on a thread of its own until the module is closed.

    `over_budget_hz`: probe hits a second per process when that exceeded the budget; a launch
    through the runtime hits two. Where a program does nothing but launch, the probes slow it down
    while they count, and the rate is a lower bound.
    """

    module: Module
    notes: list[str]
    budget_hz: float
    sample_s: float = SAMPLE_S
    rest_s: float = REST_S
    processes: int = 1
    over_budget_hz: float | None = None
    _places: list[_LaunchPlace] = field(default_factory=list)
    _links: list[int] = field(default_factory=list)
    _counted_s: float = 0.0
    _counted: Counter[tuple[int, int]] = field(default_factory=Counter)
    _since: float | None = None  # start of the unsettled interval; None while detached
    _sums: Counter[tuple[int, int]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def add(self, row: int, site: str, library: FileBytes, offsets: Sequence[int]) -> None:
        """Add a file that exports the functions of a launch row; it is attached from the next sample on.

        `row`: its number in the call table. `site`: name of the program that locates some launches.
        `offsets`: of the functions in the file.
        """
        with self._lock:
            self._places.append(_LaunchPlace(row, site, library, tuple(offsets)))

    def begin(self, processes: int) -> None:
        """Start counting; `processes`: how many are watched, each with the budget.

        If probes cannot be attached, `notes` gets the reason.
        """
        self.processes = max(processes, 1)
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="launch-meter", daemon=True)
            try:
                self._attach()  # here, as programs are loaded on one thread only
                thread.start()
            except Exception as error:
                self._give_up(error)
                return
            self._thread = thread
            self.module.before_close.append(self.stop)

    def stop(self) -> None:
        """Stop the thread. The module detaches what is attached."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def counted(self) -> LaunchCount:
        """Return counts and seconds of counting until now."""
        with self._lock:
            self._settle()
            return LaunchCount(self._counted_s, dict(self._counted))

    def _settle(self) -> None:
        """Add counts and seconds since the last call to the totals.

        Hits counted while probes are being detached are left out.
        """
        if self._since is None:
            return
        now, sums = time.monotonic(), self._read_sums()
        self._counted_s += now - self._since
        self._counted += sums - self._sums
        self._since, self._sums = now, sums

    def _read_sums(self) -> Counter[tuple[int, int]]:
        """Read the launches counted by the kernel, by (tgid, row), of the rows that have been added."""
        rows = {place.row for place in self._places}
        return Counter(
            {
                (int(key.tgid), int(key.row)): int(value.count)
                for key, value in self.module.maps["rs_call_sums"].items()
                if int(key.row) in rows
            }
        )

    def _run(self) -> None:
        """Count all launches while they are within the budget, else in samples, on the thread until stopped."""
        try:
            while True:
                hz = self._rate_hz(self.sample_s)
                while hz is not None and hz <= self.budget_hz:
                    hz = self._rate_hz(_LOOK_AGAIN_S)
                if hz is None:
                    return
                self._detach()
                if self.over_budget_hz is None:
                    self.notes.append(
                        f"kernel launches are counted in samples of {self.sample_s:g} s every {self.rest_s:g} s only: their "
                        f"probes are hit {hz:.0f} times a second per process, more than the {self.budget_hz:.0f} allowed"
                    )
                self.over_budget_hz = hz
                if self._stop.wait(self.rest_s):
                    return
                while self.module.rests:
                    if self._stop.wait(_LOOK_AGAIN_S):
                        return
                self._attach()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Stop counting because of an error: add a note and detach the probes."""
        self.notes.append(f"kernel launches are not counted: {(str(error) or type(error).__name__).splitlines()[0]}")
        self._since = None
        self._detach()

    def _rate_hz(self, seconds: float) -> float | None:
        """Measure hits a second per watched process for `seconds`; None when stopped.

        Hits of other processes are included.
        """
        before, start = self._hits(), time.monotonic()
        if self._stop.wait(seconds):
            return None
        return (self._hits() - before) / (time.monotonic() - start) / self.processes

    def _hits(self) -> int:
        """Read how often the probes of all added rows were hit so far, in all processes and on all CPUs."""
        table = self.module.maps["rs_call_hits"]
        rows = {place.row for place in self._places}
        return sum(cpu.watched + cpu.others for row in rows for cpu in table[ctypes.c_int(row)])

    def _attach(self) -> None:
        """Attach the counting and the locating program to every added file, and begin to count. Raises on failure."""
        with self._lock:
            for place in self._places:
                for program in (enter_program(place.row), place.site):
                    self._links += self.module.attach_uprobes(program, place.library, place.offsets)
            self._since, self._sums = time.monotonic(), self._read_sums()

    def _detach(self) -> None:
        """Add the counts until now to the totals, then detach all probes."""
        with self._lock:
            self._settle()
            self._since = None
            links, self._links = tuple(self._links), []
        self.module.release(links)
