"""Gives one input after the other to a target, and sees that it keeps to its limits: errors, time, memory.

Time is the processor's: the machine may be busy, and the run stopped meanwhile. Memory is by how much the peak of the process
grew above what it holds between inputs.
"""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import time
import traceback
from pathlib import Path
from types import FrameType, TracebackType

from campaignkit.fuzz.counted import Counted
from campaignkit.fuzz.target import Target

MOST_S = 1.0
MOST_BYTES = 64 << 20
_REST_EVERY = 256  # inputs between two looks at what is held at rest
_PAGE_BYTES = resource.getpagesize()
_OURS = str(Path(__file__).resolve().parents[3])


class TooSlow(BaseException):
    """An input took too long. No ordinary exception: nothing that is fuzzed may catch it."""


class Watch:
    """`feed` is what the fuzzer calls. Inputs that fail are written into `crashes`, one for each place where one failed."""

    def __init__(self, target: Target, record: Counted, crashes: Path) -> None:
        self.target, self.record, self._crashes = target, record, crashes
        self._at_tick = 0
        self._inside = False
        self._fed = 0  # here: what a run that goes on took to begin is no input's
        self._rest()

    def start_clock(self) -> None:
        """Every second of the processor's time it is looked whether the same input is still there; so one ends after two."""
        signal.signal(signal.SIGPROF, self._tick)
        signal.setitimer(signal.ITIMER_PROF, MOST_S, MOST_S)

    def stop_clock(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _tick(self, _signal: int, _frame: FrameType | None) -> None:
        if self._inside and self._at_tick == self.record.inputs:
            raise TooSlow(f"more than {MOST_S:g} s")
        self._at_tick = self.record.inputs

    def feed(self, data: bytes) -> None:
        """One input."""
        record = self.record
        if self._fed % _REST_EVERY == 0:
            self._rest()
        self._fed += 1
        record.inputs += 1
        began = time.process_time()
        try:
            self._inside = True
            self.target.run(data)
        except self.target.raises:
            pass
        except (Exception, TooSlow) as error:
            self._failed(data, _place(error), f"{type(error).__name__}: {error}")
        finally:
            self._inside = False
        took = time.process_time() - began
        if took > record.slowest_s:
            record.slowest_s = took
            if took > MOST_S:
                self._failed(data, "time", f"{took:.1f} s for {len(data)} bytes")
        self._look_at_memory(data)

    def _look_at_memory(self, data: bytes) -> None:
        # The first is quick and never too small; it knows what this process was before it was this program, too: its parent's peak.
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - self._rest_bytes <= self.record.most_bytes:
            return
        used = peak_bytes() - self._rest_bytes
        if used > self.record.most_bytes:
            self.record.most_bytes = used
            if used > MOST_BYTES:
                self._failed(data, "memory", f"{used >> 20} MB for {len(data)} bytes")
                self._rest()

    def _rest(self) -> None:
        """What the process holds now; its peak counts from here on."""
        with open("/proc/self/clear_refs", "wb") as peak:  # noqa: PTH123
            peak.write(b"5")
        with open("/proc/self/statm", "rb") as sizes:  # noqa: PTH123
            self._rest_bytes = int(sizes.read().split()[1]) * _PAGE_BYTES

    def _failed(self, data: bytes, place: str, words: str) -> None:
        if place in self.record.failures:
            return
        self.record.failures[place] = words[:300]
        folder = self._crashes / self.target.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


def _place(error: BaseException) -> str:
    """Where in our own code an error came from: errors of one place are one finding."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_OURS)]
    inner = [frame for frame in frames if f"{os.sep}campaignkit{os.sep}" not in frame.filename] or frames
    return f"{type(error).__name__} {os.path.relpath(inner[-1].filename, _OURS)}:{inner[-1].lineno}" if inner else "?"


def peak_bytes() -> int:
    """The most memory that this program held since it was last asked to forget that."""
    with open("/proc/self/status", "rb") as status:  # noqa: PTH123
        for line in status:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


class Limited:
    """The limits on one input without a fuzzer: for inputs that are kept. Raises what the target may not."""

    def __init__(self, target: Target, crashes: Path) -> None:
        self.watch = Watch(target, Counted(), crashes)

    def __enter__(self) -> Watch:
        self.watch.start_clock()
        return self.watch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watch.stop_clock()
