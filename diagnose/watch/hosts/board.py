"""What hosts of a job leave each other in a store, and the windows that lie there. Each call may take as long as the store does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rankscope.diagnose.fleet.sources import Source, Sources
from rankscope.observer.window.store import objects
from rankscope.observer.window.store.keys import moment, told_key
from rankscope.observer.window.store.place import Store, open_store
from rankscope.probes.errors import BadData

TRIGGER, TURN, VERDICT = "trigger", "turn", "verdict"


@dataclass(frozen=True, slots=True)
class Board:
    """One store. StoreFailed, UsageError."""

    uri: str
    most_bytes: int = 4 << 20  # a verdict with the stacks of ten thousand ranks

    def put(self, what: str, job: str, start: float, content: Mapping[str, Any]) -> dict[str, Any] | None:
        """Leave it, unless there is one already; what is there now."""
        objects.put_new(self._store, told_key(what, job, start), json.dumps(content, ensure_ascii=False).encode())
        return self.get(what, job, start)

    def get(self, what: str, job: str, start: float) -> dict[str, Any] | None:
        """What was left; None where there is nothing that can be read."""
        try:
            found = json.loads(
                objects.get(self._store, f"{self._store.path}/{told_key(what, job, start)}", self.most_bytes)
            )
        except (FileNotFoundError, BadData, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def windows(self, job: str, start: float) -> Sources:
        """The windows of one job that began in this second."""
        place = f"/{moment(job, start)}"
        there = objects.listing(replace(self._store, path=self._store.path + place, shown=self._store.shown + place))
        return Sources(tuple(Source(self.uri, each.path, each.key.hosts, each.key.host) for each in there.objects), ())

    @property
    def _store(self) -> Store:
        return open_store(self.uri)
