"""State of each rank in tier 0: its steps as they end, waiting time in them, whether it runs or is stopped."""

from __future__ import annotations

import os
import signal
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from rankscope.observer.census.found import FoundRank
from rankscope.observer.watch.marker import Calls, StepMarker
from rankscope.probes.base.arrays import Floats

_STEPS_KEPT = 512
_TOLD_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Steps:
    """Ended steps of one rank, in order: end (CLOCK_MONOTONIC, s), duration, and part spent waiting
    for others.

    `waited_s` is NaN where the marker does not measure it.
    """

    end_s: Floats
    seconds: Floats
    waited_s: Floats

    def __len__(self) -> int:
        return len(self.end_s)


NO_STEPS = Steps(np.empty(0), np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a rank's process. `status` as from wait(2), -1 unknown; `why`: further information
    in words.
    """

    job: str
    pid: int
    rank: int
    at_s: float
    status: int
    why: str = ""

    @property
    def failed(self) -> bool:
        """Tell whether it failed: it neither exited with 0 nor was asked to end (SIGTERM, SIGINT
        and their exit codes).

        False if the status is unknown.
        """
        if self.status <= 0:
            return False
        if os.WIFSIGNALED(self.status):
            return os.WTERMSIG(self.status) not in _TOLD_TO_END
        return os.WEXITSTATUS(self.status) - 128 not in _TOLD_TO_END

    @property
    def words(self) -> str:
        """Description: 'killed by SIGKILL', 'ended with 1', 'killed by SIGKILL, out of memory: …'."""
        return f"{self._end}, {self.why}" if self.why else self._end

    @property
    def _end(self) -> str:
        """Description of the end without `why`: 'killed by SIGKILL', 'ended with 1', 'ended, exit status unknown'."""
        if self.status < 0:
            return "ended, exit status unknown"
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            try:
                return f"killed by {signal.Signals(number).name}"
            except ValueError:
                return f"killed by signal {number}"
        return f"ended with {os.WEXITSTATUS(self.status)}"


@dataclass(slots=True)
class RankPulse:
    """State of one rank.

    `last_s`: its last call, by CLOCK_MONOTONIC; at first when it was found. `missed_s`: when calls
    were lost last, perhaps its own; `unheard`: its calls are not timed, and count no steps.
    """

    found: FoundRank
    since_s: float
    last_s: float
    marker: StepMarker | None = None
    missed_s: float = float("-inf")
    unheard: bool = False
    stopped_since_s: float | None = None
    missing: bool = False  # it was absent at the last poll
    recent: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=_STEPS_KEPT))
    # end and stay of calls since the last edge
    _open: list[tuple[float, float]] = field(default_factory=list)
    _edge_s: float | None = None

    def begin(self, marker: StepMarker) -> None:
        """Count steps by this marker from now on."""
        self.marker, self._edge_s = None if self.unheard else marker, None
        self._open.clear()

    def miss(self, now_s: float) -> None:
        """Handle lost calls: later calls do not continue earlier ones."""
        self.missed_s, self._edge_s = now_s, None
        self._open.clear()

    def stop_listening(self) -> None:
        """Stop counting its steps for good, as its calls are not timed any more."""
        self.marker, self.unheard = None, True

    def take(self, calls: Calls) -> Steps:
        """Return the steps that end with these calls of the marker."""
        if self.marker is None or not len(calls):
            return NO_STEPS
        self.last_s = max(self.last_s, float(calls.end_s[-1]))
        ended = []
        for end_s, start_s in zip(calls.end_s.tolist(), calls.start_s.tolist(), strict=True):
            if self._edge_s is None:
                self._edge_s = end_s
                continue
            self._open.append((end_s, end_s - start_s))
            if len(self._open) == self.marker.per_step:
                waited_s = sum(stay for _, stay in self._open) if self.marker.waits else float("nan")
                if end_s > self._edge_s:
                    ended.append((end_s, end_s - self._edge_s, waited_s))
                self._edge_s = end_s
                self._open.clear()
        self.recent.extend(ended)
        if not ended:
            return NO_STEPS
        columns = np.array(ended).T
        return Steps(columns[0], columns[1], columns[2])

    @property
    def usual_s(self) -> float | None:
        """The median length of its last steps (at most `_STEPS_KEPT`), in seconds; None before there are ten."""
        if len(self.recent) < 10:
            return None
        return float(np.median([seconds for _, seconds, _ in self.recent]))
