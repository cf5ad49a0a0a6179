"""py-spy beside the window, for processes whose interpreter the kernel walk does not know."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from rankscope.observer.live.process_watch import in_words
from rankscope.observer.thread.functions import StackName
from rankscope.probes.errors import RankscopeError
from rankscope.unwinder.walk import pyspy
from rankscope.unwinder.walk.pyspy import PySpyResult


@dataclass(slots=True)
class Fallback:
    """Runs py-spy on `pids` from `start` on. `notes` says that it did, and what came of it."""

    pids: Sequence[int]
    hz: int
    notes: list[str] = field(default_factory=list)
    _results: dict[int, PySpyResult] = field(default_factory=dict)
    _thread: threading.Thread | None = None

    def start(self, seconds: float) -> None:
        """Begin to sample for `seconds`, in a thread that only waits."""
        if self.pids:
            self._thread = threading.Thread(target=self._run, args=(seconds,), daemon=True)
            self._thread.start()

    def _run(self, seconds: float) -> None:
        try:
            results = pyspy.record(self.pids, seconds, self.hz, idle=False)
        except (RankscopeError, OSError) as error:
            self.notes.append(f"py-spy, in place of the kernel walk, failed: {error}")
            return
        for result in results:
            self._results[result.pid] = result
            problem = f": {result.problem}" if result.problem else f", {result.taken} samples, {result.failed} failed"
            self.notes.append(f"Python stacks of pid {result.pid} come from py-spy{problem}")

    def finish(self, stacks: dict[int, StackName]) -> dict[int, tuple[tuple[int, int], ...]]:
        """Wait for py-spy; per pid the stacks of its main thread with their counts. New names go into `stacks`."""
        if self._thread is None:
            return {}
        self._thread.join()
        found: dict[int, tuple[tuple[int, int], ...]] = {}
        for pid, result in self._results.items():
            rows = []
            for sample in result.samples:
                if sample.frames and (sample.tid == pid or sample.thread_name == "MainThread"):
                    words = in_words(sample.frames)
                    identity = hash((pid, words)) & 0x7FFF_FFFF_FFFF_FFFF | 1
                    stacks[identity] = words
                    rows.append((identity, sample.count))
            found[pid] = tuple(rows)
        return found
