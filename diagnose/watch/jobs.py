"""A job with ranks on this host, as the service knows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.diagnose.watch.alarms import Alarm, AlarmKind, JobWatch, Relief
from rankscope.diagnose.watch.limits import Allowance
from rankscope.observer.watch.marker import StepMarker

_LASTING = (AlarmKind.SLOWER, AlarmKind.SILENT, AlarmKind.STOPPED, AlarmKind.DEAD)  # until they are over


@dataclass(slots=True)
class WatchedJob:
    """`known`: whether it is known how long its steps are; `refused`: an alarm at which there was no look; `earlier`: when the last window
    of all hosts began in which nobody was accused; `said`: why its steps are not seen, when that was said."""

    watch: JobWatch
    title: str
    allowance: Allowance
    user: str = ""
    marker: StepMarker | None = None
    steps: int = 0
    windows: int = 0
    alarms: Counter[str] = field(default_factory=Counter)
    named: str = ""
    lost_s: float = 0.0
    troubles: set[AlarmKind] = field(default_factory=set)
    frozen: Path | None = None
    routine_s: float | None = None
    earlier: float | None = None
    refused: Alarm | None = None
    known: bool = False
    said: str = ""

    def started_again(self) -> None:
        """What was usual is learnt anew."""
        self.watch, self.known = JobWatch(self.watch.job), False
        self.troubles.clear()

    def raised(self, alarm: Alarm) -> None:
        """An alarm is counted, and stands until it is over where it is one that lasts."""
        self.alarms[alarm.kind.value] += 1
        if alarm.kind in _LASTING:
            self.troubles.add(alarm.kind)

    def relieved(self, relief: Relief) -> None:
        """With the last trouble goes who was named for it."""
        self.troubles.discard(relief.kind)
        if not self.troubles:
            self.named, self.lost_s, self.frozen = "", 0.0, None
