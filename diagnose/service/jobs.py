"""State of a job with ranks on this host, in the service."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.diagnose.service.alarms import Alarm, AlarmKind, JobWatch, Relief
from rankscope.diagnose.service.limits import Allowance
from rankscope.diagnose.service.tell.suspects import SuspectState
from rankscope.observer.watch.marker import StepMarker

# until they are over
_LASTING = (AlarmKind.SLOWER, AlarmKind.SILENT, AlarmKind.STOPPED, AlarmKind.DEAD)


@dataclass(slots=True)
class WatchedJob:
    """State of one watched job.

    `wasted`: the waste that the last verdict told, '' if it was none. `known`: its usual step time
    is known; `suspects`: of the last verdict that was judged here; `refused`: an alarm without a
    look; `earlier`: begin of the last window of all hosts without a named cause; `said`: the
    reported reason why its steps are not visible.
    """

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
    wasted: str = ""
    suspects: tuple[SuspectState, ...] = ()
    troubles: set[AlarmKind] = field(default_factory=set)
    frozen: Path | None = None
    routine_s: float | None = None
    earlier: float | None = None
    refused: Alarm | None = None
    known: bool = False
    said: str = ""

    def started_again(self) -> None:
        """Reset the state as new ranks of the job started: learn its step time anew, forget troubles and their cause."""
        self.watch, self.known = JobWatch(self.watch.job), False
        self.troubles.clear()
        self.cleared()

    def raised(self, alarm: Alarm) -> None:
        """Count an alarm; a lasting one is active until it is over."""
        self.alarms[alarm.kind.value] += 1
        if alarm.kind in _LASTING:
            self.troubles.add(alarm.kind)

    def relieved(self, relief: Relief) -> None:
        """End a trouble; with the last one the named cause is cleared."""
        self.troubles.discard(relief.kind)
        if not self.troubles:
            self.cleared()
            self.frozen = None

    def accused(self, words: str, suspects: tuple[SuspectState, ...], lost_s: float = 0.0) -> None:
        """Set the named cause of a trouble, until it is over or a later verdict differs. `lost_s`: its cost per step."""
        self.named, self.suspects, self.lost_s = words, suspects, lost_s

    def cleared(self) -> None:
        """Forget the named cause, its suspects and its cost."""
        self.named, self.suspects, self.lost_s = "", (), 0.0
