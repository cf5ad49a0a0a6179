"""Xids that the kernel logs, as events: at most one a minute per GPU and number. Pure.

A faulting GPU kernel logs a line for each multiprocessor: one crash must not fill the log, or the
queue of the hook.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rankscope.diagnose.service.events import Event
from rankscope.diagnose.service.tell.drain import reason_of
from rankscope.diagnose.service.voice import unix
from rankscope.diagnose.severity import CRITICAL
from rankscope.diagnose.xids import by_application, meaning
from rankscope.probes.gpu.xid import LoggedXid

AGAIN_S = 60.0
APPLICATIONS = "applications"  # user name for Xids of applications, as no log line names the user


@dataclass(slots=True)
class XidEvents:
    """Limits events: when each GPU and number was last reported, and how often it came since."""

    _told: dict[tuple[str, int], tuple[float, int]] = field(default_factory=dict)

    def of(self, found: Sequence[LoggedXid], now_s: float) -> list[Event]:
        """Return events due now: each Xid's first, and after a minute how many more came. `now_s`: CLOCK_MONOTONIC."""
        told = self._repeated(now_s)
        for xid in found:
            at_s, more = self._told.get((xid.bus, xid.number), (now_s, -1))
            self._told[xid.bus, xid.number] = (at_s, more + 1)
            if more < 0:
                told.append(_event(xid.bus, xid.number, xid.time_s, 0))
        return told

    def _repeated(self, now_s: float) -> list[Event]:
        """Return an event for each Xid that was reported a minute ago and came again since; forget all of that age."""
        over = {place: more for place, (at_s, more) in self._told.items() if now_s - at_s >= AGAIN_S}
        for place in over:
            del self._told[place]
        return [_event(bus, number, now_s, more) for (bus, number), more in over.items() if more]


def _event(bus: str, number: int, at_s: float, more: int) -> Event:
    """Make the event of an Xid; `more`: how often it came since it was reported, 0 for the first report."""
    what, state, action = meaning(number)
    again = f" ({more} more in a minute)" if more else ""
    details = {"xid": number, "bus": bus, "more": more, "of_application": by_application(number)}
    drain = ("", reason_of("gpu", "xid", f"{bus} {number}")) if state == CRITICAL and not more else None
    user = APPLICATIONS if by_application(number) else ""
    words = f"GPU {bus}: Xid {number}, {what}{again}. {action}"
    return Event("hardware", unix(at_s), words, state=state, details=details, drain=drain, user=user)
