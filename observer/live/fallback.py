"""Run py-spy during a window, for processes whose interpreter the kernel walk does not support."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rankscope.observer.live import limits
from rankscope.observer.live.process_watch import name_frames
from rankscope.observer.thread.functions import StackName
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.host.fair import about, interleave
from rankscope.unwinder.walk import pyspy
from rankscope.unwinder.walk.pyspy import PySample

_SLACK = 2  # py-spy takes no more samples per thread than its rate, except to catch up
# Errors of starting it elsewhere, querying it and reading its output.
_FAILURES = (RankscopeError, OSError, ValueError, TypeError, RuntimeError)


@dataclass(slots=True)
class Fallback:
    """Runs py-spy on `pids` from `start` on. `notes` reports that it did, and the results."""

    pids: Sequence[int]
    hz: int
    notes: list[str] = field(default_factory=list)
    # pid -> (stack, count)
    _found: dict[int, list[tuple[StackName, int]]] = field(default_factory=dict)
    _thread: threading.Thread | None = None

    def start(self, seconds: float) -> None:
        """Start sampling for `seconds`, on a thread that only waits."""
        if self.pids:
            self._thread = threading.Thread(target=self._run, args=(seconds,), daemon=True)
            self._thread.start()

    def _run(self, seconds: float) -> None:
        """Run py-spy on all processes for `seconds`, and collect their main threads' stacks; failures become notes."""
        most = math.ceil(seconds) * self.hz * _SLACK
        try:
            for result in pyspy.record_each(self.pids, seconds, self.hz, idle=False):
                self._found[result.pid], left_out = main_thread(result.pid, result.samples, most)
                problem = (
                    f": {result.problem}" if result.problem else f", {result.taken} samples, {result.failed} failed"
                )
                more = (
                    f"; {left_out} of its lines were skipped: they claim more samples than possible" if left_out else ""
                )
                said = f"Python stacks of pid {result.pid} come from py-spy{problem}{more}"
                self.notes.append(about((result.pid,), said))
        except _FAILURES as error:
            self.notes.append(f"py-spy, in place of the kernel walk, failed: {error}")

    def finish(
        self, stacks: dict[int, StackName], keep: Callable[[int, StackName, int], bool] | None = None
    ) -> dict[int, tuple[tuple[int, int], ...]]:
        """Wait for py-spy; return, per pid, the stacks of its main thread with their counts.

        New names are added to `stacks`, of each process in turn, while there is room; with `keep`
        (called with number, words and pid) that stores them and says whether there was room.
        """
        if self._thread is None:
            return {}
        self._thread.join()
        rows: dict[int, list[tuple[int, int]]] = {pid: [] for pid in self._found}
        lines = {pid: [(pid, *one) for one in seen] for pid, seen in self._found.items()}
        for pid, words, count in interleave(lines):
            identity = hash((pid, words)) & 0x7FFF_FFFF_FFFF_FFFF | 1
            if keep is not None:
                kept = keep(identity, words, pid)
            elif kept := identity in stacks or len(stacks) < limits.STACKS:
                stacks[identity] = words
            if kept:
                rows[pid].append((identity, count))
        for pid, seen in self._found.items():
            if left_out := len(seen) - len(rows[pid]):
                self.notes.append(
                    about((pid,), f"pid {pid}: {left_out} of its stacks are left out: there were too many")
                )
        return {pid: tuple(mine) for pid, mine in rows.items()}


def main_thread(pid: int, samples: Iterable[PySample], most: int) -> tuple[list[tuple[StackName, int]], int]:
    """Select the main thread's stacks with their counts; also return how many lines were left out.

    Lines beyond `most` samples in all are left out: a function's name may contain fake lines with
    any count.
    """
    found: list[tuple[StackName, int]] = []
    room, left_out = most, 0
    for sample in samples:
        if sample.frames and (sample.tid == pid or sample.thread_name == "MainThread"):
            if 0 < sample.count <= room:
                found.append((name_frames(sample.frames), sample.count))
                room -= sample.count
            else:
                left_out += 1
    return found, left_out
