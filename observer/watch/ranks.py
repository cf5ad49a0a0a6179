"""What tier 0 knows of each rank: its steps as they end, how long it waited in them, whether it lives, runs or is stopped."""

from __future__ import annotations

import os
import signal
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from rankscope.observer.census.found import FoundRank
from rankscope.observer.watch.marker import Calls, StepMarker
from rankscope.probes.arrays import Floats

_STEPS_KEPT = 512
_TOLD_TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of one rank that have ended, in order: when (CLOCK_MONOTONIC, s), how long they took, and what of it was waiting for others
    (NaN where the marker does not tell)."""

    end_s: Floats
    seconds: Floats
    waited_s: Floats

    def __len__(self) -> int:
        return len(self.end_s)


NO_STEPS = Steps(np.empty(0), np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class Death:
    """A rank's process ended. `status` as wait(2) tells it, -1 unknown; `why`: what else is known of it, in words."""

    job: str
    pid: int
    rank: int
    at_s: float
    status: int
    why: str = ""

    @property
    def failed(self) -> bool:
        """Whether it neither ended by itself with 0 nor was told to end (SIGTERM, SIGINT, and their exit codes); not known: it did not."""
        if self.status <= 0:
            return False
        if os.WIFSIGNALED(self.status):
            return os.WTERMSIG(self.status) not in _TOLD_TO_END
        return os.WEXITSTATUS(self.status) - 128 not in _TOLD_TO_END

    @property
    def words(self) -> str:
        """'killed by SIGKILL', 'ended with 1', 'killed by SIGKILL, out of memory: …'."""
        return f"{self._end}, {self.why}" if self.why else self._end

    @property
    def _end(self) -> str:
        if self.status < 0:
            return "ended, nobody saw how"
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            try:
                return f"killed by {signal.Signals(number).name}"
            except ValueError:
                return f"killed by signal {number}"
        return f"ended with {os.WEXITSTATUS(self.status)}"


@dataclass(slots=True)
class RankPulse:
    """One rank. `last_s`: when it was last heard of, by CLOCK_MONOTONIC; when it was found at first. `missed_s`: when calls were lost
    last, which may have been its own; `unheard`: its calls are not listened to, and count no steps."""

    found: FoundRank
    since_s: float
    last_s: float
    marker: StepMarker | None = None
    missed_s: float = float("-inf")
    unheard: bool = False
    stopped_since_s: float | None = None
    missing: bool = False  # it was not there at the last poll
    recent: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=_STEPS_KEPT))
    _open: list[tuple[float, float]] = field(default_factory=list)  # calls since the last edge: end and stay
    _edge_s: float | None = None

    def begin(self, marker: StepMarker) -> None:
        """Count steps by this marker from now on."""
        self.marker, self._edge_s = None if self.unheard else marker, None
        self._open.clear()

    def miss(self, now_s: float) -> None:
        """Calls were lost: what is heard next does not follow upon what was heard."""
        self.missed_s, self._edge_s = now_s, None
        self._open.clear()

    def hear_no_more(self) -> None:
        """Its calls are not listened to from now on."""
        self.marker, self.unheard = None, True

    def take(self, calls: Calls) -> Steps:
        """The steps that end with these calls of the marker."""
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
        """The median of its last steps; None before there are ten."""
        if len(self.recent) < 10:
            return None
        return float(np.median([seconds for _, seconds, _ in self.recent]))
