"""The service's sender of health events: in a child, so that no socket holds up the service.

Events that are not taken are counted and reported once, until one is taken again.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rankscope.diagnose.nvsentinel.from_service import Open
from rankscope.diagnose.nvsentinel.health_event import HealthEvent, node_name
from rankscope.diagnose.nvsentinel.send import TIMEOUT_S, send
from rankscope.diagnose.service.child import Child

WAITING_MOST = 64  # calls without an answer; what comes then is lost


@dataclass(slots=True)
class NvSentinel:
    """Sends health events of the service to one socket. `lost`: events that were not taken since the start."""

    path: Path
    remediate: bool = False
    timeout_s: float = TIMEOUT_S
    lost: int = 0
    _child: Child = field(init=False)
    _open: Open = field(default_factory=Open)
    _sent: list[int] = field(default_factory=list)  # number of events of each call without an answer
    _failing: bool = False

    def __post_init__(self) -> None:
        self._child = Child(partial(_serve, self.path, self.remediate, self.timeout_s))

    def tell(self, content: Mapping[str, Any], state: str) -> str:
        """Queue the health events of an event of the service; return what went wrong, '' if nothing. Never blocks.

        `content`: the event as JSON; `state`: its severity.
        """
        events = self._open.events(content, state, node_name())
        if not events:
            return self.tend()
        if len(self._sent) >= WAITING_MOST:
            return self._failed(len(events), f"{WAITING_MOST} calls have no answer") or self.tend()
        if not self._child.send([asdict(one) for one in events]):
            return self._failed(len(events), "what sends them could not be started")
        self._sent.append(len(events))
        return self.tend()

    def tend(self) -> str:
        """Read answers; return what went wrong since the last call, '' if nothing. Call regularly."""
        note = ""
        while (why := self._child.next()) is not None:
            count = self._sent.pop(0) if self._sent else 0
            if why:
                note = note or self._failed(count, str(why))
            else:
                self._failing = False
        if self._sent and not self._child.runs:
            gone, self._sent = sum(self._sent), []
            note = note or self._failed(gone, "what sends them has ended")
        return note

    def close(self) -> str:
        """End the child; return how many events were not taken, '' if all were."""
        self.tend()
        self._child.close()
        self.lost += sum(self._sent)
        self._sent = []
        return f"NVSentinel was not told of {self.lost} events" if self.lost else ""

    def _failed(self, count: int, why: str) -> str:
        """Count lost events; return the note of it, '' if one was returned since the last success. `why`: in words."""
        self.lost += count
        if self._failing:
            return ""
        self._failing = True
        return f"NVSentinel is not told: {why}"


def _serve(path: Path, remediate: bool, timeout_s: float, line: socket.socket) -> None:
    """Answer each call with why its events were not taken, '' if they were. Runs in the child."""
    with line.makefile("rb") as asked:
        for each in asked:
            events = [_restored(one) for one in json.loads(each)]
            line.sendall(json.dumps(send(path, events, remediate, timeout_s)).encode() + b"\n")


def _restored(content: dict[str, Any]) -> HealthEvent:
    """Make a health event of its JSON, with tuples again; changes `content`."""
    pairs = tuple((str(kind), str(value)) for kind, value in content.pop("entities"))
    return HealthEvent(**{**content, "codes": tuple(content["codes"])}, entities=pairs)
