"""Follow a request for a look through the service's events, until each job it is about has its verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rankscope.diagnose.service.alarms import AlarmKind
from rankscope.probes.base.errors import EXIT_CRITICAL, EXIT_DEGRADED, EXIT_HEALTHY, EXIT_UNKNOWN

_CODES = {
    "healthy": EXIT_HEALTHY, "inefficient": EXIT_DEGRADED, "fault": EXIT_DEGRADED, "imbalance": EXIT_DEGRADED, "hang": EXIT_CRITICAL,
}  # fmt: skip
_WORST_FIRST = (EXIT_CRITICAL, EXIT_DEGRADED, EXIT_UNKNOWN, EXIT_HEALTHY)


@dataclass(slots=True)
class Answers:
    """Verdicts that answer a request made at Unix time `since`: of each job for which the service says that somebody asked.

    `ended`: why no further answer will come, '' while some may.
    """

    since: float
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    ended: str = ""
    _wanted: dict[str, bool] = field(default_factory=dict)  # by job: whether it was answered

    @property
    def done(self) -> bool:
        """True if no further answer is to be expected: all jobs asked for have one, or none can come."""
        return bool(self.ended) or (bool(self.verdicts) and all(self._wanted.values()))

    @property
    def code(self) -> int:
        """Exit code of the worst verdict; unknown where a job got none."""
        found = [code_of(event) for event in self.verdicts]
        if not found or not all(self._wanted.values()):
            found.append(EXIT_UNKNOWN)
        return min(found, key=_WORST_FIRST.index)

    def hear(self, event: dict[str, Any]) -> bool:
        """Process one event of the service; return whether it answers the request, and is to be printed."""
        kind, job = event.get("kind"), str(event.get("job") or "")
        if kind == "ended":
            self.ended = "the service has ended"
        elif kind == "note" and not job and str(event.get("words", "")).startswith("asked to look at "):
            self.ended = "there is no such job"
            return True
        elif kind == "alarm" and event.get("alarm") == AlarmKind.ASKED.value:
            self._wanted[job] = not event.get("window", True)
            if self._wanted[job]:
                self.verdicts.append(event)
                return True
        elif kind == "gone" and not self._wanted.get(job, True):
            self._wanted[job] = True
            self.verdicts.append(event)  # none: it counts as unknown
            return True
        elif kind == "verdict" and self._answers(event):
            self._wanted[job] = True
            self.verdicts.append(event)
            return True
        return False

    def _answers(self, event: dict[str, Any]) -> bool:
        """Tell whether a verdict answers: on a look that was asked for, or that began after the request."""
        about = event.get("job") in self._wanted
        asked = event.get("alarm") == AlarmKind.ASKED.value
        took_s = event.get("took_s")
        began = _unix(event.get("time")) - float(took_s) if isinstance(took_s, (int, float)) else 0.0
        return about and (asked or began >= self.since)


def code_of(event: dict[str, Any]) -> int:
    """Return the exit code of the verdict in an event; unknown where it has none."""
    verdict = event.get("verdict")
    return _CODES.get(str(verdict.get("status")), EXIT_UNKNOWN) if isinstance(verdict, dict) else EXIT_UNKNOWN


def _unix(time: object) -> float:
    """Convert a time in ISO 8601 to Unix seconds; 0 if it is none."""
    try:
        return datetime.fromisoformat(str(time).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
